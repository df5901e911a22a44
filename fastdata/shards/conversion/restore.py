"""Makes files of the images in shards again (`fastdata restore`)."""

from __future__ import annotations

import os
import posixpath
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from fastdata.errors import ConversionError, ShardError
from fastdata.shards.conversion.recode import described
from fastdata.shards.dataset import MemberPlace, ShardDataset
from fastdata.shards.format import crc32c
from fastdata.system.disk_space import space_errors
from fastdata.system.files import read_file
from fastdata.system.ordered_map import in_order

__all__ = ["Restored", "check_empty", "restore_folder"]


class Restored(NamedTuple):
    """Result of restoring a folder.

    Attributes:
        files: number of files that exist now.
        damaged: the images that have no file, each with the reason.
    """

    files: int
    damaged: list[str]


def check_empty(destination: str | os.PathLike[str]) -> None:
    """Raises ConversionError unless a folder is empty, or does not exist."""
    folder = Path(destination)
    _check_is_folder(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConversionError(
            f"{destination} is not an empty folder; choose another destination, or go on with an earlier run: "
            "resume=True (--resume)"
        )


def _check_is_folder(path: Path) -> None:
    """Raises ConversionError if there is a file where the folder is to be, or in its path."""
    there = next((each for each in (path, *path.parents) if each.exists()), None)
    if there is not None and not there.is_dir():
        raise ConversionError(f"{there} is a file; name a folder that is empty or does not exist")


def restore_folder(
    dataset: ShardDataset,
    destination: str | os.PathLike[str],
    *,
    threads: int = 1,
    resume: bool = False,
    on_error: Literal["raise", "skip"] = "raise",
    on_image: Callable[[], object] = lambda: None,
) -> Restored:
    """Writes every image of a dataset into a file with the path that it had in the source of the conversion.

    What belongs to an image beside its class becomes files beside it, named by their fields: 1.json, 1.mask.png.

    Where the shards do not say it, as those of earlier versions, the path is KEY.EXTENSION.  Unpacked JPEGs become the
    files that they were made of.

    Args:
        dataset: the shards.
        destination: a folder that is empty or does not exist.
        threads: number of threads that read and write.
        resume: go on in a destination with files of an earlier run; those with the right bytes are kept.
        on_error: policy for a damaged image: "raise", or "skip", which lists it.
        on_image: called after each image.

    Raises:
        ConversionError: there is something in the destination, or a path leads out of it, or two images have the same
            path, in the destination's file system; or the disk is full.
        ShardError: an image is damaged.
        OSError: a file cannot be written.
    """
    if resume:
        _check_is_folder(Path(destination))
    else:
        check_empty(destination)
    files = _Files(Path(os.path.abspath(destination)), resume=resume)

    def write(sample: tuple[int, tuple[str, str, dict[str, MemberPlace]]]) -> str | None:
        index, (key, path, members) = sample
        try:
            data = dataset.read_encoded(index)
            contents = {field: dataset.read_member(index, place) for field, place in members.items()}
        except ShardError as error:
            if on_error == "raise":
                raise
            return f"{key}: {error}"
        name = path or f"{key}.{described(data).extension}"
        files.put(index, name, data)
        for field, content in contents.items():
            files.put(index, f"{posixpath.splitext(name)[0]}.{field}", content, is_field=True)
        return None

    damaged = []
    samples = enumerate(zip(dataset.keys(), dataset.source_paths(), dataset.members(), strict=True))
    for problem in in_order(write, samples, threads=threads, name="fastdata-restore"):
        if problem is not None:
            damaged.append(problem)
        on_image()
    return Restored(len(dataset) - len(damaged), damaged)


class _Files:
    """Puts images into files below a folder, from several threads; a file is there whole or not at all."""

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self._folder, self._resume = folder, resume
        self._taken: dict[Path, int] = {}  # checksums
        self._lock = threading.Lock()

    def put(self, index: int, name: str, data: bytes, *, is_field: bool = False) -> None:
        path = Path(os.path.abspath(self._folder / name))
        if not path.is_relative_to(self._folder):
            raise ConversionError(f"the name {name!r} leads out of {self._folder}; no file is written for it")
        with self._lock:
            is_first = path not in self._taken
            known = self._taken.setdefault(path, crc32c(data))
        if not is_first and is_field and known == crc32c(data):  # 1.txt of 1.jpg and of 1.png
            return
        if not is_first:
            raise ConversionError(
                f"two images would be {path}; restore the shards one by one, from folders of their own"
            )
        if self._resume and path.exists() and self._is_named_so(path):
            if read_file(path) != data:
                raise ConversionError(
                    f"{path} is there and has other bytes than the image; remove it, or choose another destination"
                )
            return
        if not self._write(path, path.with_name(f".{index}.partial"), data):
            raise ConversionError(
                f"{path} is there already: another image has a name that is the same in this file system (which does "
                "not tell small letters from capitals); choose a destination in a file system that does"
            )

    @staticmethod
    def _is_named_so(path: Path) -> bool:
        """True unless the file that is found has a name in other letters."""
        with os.scandir(path.parent) as entries:
            return any(entry.name == path.name for entry in entries)

    def _write(self, path: Path, partial: Path, data: bytes) -> bool:
        """Writes a file; False if one exists under another spelling, on file systems where IMG and img are one name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with space_errors(path, "free some space and go on with --resume (resume=True)"):
                partial.write_bytes(data)
            with self._lock:
                if not path.exists():
                    partial.replace(path)
                    return True
            return False
        finally:
            partial.unlink(missing_ok=True)
