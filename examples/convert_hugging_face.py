"""A Hugging Face dataset of images as shards: encoded images as they are stored, labels with their names.

    fastdata convert --from convert_hugging_face:samples SHARDS

In the folder of this file, with HF_DATASET=uoft-cs/cifar10, or a folder of save_to_disk, and HF_SPLIT=train.  The
columns are called "image" or "img", and "label".
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datasets import Dataset, Image, load_dataset, load_from_disk

NAME, SPLIT = os.environ["HF_DATASET"], os.environ.get("HF_SPLIT", "train")


def opened() -> Dataset:
    """The split, from a folder or from the hub; of several in a folder the one that is asked for."""
    found = load_from_disk(NAME) if Path(NAME).is_dir() else load_dataset(NAME, split=SPLIT)
    return found if isinstance(found, Dataset) else found[SPLIT]


DATASET = opened()
COLUMN = next(name for name in ("image", "img") if name in DATASET.column_names)


def samples() -> Iterator[dict[str, Any]]:
    """Every row; images are not decoded."""
    for number, row in enumerate(DATASET.cast_column(COLUMN, Image(decode=False))):
        yield {"__key__": f"{number:09}", "img": row[COLUMN]["bytes"] or Path(row[COLUMN]["path"]), "cls": row["label"]}


samples.classes = getattr(DATASET.features["label"], "names", None)
