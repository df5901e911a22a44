"""Indexes of the JPEGs below a folder: kept in one file, found by the path of an image, checked before they are used.

An index says where the rows of a JPEG begin in its entropy-coded data, so that the native core decodes a window without
what lies around it (docs/format.md).  `fastdata index FOLDER` makes them (loaders/make_index.py) and keeps those of a
folder in one file in `index_folder()`.  Loaders ask there for every file that they read: which dataset names it does
not matter.  An image whose size or time of modification is another than when it was indexed is decoded without, and so
is one whose index is damaged or does not fit: an index may be missing or wrong, but never changes a pixel.
"""

from __future__ import annotations

import hashlib
import os
import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata import native
from fastdata.errors import DatasetError
from fastdata.native import IndexUse, JpegIndexes
from fastdata.system.files import cache_folder, whole_file

__all__ = [
    "FolderIndex",
    "Indexed",
    "Indexes",
    "index_file",
    "index_folder",
    "name_in_index",
    "open_indexes",
    "writing_indexes",
]

_SUFFIX = ".jpegindex"
_MOST_LETTERS = 40  # of a folder's name in that of its index
# Magic, version, bytes of the root's path, images, where the tables begin; then the CRC-32C of these and the tables.
_HEAD = struct.Struct("<8sIIQQ")
_BEGIN = _HEAD.size + 8  # of the indexes; with four zeros behind the checksum
_COLUMNS = 5
_MAGIC, _VERSION = b"FDJPEGIX", 1
_VARIABLE = "FASTDATA_INDEX_DIR"


class Indexed(NamedTuple):
    """An image and its index.

    Attributes:
        name: see `name_in_index`.
        file_bytes: size of its file.
        modified_ns: when that was modified, as in os.stat.
        stored: the index, as `Core.index_jpeg` gave it; empty for an image that is not decoded by one.
    """

    name: str
    file_bytes: int
    modified_ns: int
    stored: bytes

    def is_of(self, state: os.stat_result) -> bool:
        """True if there is an index, not damaged, of a file of this size and time."""
        is_whole = google_crc32c.value(self.stored[:-4]) == int.from_bytes(self.stored[-4:], "little")
        unchanged = (self.file_bytes, self.modified_ns) == (state.st_size, state.st_mtime_ns)
        return bool(self.stored) and is_whole and unchanged


def index_folder() -> Path:
    """Where indexes are kept: `$FASTDATA_INDEX_DIR`, or `$XDG_CACHE_HOME/fastdata/indexes`.

    Raises:
        RuntimeError: neither is set, and the user has no home.
    """
    named = os.environ.get(_VARIABLE)
    return Path(named) if named else cache_folder() / "indexes"


def index_file(root: str | os.PathLike[str], folder: Path) -> Path:
    """The file in which the indexes of a folder of images are kept."""
    whole = os.path.realpath(root)
    return folder / f"{Path(whole).name[:_MOST_LETTERS]}-{_key(whole):016x}{_SUFFIX}"


def is_below(path: str, folder: str) -> bool:
    """True for the folder itself and all that is in it."""
    return (path + os.sep).startswith(folder.rstrip(os.sep) + os.sep)


def name_in_index(path: str, offset: int) -> str:
    """What an image is called in an index.

    Args:
        path: of its file, relative to the folder.
        offset: where it begins in the file, which is 0 but for shards.
    """
    name = path.replace(os.sep, "/")
    return f"{name}:{offset}" if offset else name


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")


