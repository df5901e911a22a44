"""COCO's images and annotations as shards: each image with the field "json", a list of its annotations.

    fastdata convert --from convert_coco:samples SHARDS

In the folder of this file, with COCO_IMAGES=train2017 and COCO_ANNOTATIONS=instances_train2017.json.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def samples() -> Iterator[dict[str, Any]]:
    """The images that have annotations, in the order of the file."""
    folder, content = Path(os.environ["COCO_IMAGES"]), json.loads(Path(os.environ["COCO_ANNOTATIONS"]).read_bytes())
    names = {category["id"]: category["name"] for category in content["categories"]}
    found = defaultdict(list)
    for one in content["annotations"]:
        found[one["image_id"]].append({**one, "category": names[one["category_id"]]})
    for image in content["images"]:
        if image["id"] in found:
            name = image["file_name"]
            yield {"__key__": name, "jpg": folder / name, "json": {**image, "annotations": found[image["id"]]}}
