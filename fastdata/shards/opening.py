"""Opening a path of which only the content says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastdata.datasets import ImageFolder
from fastdata.errors import NotInStore
from fastdata.shards.dataset import ShardDataset
from fastdata.storage import holds_shards

__all__ = ["open_images"]


def open_images(path: str, transform: Callable[[Any], Any] | None = None) -> ImageFolder | ShardDataset | None:
    """Shards or a folder with a folder of images per class; None when there is neither.

    Args:
        path: a folder, or the URL of shards.
        transform: of the dataset.
    """
    if "://" in path:
        try:
            return ShardDataset(path, transform)
        except NotInStore:
            return None
    if holds_shards(Path(path)):
        return ShardDataset(path, transform)
    return ImageFolder(path, transform) if Path(path).is_dir() else None