class FolderIndex:
    """The indexes of the JPEGs below one folder, in a file that is mapped into memory; see docs/format.md.

    Args:
        path: of the file.

    Raises:
        DatasetError: it is none, or damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        memory = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        if len(memory) < _BEGIN:
            raise self._damaged("it is too short")
        head = memory[: _HEAD.size].tobytes()
        magic, version, root_bytes, count, begin = _HEAD.unpack(head)
        if magic != _MAGIC or version != _VERSION:
            raise self._damaged("it is of another format or version")
        columns_at = begin + _padded(root_bytes)
        if begin % 8 or begin < _BEGIN or len(memory) != columns_at + 8 * _COLUMNS * count:
            raise self._damaged(f"it has {len(memory)} bytes, which is not what its head says")
        stored = int.from_bytes(memory[_HEAD.size : _BEGIN].tobytes(), "little")
        if google_crc32c.value(head + memory[begin:].tobytes()) != stored:
            raise self._damaged("its checksum is wrong")
        self.root = os.fsdecode(memory[begin : begin + root_bytes].tobytes())
        columns = memory[columns_at:].view(np.int64).reshape(_COLUMNS, count)
        self._keys = columns[0].view(np.uint64)
        self.file_bytes, self.modified_ns, self._begins, self._lengths = columns[1:]
        self._memory = memory
        outside = (self._begins < _BEGIN) | (self._begins > begin) | (self._lengths < 0)
        if np.any(outside | (self._lengths > begin - self._begins)):
            raise self._damaged("its table makes no sense")

    def _damaged(self, why: str) -> DatasetError:
        return DatasetError(f"{self.path} holds no indexes of images: {why}; delete it, or run `fastdata index` again")

    def __len__(self) -> int:
        return len(self._keys)

    def rows(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Which image each name is; -1 for those that are not known."""
        keys = np.array([_key(name) for name in names], np.uint64)
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, -1).astype(np.int64)

    def places(self, rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
        """Addresses and lengths of images' indexes."""
        return (self._memory.ctypes.data + self._begins[rows]).astype(np.uint64), self._lengths[rows]

    def find(self, name: str) -> Indexed | None:
        """One image."""
        row = int(self.rows([name])[0])
        if row < 0:
            return None
        begin, length = int(self._begins[row]), int(self._lengths[row])
        stored = self._memory[begin : begin + length].tobytes()
        return Indexed(name, int(self.file_bytes[row]), int(self.modified_ns[row]), stored)


@contextmanager
def writing_indexes(path: Path, root: str) -> Iterator[Callable[[Indexed], None]]:
    """Yields a function that adds an image to the file of a `FolderIndex`, which is written whole or not at all.

    Args:
        path: of the file.
        root: of the folder whose images are indexed.
    """
    rows: list[tuple[int, ...]] = []
    with whole_file(path) as file:

        def add(image: Indexed) -> None:
            place = file.tell(), len(image.stored)
            rows.append((_key(image.name), image.file_bytes, image.modified_ns, *place))
            file.write(image.stored)

        file.write(bytes(_BEGIN))
        yield add
        file.write(bytes(_padded(file.tell()) - file.tell()))
        begin, name = file.tell(), os.fsencode(root)
        keys = Counter(row[0] for row in rows)
        found = sorted(row for row in rows if keys[row[0]] == 1)  # of two with one key neither can be found
        kinds = (np.uint64, *(np.int64,) * (_COLUMNS - 1))
        columns = [np.array([row[number] for row in found], kind) for number, kind in enumerate(kinds)]
        tables = name.ljust(_padded(len(name)), b"\0") + b"".join(map(np.ndarray.tobytes, columns))
        file.write(tables)
        head = _HEAD.pack(_MAGIC, _VERSION, len(name), len(found), begin)
        file.seek(0)
        file.write(head + google_crc32c.value(head + tables).to_bytes(8, "little"))


def _padded(size: int) -> int:
    """Up to a multiple of 8."""
    return size + -size % 8


class Indexes:
    """All indexes that are there, for whoever decodes files.

    Args:
        folders: what is there; where several have an image, the first of these counts.

    Attributes:
        used: images that were decoded by one so far.
        wrong: images that had changed since, or whose index did not fit, and were decoded without.
    """

    def __init__(self, folders: Sequence[FolderIndex]) -> None:
        self._folders = list(folders)
        self._by_folder: dict[str, list[tuple[int, str]]] = {}
        self.used = self.wrong = 0

    def of(self, paths: Sequence[Any], offsets: npt.NDArray[np.int64] | None = None) -> JpegIndexes | None:
        """The indexes of some images; None if none of them has one.

        Args:
            paths: of their files; "" for images that are in memory.
            offsets: where each begins in its file; None for 0.
        """
        count = len(paths)
        begins = offsets.tolist() if offsets is not None else [0] * count
        found: dict[int, tuple[list[int], list[str]]] = {}  # by folder: rows, and what they are called there
        for row, (path, offset) in enumerate(zip(paths, begins, strict=True)):
            folder, name = os.path.split(path)
            for number, prefix in self._places_of(folder) if name else []:
                rows, names = found.setdefault(number, ([], []))
                rows.append(row)
                names.append(name_in_index(prefix + name, offset))
        if not found:
            return None
        lengths, file_bytes, modified_ns = (np.zeros(count, np.int64) for _ in range(3))
        addresses = np.zeros(count, np.uint64)
        for number, (rows, names) in sorted(found.items()):
            folder_index = self._folders[number]
            known, chosen = folder_index.rows(names), np.array(rows, np.intp)
            is_new = (known >= 0) & (addresses[chosen] == 0)
            known, chosen = known[is_new], chosen[is_new]
            addresses[chosen], lengths[chosen] = folder_index.places(known)
            file_bytes[chosen], modified_ns[chosen] = folder_index.file_bytes[known], folder_index.modified_ns[known]
        return JpegIndexes(
            addresses=addresses,
            lengths=lengths,
            file_bytes=file_bytes,
            modified_ns=modified_ns,
            memory=self._folders,
            uses=np.zeros(count, np.int32),
        )

    def file_of(self, path: Any, offset: int = 0) -> Path | None:
        """Where the index of an image is, if it has one."""
        folder, name = os.path.split(path)
        for number, prefix in self._places_of(folder) if name else []:
            if self._folders[number].rows([name_in_index(prefix + name, offset)])[0] >= 0:
                return self._folders[number].path
        return None

    def note(self, indexes: JpegIndexes | None) -> None:
        """Counts what became of them; says once that some are wrong."""
        if indexes is None:
            return
        used, wrong = (int(np.count_nonzero(indexes.uses == use)) for use in (IndexUse.USED, IndexUse.WRONG))
        is_first = wrong and not self.wrong
        self.used, self.wrong = self.used + used, self.wrong + wrong  # no lock, which a fork could find taken
        if is_first:
            warnings.warn(
                "images have changed since `fastdata index` was run, or their index is damaged: they are decoded "
                "without it; run it again",
                stacklevel=2,
            )

    def _places_of(self, folder: str) -> list[tuple[int, str]]:
        """Which indexes may have a folder's files, and what comes before their names there."""
        if not os.path.isabs(folder):
            folder = os.path.abspath(folder)
        if folder in self._by_folder:
            return self._by_folder[folder]
        places = []
        for number, each in enumerate(self._folders):
            for whole in (folder, os.path.realpath(folder)):  # a link to a folder is below its own folder
                if is_below(whole, each.root):
                    relative = os.path.relpath(whole, each.root)
                    places.append((number, "" if relative == os.curdir else relative.replace(os.sep, "/") + "/"))
                    break
        self._by_folder[folder] = places
        return places


def open_indexes() -> Indexes | None:
    """The indexes that are there now; None if there are none, or no core that uses them."""
    if native.available() is None:
        return None
    try:
        with os.scandir(index_folder()) as entries:
            found = [(_modified_ns(each), each.path) for each in entries if each.name.endswith(_SUFFIX)]
    except (OSError, RuntimeError):  # there is no such folder, or no home
        return None
    return _opened(tuple(sorted(found, reverse=True))) if found else None  # the newest first


def _modified_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:  # gone meanwhile
        return 0


@lru_cache(maxsize=4)
def _opened(state: tuple[tuple[int, str], ...]) -> Indexes | None:
    folders = []
    for _, path in state:
        try:
            folders.append(FolderIndex(Path(path)))
        except (DatasetError, OSError) as error:
            warnings.warn(f"not used: {error}", stacklevel=2)
    return Indexes(folders) if folders else None
