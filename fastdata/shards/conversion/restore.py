"""Makes files of the images in shards again (`fastdata restore`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fastdata.errors import ConversionError
from fastdata.shards.conversion.recode import described
from fastdata.shards.dataset import ShardDataset
from fastdata.system.ahead import in_order

__all__ = ["check_empty", "restore_folder"]


def check_empty(destination: str | os.PathLike[str]) -> None:
    """Raises ConversionError unless a folder is empty, or does not exist."""
    folder = Path(destination)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConversionError(f"{destination} is not an empty folder; choose another destination")


def restore_folder(
    dataset: ShardDataset,
    destination: str | os.PathLike[str],
    *,
    threads: int = 1,
    on_image: Callable[[], object] = lambda: None,
) -> int:
    """Writes every image of a dataset into a file KEY.EXTENSION; unpacked JPEGs as the files that they were made of.

    Args:
        dataset: the shards.
        destination: a folder that is empty or does not exist.
        threads: that read and write.
        on_image: called after each image.

    Returns:
        The number of files.

    Raises:
        ConversionError: there is something in the destination, or a key leads out of it.
        ShardError: an image is damaged.
        OSError: a file cannot be written.
    """
    check_empty(destination)
    folder = Path(os.path.abspath(destination))

    def write(image: tuple[int, str]) -> None:
        index, key = image
        data = dataset.read_encoded(index)
        path = Path(os.path.abspath(folder / f"{key}.{described(data).extension}"))
        if not path.is_relative_to(folder):
            raise ConversionError(f"the key {key!r} leads out of {destination}; no file is written for it")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(data)
        except FileExistsError as error:
            raise ConversionError(
                f"two images have the key {key!r}, so both would be {path}; restore the shards one by one, from "
                "folders of their own"
            ) from error

    for _ in in_order(write, enumerate(dataset.keys()), threads=threads, name="fastdata-restore"):
        on_image()
    return len(dataset)
