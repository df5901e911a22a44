"""Opens a path that may be an image folder or shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastdata.errors import NotInStore
from fastdata.image_folder import ImageFolder
from fastdata.shards.dataset import ShardDataset
from fastdata.system.slow_storage import slow_storage

__all__ = ["holds_shards", "open_images", "slow_to_read"]


def open_images(path: str, transform: Callable[[Any], Any] | None = None) -> ImageFolder | ShardDataset | None:
    """Opens shards, or a folder with one folder of images per class; None if the path is neither.

    Args:
        path: a folder, or the URL of shards.
        transform: the dataset's transform.
    """
    if "://" in path:
        try:
            return ShardDataset(path, transform)
        except NotInStore:
            return None
    if holds_shards(Path(path)):
        return ShardDataset(path, transform)
    return ImageFolder(path, transform) if Path(path).is_dir() else None


def holds_shards(folder: Path) -> bool:
    """True for a folder with tar files or a manifest."""
    return (folder / "manifest.json").exists() or any(folder.glob("*.tar"))


def slow_to_read(path: str) -> str | None:
    """Says why reading the images of a path will be slow, and what helps; None if it will not, or for shards."""
    if "://" in path or any(map(holds_shards, (Path(path), *Path(path).glob("*/")))):
        return None
    return slow_storage(path)
