"""Datasets that a command is given: shards and their splits, or a folder with the usual training transform."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError
from fastdata.shards.format import MANIFEST_NAME

__all__ = ["add_dataset", "datasets_in", "open_folder", "refuse_splits"]


def open_folder(folder: str) -> Any:
    """A dataset of FOLDER/CLASS/IMAGE, or of shards.

    Raises:
        DatasetError: it holds no images, or the splits of a dataset.
    """
    from fastdata import ImageFolder, transforms
    from fastdata.shards.open_images import open_images

    refuse_splits(Path(folder))
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(transforms.IMAGENET_MEAN, transforms.IMAGENET_STD),
        ]
    )
    dataset = open_images(folder, transform)
    return dataset if dataset is not None else ImageFolder(folder, transform)  # which says what is wrong with it


def refuse_splits(folder: Path) -> None:
    """Folders called train and val are not two classes."""
    from fastdata.shards.open_images import holds_shards

    if not holds_shards(folder) and all((folder / split).is_dir() for split in ("train", "val")):
        raise DatasetError(f"{folder} contains the splits train and val; name one of them: {folder / 'train'}")


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Adds the argument DATASET, for `datasets_in`."""
    parser.add_argument(
        "dataset", help="a folder written by fastdata convert, or its URL (with splits: of one of them)"
    )


def datasets_in(place: str) -> Sequence[str | Path]:
    """The dataset in a folder, or those of its splits; of a URL, itself."""
    if "://" in place:
        return [place]
    path = Path(place)
    splits = sorted(found.parent for found in path.glob(f"*/{MANIFEST_NAME}"))
    return splits if splits and not (path / MANIFEST_NAME).exists() else [path]
