"""Finds the index of a JPEG, with which the native core decodes a window without the data around it.

Indexes of the files in a folder are kept in one file in that folder (folder_index.py), or in `index_folder()` if the
folder is read-only; `fastdata index FOLDER` makes them (make.py).  Indexes of the images in a tar file are kept beside
it, where `fastdata convert` writes them.  Loaders look up every file that they read, whatever dataset names it.  An
image that has changed since it was indexed is decoded without its index, and so is one whose index is damaged or does
not fit: an index may be missing, old or damaged, but never changes a pixel.  (An index that was falsified on purpose,
with valid checksums, may.)
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata import native
from fastdata.jpeg_index.folder_index import FolderIndexes, opened
from fastdata.jpeg_index.index_file import ANY_TIME, SUFFIX, IndexFile, index_beside, name_in_folder, name_in_tar
from fastdata.native import IndexUse, JpegIndexes
from fastdata.system.files import cache_folder
from fastdata.system.stack_level import users_level

__all__ = ["Indexes", "index_folder", "index_of_folder", "is_below", "named_folder", "open_indexes"]

_MOST_LETTERS = 40  # characters of a folder's name in its index's file name
_VARIABLE = "FASTDATA_INDEX_DIR"


def index_folder() -> Path:
    """Folder for indexes of read-only folders: `$FASTDATA_INDEX_DIR`, or `$XDG_CACHE_HOME/fastdata/indexes`.

    Raises:
        RuntimeError: neither is set, and the user has no home folder.
    """
    return named_folder() or cache_folder() / "indexes"


def named_folder() -> Path | None:
    """Returns the folder that `$FASTDATA_INDEX_DIR` names; None if it is not set."""
    named = os.environ.get(_VARIABLE)
    return Path(named) if named else None


def index_of_folder(root: str | os.PathLike[str], folder: Path) -> Path:
    """Returns the path, in `folder`, of the file with the indexes of an image folder."""
    whole = os.path.realpath(root)
    return folder / f"{Path(whole).name[:_MOST_LETTERS]}-{_hash_of(whole)}{SUFFIX}"


def is_below(path: str, folder: str) -> bool:
    """True for the folder itself and everything in it."""
    return (path + os.sep).startswith(folder.rstrip(os.sep) + os.sep)


def _hash_of(path: str) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()


@dataclass
class Uses:
    """Counts of indexes that were used, and that were wrong.

    Attributes:
        used: images that were decoded with an index.
        wrong: images that were decoded without their index, since they had changed or it did not fit.
    """

    used: int = 0
    wrong: int = 0

    def forget(self) -> None:
        """Resets the counts to zero, after an index was replaced."""
        self.used = self.wrong = 0


_Place = tuple[tuple[int, str], IndexFile, str]  # sort key (lower is preferred), index, and prefix of names in it


class Indexes:
    """The indexes that are available in one epoch, for decoding files.

    Args:
        folders: indexes that are kept outside of the image folders; the first that has an image is used.
        uses: counts of used and wrong indexes.
        inside: indexes in the folders of the images, which take precedence; None for none.
    """

    def __init__(
        self, folders: Sequence[IndexFile], uses: Uses | None = None, inside: FolderIndexes | None = None
    ) -> None:
        self._folders, self._inside = list(folders), inside
        self._places: dict[str, list[_Place]] = {}
        self._beside: dict[str, IndexFile | None] = {}
        self.uses = uses if uses is not None else Uses()

    def of(self, paths: Sequence[Any], offsets: npt.NDArray[np.int64] | None = None) -> JpegIndexes | None:
        """Returns the indexes of some images; None if none of them has one.

        Args:
            paths: paths of their files; "" for images that are in memory.
            offsets: offset in bytes of each image in its file; None for 0.
        """
        if not self._folders and self._inside is None and offsets is None:
            return None
        count = len(paths)
        begins = offsets.tolist() if offsets is not None else [0] * count
        asked: dict[tuple[int, str], tuple[IndexFile, list[int], list[str]]] = {}  # by file: rows and names
        for row, (path, offset) in enumerate(zip(paths, begins, strict=True)):
            for order, file, name in self._candidates(path, offset):
                _, rows, names = asked.setdefault(order, (file, [], []))
                rows.append(row)
                names.append(name)
        if not asked:
            return None
        file_bytes, modified_ns = (np.zeros(count, np.int64) for _ in range(2))
        stored: list[bytes | None] = [None] * count
        has_one = np.zeros(count, np.bool_)
        for _, (file, rows, names) in sorted(asked.items(), key=lambda each: each[0]):
            known, chosen = file.rows(names), np.array(rows, np.intp)
            is_new = (known >= 0) & ~has_one[chosen]
            known, chosen = known[is_new], chosen[is_new]
            has_one[chosen] = True
            for row, index in zip(chosen.tolist(), file.read(known), strict=True):
                stored[row] = index
            file_bytes[chosen] = file.file_bytes[known]
            # In a copy of a folder, times may differ; the checksum of the image is enough.
            modified_ns[chosen] = file.modified_ns[known] if file.root else ANY_TIME
        return replace(JpegIndexes.of(stored), file_bytes=file_bytes, modified_ns=modified_ns)

    def file_of(self, path: Any, offset: int = 0) -> Path | None:
        """Returns the path of the file that holds an image's index; None if it has no index."""
        files = (file for _, file, name in self._candidates(path, offset) if file.rows([name])[0] >= 0)
        return next((file.path for file in files), None)

    def note(self, indexes: JpegIndexes | None) -> None:
        """Counts the used and wrong indexes of a call; warns once if some are wrong."""
        if indexes is None:
            return
        used, wrong = (int(np.count_nonzero(indexes.uses == use)) for use in (IndexUse.USED, IndexUse.WRONG))
        is_first = wrong and not self.uses.wrong
        self.uses.used += used  # no lock, which a fork could find taken
        self.uses.wrong += wrong
        if is_first:
            warnings.warn(
                "images have changed since they were indexed, or their index is damaged: they are decoded without it; "
                "run `fastdata index` again",
                stacklevel=users_level(),
            )

    def _candidates(self, path: Any, offset: int) -> Iterator[tuple[tuple[int, str], IndexFile, str]]:
        """Yields sort keys (lower is preferred), files that may have an image's index, and its name there."""
        if offset and path:  # it is in a tar file
            name = os.fspath(path)
            if (beside := self._of_tar(name)) is not None:
                yield (0, name), beside, name_in_tar(offset)
            return
        folder, name = os.path.split(path)
        for order, file, prefix in self._places_of(folder) if name else []:
            yield order, file, name_in_folder(prefix + name)

    def _of_tar(self, path: str) -> IndexFile | None:
        if path not in self._beside:
            self._beside[path] = opened(index_beside(path), missing_ok=True)
        return self._beside[path]

    def _places_of(self, folder: str) -> list[_Place]:
        """Returns the indexes that may have a folder's files, and the prefix of their names there."""
        if folder not in self._places:
            whole = folder if os.path.isabs(folder) else os.path.abspath(folder)
            spelled = dict.fromkeys((whole, os.path.realpath(whole)))  # a link to a folder is below its own folder
            self._places[folder] = [*self._places_inside(spelled), *self._places_elsewhere(spelled)]
        return self._places[folder]

    def _places_inside(self, spelled: Iterable[str]) -> Iterator[_Place]:
        if self._inside is None:
            return
        for whole in spelled:
            found_above = self._inside.above(whole)
            if self._inside.take_replaced():
                self.uses.forget()
            for found in found_above:
                yield (-found.file.written_ns, found.root), found.file, _prefix(whole, found.root)

    def _places_elsewhere(self, spelled: Iterable[str]) -> Iterator[_Place]:
        for number, file in enumerate(self._folders):
            whole = next((each for each in spelled if is_below(each, file.root)), None)
            if whole is not None:
                yield (number, ""), file, _prefix(whole, file.root)


def _prefix(folder: str, root: str) -> str:
    """Returns the prefix of a folder's file names in the index of a folder that contains it."""
    relative = os.path.relpath(folder, root)
    return "" if relative == os.curdir else relative.replace(os.sep, "/") + "/"


def open_indexes() -> Indexes:
    """Returns the indexes that are available now, for one epoch; none if there is no core to use them."""
    if native.available() is None:
        return Indexes([])
    folder, found = Path(), []
    with suppress(OSError, RuntimeError):  # there is no such folder, or no home
        folder = index_folder()
        with os.scandir(folder) as entries:
            found = [(_modified_ns(each), each.path) for each in entries if each.name.endswith(SUFFIX)]
    elsewhere, uses = _opened_folders(folder, tuple(sorted(found, reverse=True)))  # the newest first
    return Indexes(elsewhere, uses, FolderIndexes())


def _modified_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:  # gone meanwhile
        return 0


@lru_cache(maxsize=4)
def _opened_folders(folder: Path, state: tuple[tuple[int, str], ...]) -> tuple[list[IndexFile], Uses]:
    """Opens the index files, with one count of uses for all epochs; again if something in the folder has changed."""
    files = [opened(path) for _, path in state]
    return [file for file in files if file is not None], Uses()
