"""Folders of images and of shards: what is in them, copies of them, and damage to them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata import ImageFolder

SHARD_BYTES = 60_000  # the test folder becomes several shards


def tree(folder: Path) -> dict[str, bytes]:
    """Every file, by its path inside."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def originals(folder: Path) -> list[tuple[bytes, int]]:
    """The files of an image folder with their labels."""
    return [(Path(path).read_bytes(), label) for path, label in ImageFolder(folder).samples]


def numbered(dataset: Any) -> Any:
    """The same image folder, with the samples' numbers for labels."""
    made = copy.copy(dataset)
    made.samples = [(path, number) for number, (path, _) in enumerate(dataset.samples)]
    return made


def changed_copy(folder: Path, to: Path, files: Mapping[str, bytes]) -> Path:
    """A copy in which some files are others."""
    shutil.copytree(folder, to)
    for name, data in files.items():
        (to / name).write_bytes(data)
    return to


def flip(path: Path, at: int) -> None:
    """Flips a bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
