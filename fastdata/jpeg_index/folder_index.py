"""The index of a folder of images, kept in the folder itself as one hidden file.

It holds no path, so it is found wherever the folder is mounted, copied or moved to.  It is not a folder, since
torchvision takes every folder in an image folder for a class.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastdata.errors import DatasetError
from fastdata.jpeg_index.index_file import SUFFIX, IndexFile
from fastdata.system.stack_level import users_level

__all__ = ["FolderIndexes", "index_in", "is_writable", "opened"]

_NAME = f".fastdata{SUFFIX}"

_State = tuple[int, int, int]


def index_in(root: str | os.PathLike[str]) -> Path:
    """Returns the path of the index of a folder's images in that folder."""
    return Path(root) / _NAME


def is_writable(folder: str | os.PathLike[str]) -> bool:
    """True if a file can be made in a folder."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def opened(path: str | os.PathLike[str], *, missing_ok: bool = False) -> IndexFile | None:
    """Opens an index file; returns None, with a warning, if it cannot be used."""
    try:
        return IndexFile(Path(path))
    except (DatasetError, OSError) as error:
        if not (missing_ok and type(error) is FileNotFoundError):
            warnings.warn(f"not used: {error}", stacklevel=users_level())
        return None


@dataclass(frozen=True)
class Found:
    """An index found in a folder.

    Attributes:
        file: the index.
        root: the folder, as the path of the image spells it.
    """

    file: IndexFile
    root: str


class FolderIndexes:
    """The indexes in image folders, looked up once for each folder and epoch; files are read once in a process."""

    _known: ClassVar[dict[str, tuple[_State, IndexFile | None]]] = {}  # by path, for all epochs

    def __init__(self) -> None:
        self._above: dict[str, tuple[Found, ...]] = {}
        self._has_replaced = False

    def take_replaced(self) -> bool:
        """Returns True if an index was found, since the last call, in place of another one."""
        self._has_replaced, has_replaced = False, self._has_replaced
        return has_replaced

    def above(self, folder: str) -> tuple[Found, ...]:
        """Returns the indexes in a folder and in its parent folders, the newest first.

        Args:
            folder: an absolute path.
        """
        if folder in self._above:
            return self._above[folder]
        parent = os.path.dirname(folder)
        found: tuple[Found, ...] = self.above(parent) if parent != folder else ()
        here = self._in(folder) if parent != folder else None  # never in /
        if here is not None:
            found = tuple(sorted((here, *found), key=lambda each: -each.file.written_ns))
        self._above[folder] = found
        return found

    def _in(self, folder: str) -> Found | None:
        path = os.path.join(folder, _NAME)
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None
        state = status.st_size, status.st_mtime_ns, status.st_ino
        before = self._known.get(path)
        if before is None or before[0] != state:
            self._has_replaced |= before is not None
            self._known[path] = state, opened(path)
        file = self._known[path][1]
        return Found(file, folder) if file is not None else None
