"""Pascal VOC's images as shards: each with its boxes in the field "json", and its mask where there is one.

    fastdata convert --from convert_voc:samples SHARDS

In the folder of this file, with VOC=VOCdevkit/VOC2012.
"""

import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SIDES = ("xmin", "ymin", "xmax", "ymax")


def box_of(element: ElementTree.Element) -> dict[str, Any]:
    """One object: its name, and its box in pixels as the file has it."""
    return {"name": element.findtext("name"), "bbox": [float(element.findtext(f"bndbox/{side}", "")) for side in SIDES]}


def samples() -> Iterator[dict[str, Any]]:
    """The images that have annotations, by their names."""
    root = Path(os.environ["VOC"])
    for path in sorted(root.glob("Annotations/*.xml")):
        objects = [box_of(element) for element in ElementTree.parse(path).getroot().iter("object")]
        mask = root / "SegmentationClass" / f"{path.stem}.png"
        masks = {"mask.png": mask} if mask.exists() else {}
        yield {"__key__": path.stem, "jpg": root / "JPEGImages" / f"{path.stem}.jpg", "json": objects, **masks}
