"""A file with the indexes of JPEGs, of a folder's images or of the images in a tar file.

An index holds the positions at which the rows of a JPEG begin in its entropy-coded data; docs/format.md describes
both it and the file.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.errors import DatasetError
from fastdata.limits import check_encoded_bytes
from fastdata.system.files import NotRegularFile, open_file, whole_file

__all__ = [
    "ANY_TIME",
    "SUFFIX",
    "Indexed",
    "IndexFile",
    "index_beside",
    "is_beside",
    "name_in_folder",
    "name_in_tar",
    "path_beside",
    "writing_indexes",
]

SUFFIX = ".jpegindex"
ANY_TIME = -1  # modification time that is not compared: the image's checksum is enough

# Magic, version, bytes of the root's path, images, offset of the tables; then the CRC-32C of these and the tables.
_HEAD = struct.Struct("<8sIIQQ")
_BEGIN = _HEAD.size + 8  # offset of the first index; four zeros follow the checksum
_COLUMNS = 5
_MAGIC, _VERSION = b"FDJPEGIX", 2


class Indexed(NamedTuple):
    """An image and its index.

    Attributes:
        name: name from `name_in_folder` or `name_in_tar`.
        file_bytes: size of its file, or of the tar file that it is in.
        modified_ns: modification time of that file, as in os.stat; `ANY_TIME` if it does not matter.
        stored: the index, as `Core.index_jpeg` returned it; empty for an image that is not decoded with one.
    """

    name: str
    file_bytes: int
    modified_ns: int
    stored: bytes

    def is_of(self, state: os.stat_result) -> bool:
        """True if the index exists, is not damaged, and belongs to a file of this size and modification time."""
        is_whole = google_crc32c.value(self.stored[:-4]) == int.from_bytes(self.stored[-4:], "little")
        unchanged = (self.file_bytes, self.modified_ns) == (state.st_size, state.st_mtime_ns)
        return bool(self.stored) and is_whole and unchanged


def name_in_folder(path: str) -> str:
    """Returns the name of an image in the indexes of a folder.

    Args:
        path: path of its file, relative to the folder.
    """
    return path.replace(os.sep, "/")


def name_in_tar(offset: int) -> str:
    """Returns the name of an image in the indexes of a tar file, from the offset of its first byte."""
    return f":{offset}"


def index_beside(tar: str) -> str:
    """Returns the path or URL of the indexes of the images in a tar file."""
    return tar.removesuffix(".tar") + SUFFIX


def path_beside(tar: str | os.PathLike[str]) -> Path:
    """Returns the path of the indexes of the images in a tar file, as a `Path`."""
    return Path(index_beside(os.fspath(tar)))


def is_beside(tar: str | os.PathLike[str], size: int) -> bool:
    """True if the indexes of a tar file exist with this size, or the size is 0, which means that there are none."""
    try:
        return not size or path_beside(tar).stat().st_size == size
    except FileNotFoundError:
        return False


def _key(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")


class IndexFile:
    """The indexes of the JPEGs below one folder, or in one tar file; see docs/format.md.

    Args:
        path: path of the file.

    Raises:
        DatasetError: it is not an index file, or damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._opened() as file:
            self._state = _state_of(file)
            size = self._state[0]
            head = file.read(_BEGIN)
            if len(head) < _BEGIN:
                raise self._damaged("it is too short")
            magic, version, root_bytes, count, begin = _HEAD.unpack(head[: _HEAD.size])
            if magic != _MAGIC or version != _VERSION:
                raise self._damaged("it is of another format or version")
            if begin % 8 or begin < _BEGIN or size != begin + _padded(root_bytes) + 8 * _COLUMNS * count:
                raise self._damaged(f"it has {size} bytes, which is not what its head says")
            file.seek(begin)
            tables = file.read()
        if google_crc32c.value(head[: _HEAD.size] + tables) != int.from_bytes(head[_HEAD.size :], "little"):
            raise self._damaged("its checksum is wrong")
        self.root = os.fsdecode(tables[:root_bytes])
        columns = np.frombuffer(tables, np.int64, _COLUMNS * count, _padded(root_bytes)).reshape(_COLUMNS, count)
        self._keys = columns[0].view(np.uint64)
        self.file_bytes, self.modified_ns, self._begins, self._lengths = columns[1:]
        outside = (self._begins < _BEGIN) | (self._begins > begin) | (self._lengths < 0)
        if np.any(outside | (self._lengths > begin - self._begins)):
            raise self._damaged("its table makes no sense")

    @property
    def written_ns(self) -> int:
        """Modification time of the file, in nanoseconds since 1970."""
        return self._state[1]

    def _opened(self) -> IO[bytes]:
        try:
            return open_file(self.path)
        except NotRegularFile as error:
            raise self._damaged("it is not a regular file") from error

    def _damaged(self, why: str) -> DatasetError:
        return DatasetError(f"{self.path} holds no indexes of images: {why}; delete it, or run `fastdata index` again")

    def __len__(self) -> int:
        return len(self._keys)

    def rows(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """int64, (N,): row of each named image; -1 for unknown names."""
        keys = np.array([_key(name) for name in names], np.uint64)
        if not len(self._keys):
            return np.full(len(keys), -1, np.int64)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, at, -1).astype(np.int64)

    def read(self, rows: npt.NDArray[np.int64]) -> list[bytes]:
        """Reads the indexes of some images; empty if there is none, and all empty if the file was replaced meanwhile.

        The file is opened for this call only: a dataset may have thousands of such files, and a memory-mapped file ends
        the process if it is truncated.
        """
        begins, lengths = self._begins[rows].tolist(), self._lengths[rows].tolist()
        found = []
        try:
            with open_file(self.path, buffering=0) as file:
                if _state_of(file) != self._state:
                    return [b""] * len(lengths)
                for begin, length in zip(begins, lengths, strict=True):
                    check_encoded_bytes(length, f"the index of an image in {self.path}")
                    file.seek(begin)
                    found.append(file.read(length))
        except OSError:
            return [b""] * len(lengths)
        return found

    def find(self, name: str) -> Indexed | None:
        """Returns one image and its index; None if the name is unknown."""
        row = int(self.rows([name])[0])
        if row < 0:
            return None
        (stored,) = self.read(np.array([row]))
        return Indexed(name, int(self.file_bytes[row]), int(self.modified_ns[row]), stored)


def _state_of(file: IO[bytes]) -> tuple[int, ...]:
    """Returns size, modification time and inode of a file, which differ if it was replaced or changed."""
    state = os.fstat(file.fileno())
    return state.st_size, state.st_mtime_ns, state.st_ino


@contextmanager
def writing_indexes(path: Path, root: str) -> Iterator[Callable[[Indexed], None]]:
    """Yields a function that adds an image to an index file, which is written whole or not at all.

    Args:
        path: path of the file.
        root: folder whose images are indexed; "" if the file lies in it or beside a tar file.
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
        found = sorted(row for row in rows if keys[row[0]] == 1)  # if two names have one key, neither can be found
        kinds = (np.uint64, *(np.int64,) * (_COLUMNS - 1))
        columns = [np.array([row[number] for row in found], kind) for number, kind in enumerate(kinds)]
        tables = name.ljust(_padded(len(name)), b"\0") + b"".join(map(np.ndarray.tobytes, columns))
        file.write(tables)
        head = _HEAD.pack(_MAGIC, _VERSION, len(name), len(found), begin)
        file.seek(0)
        file.write(head + google_crc32c.value(head + tables).to_bytes(8, "little"))


def _padded(size: int) -> int:
    """Rounds a size up to a multiple of 8."""
    return size + -size % 8
