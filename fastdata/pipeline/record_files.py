"""The files of a cache of unpacked JPEGs: what processes append to a folder, and a table of all that is there.

Each process appends to two files of its own, which others read from their next epoch on; docs/format.md describes them:

    HOST-PROCESS-TOKEN.records    records, one after the other
    HOST-PROCESS-TOKEN.index      "FDCACHE1", then an entry for each record (`ENTRY`), written after it

An entry has a check of its own, and the CRC-32C of its record, which is compared whenever that is read.  What does not
fit is left alone.  (A cache that was falsified on purpose, with valid checks, may give other pixels.)  Of several
entries for one image the one counts that was written last.
"""

from __future__ import annotations

import errno
import os
import socket
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

__all__ = ["CHUNK_BYTES", "KNOWN", "Keys", "OwnFiles", "Table", "bytes_of", "entry_of", "new_entries", "unread"]

Keys: TypeAlias = npt.NDArray[np.uint64]  # (N, 2), or (2,) for one image

CHUNK_BYTES = 16 << 20  # by which a process reserves room
_MAGIC = b"FDCACHE1"
# length 0: the image has no record, because it is no JPEG or a damaged one.  check: of the other fields.
ENTRY = np.dtype([("key", "<u8", 2), ("offset", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("check", "<u4")])
KNOWN = np.dtype([("key", "<u8", 2), ("offset", "<i8"), ("length", "<i8"), ("crc", "<i8"), ("file", "<i8")])
_FACTORS = np.array(
    [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0xD3A2646D, 0xFD7046C5, 0xB55A4F09], np.uint64
)


@dataclass(frozen=True)
class Table:
    """Entries known at one time; never changed, so that threads may read it while another one is made.

    Attributes:
        known: dtype `KNOWN`, sorted by key, one entry for each.
    """

    known: npt.NDArray[Any]

    @classmethod
    def of(cls, parts: Sequence[npt.NDArray[Any]]) -> Table:
        """Merges entries; of those with one key the last counts, and none if its file is -1."""
        merged = np.concatenate(parts) if parts else np.empty(0, KNOWN)
        merged = merged[np.lexsort((merged["key"][:, 1], merged["key"][:, 0]))]  # stable
        is_last = np.ones(len(merged), np.bool_)
        is_last[:-1] = (merged["key"][1:] != merged["key"][:-1]).any(axis=1)
        merged = merged[is_last]
        return cls(merged[merged["file"] >= 0])

    def find(self, keys: Keys) -> npt.NDArray[Any]:
        """The entries of N images: dtype `KNOWN`, (N,); `file` is -1 where there is none."""
        found, known = np.zeros(len(keys), KNOWN), self.known
        found["file"] = -1
        if len(known):
            rows = np.minimum(np.searchsorted(known["key"][:, 0], keys[:, 0]), len(known) - 1)
            is_known = (known["key"][rows] == keys).all(axis=1)
            found[is_known] = known[rows[is_known]]
        return found

    @property
    def records(self) -> int:
        """Number of images that have a record."""
        return int(np.count_nonzero(self.known["length"]))


def entry_of(key: Keys, offset: int, length: int, crc: int, file: int) -> npt.NDArray[Any]:
    """One entry, dtype `KNOWN`, (1,)."""
    entry = np.zeros(1, KNOWN)
    entry[0] = (key, offset, length, crc, file)
    return entry


def new_entries(index: str, begin: int, file: int) -> tuple[npt.NDArray[Any], int]:
    """Entries of an index file from a byte on, as those of the file with a number, and the byte behind them.

    A last entry that is half written is left for another time; a file of another version has none.

    Raises:
        OSError: it cannot be read.
    """
    with open(index, "rb") as stored:
        if begin == 0 and stored.read(len(_MAGIC)) != _MAGIC:
            return np.empty(0, KNOWN), 0
        begin = begin or len(_MAGIC)
        stored.seek(begin)
        data = stored.read()
    entries = np.frombuffer(data, ENTRY, count=len(data) // ENTRY.itemsize)
    end = begin + entries.nbytes
    entries = entries[entries["check"] == _checks(entries)]
    known = np.zeros(len(entries), KNOWN)
    for column in ("key", "offset", "length", "crc"):
        known[column] = entries[column]
    known["file"] = file
    return known, end


def bytes_of(folder: Path) -> int:
    """Bytes that the records in a folder take: with the room that is reserved, unless its process has ended.

    Raises:
        OSError: the folder cannot be read.
    """
    total, here = 0, _host()
    with os.scandir(folder) as files:
        for each in files:
            if not each.name.endswith(".records"):
                continue
            with suppress(OSError):
                status = each.stat()
                host, process, _ = each.name.rsplit("-", 2) if each.name.count("-") >= 2 else ("", "", "")
                has_ended = host == here and process.isdigit() and not _is_running(int(process))
                total += min(status.st_size, status.st_blocks * 512) if has_ended else status.st_size
    return total


def _host() -> str:
    return "".join(filter(str.isalnum, socket.gethostname())) or "host"


def _is_running(process: int) -> bool:
    import psutil  # not for programs without a cache

    return bool(psutil.pid_exists(process)) or not hasattr(os.stat_result, "st_blocks")


class OwnFiles:
    """The files that one process appends to, made with the first record; memory without a name if there is no folder.

    Attributes:
        path: path of the records, for this process.
    """

    def __init__(self, folder: Path | None) -> None:
        self._records: int | None = None
        self._index: int | None = None
        self._room, self._ends = 0, [0]  # the last is where the records end, known to `_give_back`, too
        self._base = "" if folder is None else str(folder / f"{_host()}-{os.getpid()}-{uuid.uuid4().hex[:12]}")
        if folder is not None:
            self.path = f"{self._base}.records"
            return
        self._records = os.memfd_create("fastdata-cache")  # freed even if the process is killed
        self.path = f"/proc/self/fd/{self._records}"
        weakref.finalize(self, os.close, self._records)

    def append(
        self, key: Keys, record: bytes, file: int, reserve: Callable[[int, int], int | None]
    ) -> npt.NDArray[Any] | None:
        """Writes a record, or none if it is empty, and an entry.

        Args:
            key: key of the image.
            record: the record.
            file: this file's number, for the entry.
            reserve: called with the room that there is and what is missing; returns the new room, or None.

        Returns:
            The entry; None if there is no room.

        Raises:
            OSError: the files cannot be made or written.
        """
        if self._records is None:
            self._open()
        assert self._records is not None
        (begin,) = self._ends
        if begin + len(record) > self._room:
            room = reserve(self._room, begin + len(record) - self._room)
            if room is None:
                return None
            self._room = room
        entry = entry_of(key, begin, len(record), int(google_crc32c.value(record)) if record else 0, file)
        _write_at(self._records, record, begin)
        self._ends[0] += len(record)
        if self._index is not None:
            stored = np.zeros(1, ENTRY)
            for column in ("key", "offset", "length", "crc"):
                stored[column] = entry[column]
            stored["check"] = _checks(stored)
            if os.write(self._index, stored.tobytes()) < stored.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._base}.index")
        return entry

    def make_room(self, size: int) -> None:
        """Makes the file so long that others count the room as taken."""
        assert self._records is not None
        os.ftruncate(self._records, size)

    def are_gone(self) -> bool:
        """True if somebody has removed them."""
        return self._index is not None and not os.path.exists(self.path)

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._records = os.open(self.path, flags, 0o666)
        self._index = os.open(f"{self._base}.index", flags | os.O_APPEND, 0o666)
        weakref.finalize(self, _give_back, os.getpid(), self._records, self._index, self._ends)
        os.write(self._index, _MAGIC)


def _give_back(process: int, records: int, index: int, ends: list[int]) -> None:
    """Closes a process's files, and gives back the room that was not used."""
    try:
        if process == os.getpid():
            with suppress(OSError):
                os.ftruncate(records, ends[0])
    finally:
        for each in (records, index):
            os.close(each)


def _write_at(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    os.lseek(file, offset, os.SEEK_SET)
    while view:
        view = view[os.write(file, view) :]


def _checks(entries: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """A check of each entry, which a change of one word of it changes."""
    words = np.ascontiguousarray(entries).view(np.uint32).reshape(-1, len(_FACTORS) + 1)[:, :-1].astype(np.uint64)
    checks: npt.NDArray[np.uint32] = ((words * _FACTORS).sum(axis=1) + np.uint64(len(_MAGIC))).astype(np.uint32)
    return checks


def unread(folder: Path, read: Mapping[str, int], own: str) -> list[str]:
    """Index files in a folder that have grown since they were read, the one that was written last at the end.

    Raises:
        OSError: the folder cannot be read.
    """
    grown = []
    with os.scandir(folder) as files:
        for each in files:
            if each.name.endswith(".index") and each.path != own:
                with suppress(OSError):
                    status = each.stat()
                    if status.st_size > read.get(each.path, 0):
                        grown.append((status.st_mtime_ns, each.path))
    return [path for _, path in sorted(grown)]
