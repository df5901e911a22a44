"""A cache of unpacked JPEGs: `DataLoader(cache=…)` keeps records of the images that it decodes, and reads those later.

A record (docs/format.md) holds a JPEG's coefficients without entropy coding.  It decodes to the pixels of its file, in
about half the time.  Every epoch keeps records of a third of the images that have none, so that the first costs little
more and after three all are there; another third's turn comes with the next epoch.

An image is named by a hash of its file's path, size, time and inode, and of its place in the file: one that has changed
is another image.  Each process appends to two files of its own in the cache's folder, which others read from their next
epoch on:

    NAME.records    records, one after the other
    NAME.index      "FDCACHE1", then an entry for each record (`_ENTRY`), written after it

An entry has a check of its own, and the CRC-32C of its record, which is compared whenever that is read.  What does not
fit is left alone, and its image is read from its file: a cache may be damaged, full or half written, but never changes
a pixel.  (One that was falsified on purpose, with valid checks, may.)  Nothing is ever replaced or removed; to be rid
of old records, remove the folder.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import uuid
import warnings
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.errors import OptionError
from fastdata.loaders.backend import FileLoader, LoadedFiles
from fastdata.system.disk_space import no_space
from fastdata.system.files import locked
from fastdata.system.memory import available_memory
from fastdata.system.stack_level import users_level
from fastdata.tables import FileBatch

__all__ = ["CachedFiles", "RecordCache", "open_cache"]

Keys: TypeAlias = npt.NDArray[np.uint64]  # (N, 2)
Bools: TypeAlias = npt.NDArray[np.bool_]

_MAGIC = b"FDCACHE1"
_KEY_BYTES = 16
# length 0: the image has no record, because it is no JPEG or a damaged one.  check: of the other fields.
_ENTRY = np.dtype([("key", "<u8", 2), ("offset", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("check", "<u4")])
_KNOWN = np.dtype([("key", "<u8", 2), ("offset", "<i8"), ("length", "<i8"), ("crc", "<i8"), ("file", "<i8")])
_FACTORS = np.array(
    [0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1, 0xD3A2646D, 0xFD7046C5, 0xB55A4F09], np.uint64
)
_NEEDS_LINUX = "cache='ram' needs Linux; name a folder, which may lie on a RAM disk"
_EPOCHS_TO_FILL = 3
_CHUNK_BYTES = 16 << 20  # by which a process reserves room
_SHARE_OF_MEMORY, _SHARE_OF_DISK = 4, 2  # of what is free, that a cache may take unless told otherwise


def open_cache(place: str | os.PathLike[str] | None, most_bytes: int | None) -> RecordCache | None:
    """Returns the cache that a loader's arguments ask for; None for none.

    Raises:
        OptionError: the arguments make no sense, or the folder cannot be made.
    """
    if most_bytes is not None and place is None:
        raise OptionError(f"cache_bytes={most_bytes!r} limits a cache; pass cache='ram' or cache=FOLDER, too")
    if most_bytes is not None and (
        isinstance(most_bytes, bool) or not isinstance(most_bytes, int) or most_bytes < _CHUNK_BYTES
    ):
        raise OptionError(f"cache_bytes={most_bytes!r} is not accepted; use a number of bytes from {_CHUNK_BYTES} on")
    if place is None:
        return None
    if not isinstance(place, str | os.PathLike) or not os.fspath(place):
        raise OptionError(f"cache={place!r} is not accepted; use 'ram' or a folder")
    if place == "ram" and not hasattr(os, "memfd_create"):
        raise OptionError(_NEEDS_LINUX)
    return RecordCache(os.fspath(place), most_bytes)


class RecordCache:
    """Records of one folder, or of this process's memory.

    Args:
        place: the folder, which is made if it is missing; "ram" for memory that goes with the process.
        most_bytes: bytes that all records together may take; None: a quarter of the memory available, or half of the
            space that is free on the disk.

    Processes that are forked or started with a copy have the folder in common; each writes files of its own.
    """

    _own: _OwnFiles

    def __init__(self, place: str, most_bytes: int | None) -> None:
        self.place, self.most_bytes = place, most_bytes
        self._folder = None if place == "ram" else Path(os.path.abspath(place))
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OptionError(f"cache={place!r}: the folder cannot be made ({error}); name another one") from error
        self._process: int | None = None

    def __reduce__(self) -> tuple[type[RecordCache], tuple[str, int | None]]:
        return RecordCache, (self.place, self.most_bytes)

    def __repr__(self) -> str:
        return f"RecordCache({self.place!r}, {self.most_bytes})"

    def begin_epoch(self) -> None:
        """Takes notice of what other processes have kept; called when nothing is loaded."""
        # Anew in a forked child, too, which must not write to its parent's files, and after somebody removed them.
        if self._process != os.getpid() or self._own.are_gone():
            if self._folder is not None:
                with suppress(OSError):  # told when it is written to
                    self._folder.mkdir(parents=True, exist_ok=True)
            self._process, self._lock = os.getpid(), threading.Lock()
            self._own, self._is_full = _OwnFiles(self._folder), False
            self._paths, self._read_bytes = [self._own.path], [0]
            self._sorted, self._new = np.empty(0, _KNOWN), dict[bytes, Any]()
            self._limit = self.most_bytes if self.most_bytes is not None else self._limit_by_place()
        with self._lock:
            if self._folder is not None:
                self._read_indexes(self._folder)
            self._merge()

    def count(self) -> int:
        """Number of images with a record, as far as this process knows."""
        if self._process != os.getpid():
            return 0
        return int(np.count_nonzero(self._sorted["length"])) + sum(bool(each[1]) for each in self._new.values())

    def find(self, keys: Keys) -> npt.NDArray[Any]:
        """What is known of N images: dtype `_KNOWN`, (N,); `file` is -1 for those of which nothing is."""
        found = np.zeros(len(keys), _KNOWN)
        found["file"] = -1
        known = self._sorted
        if len(known):
            rows = np.minimum(np.searchsorted(known["key"][:, 0], keys[:, 0]), len(known) - 1)
            is_known = (known["key"][rows] == keys).all(axis=1)
            found[is_known] = known[rows[is_known]]
        if self._new:
            for row, key in enumerate(keys):
                if (entry := self._new.get(key.tobytes())) is not None:
                    found[row] = (key, *entry)
        return found

    def path(self, file: int) -> str:
        """Path of a file of records, by its number."""
        return self._paths[file]

    def forget(self, keys: Keys) -> None:
        """Leaves the records of some images alone from now on: they are damaged, or gone."""
        with self._lock:
            for key in keys:
                self._new[key.tobytes()] = (0, 0, 0, 0)

    @property
    def takes_more(self) -> bool:
        """False once the cache is full, or could not be written."""
        return self._process is None or not self._is_full

    def add(self, key: Keys, record: bytes | None) -> None:
        """Keeps the record of an image; None for an image that has none.  Called by any thread."""
        with self._lock:
            if self._is_full or self._new.get(key.tobytes()) is not None:
                return
            try:
                offset = self._own.append(key, record or b"", self._reserve)
            except OSError as error:
                self._is_full = True
                told = no_space(error, self._folder or "ram") or str(error)
                warnings.warn(f"cache={self.place!r} keeps no more: {told}", stacklevel=users_level())
                return
            if offset is None:
                self._is_full = True
                return
            crc = int(google_crc32c.value(record)) if record else 0
            self._new[key.tobytes()] = (offset, len(record or b""), crc, 0)

    def _limit_by_place(self) -> int:
        if self._folder is None:
            return available_memory() // _SHARE_OF_MEMORY
        if not self._folder.exists():
            return 0
        return _bytes_of(self._folder) + shutil.disk_usage(self._folder).free // _SHARE_OF_DISK

    def _reserve(self, reserved: int, needed: int) -> int | None:
        """Returns how large the own file may become, so that it has room for `needed` more; None if it may not."""
        wanted = max(_CHUNK_BYTES, needed)
        if self._folder is None:
            return reserved + wanted if reserved + wanted <= self._limit else None
        with locked(self._folder / "lock"):
            if _bytes_of(self._folder) + wanted > self._limit:
                return None
            self._own.make_room(reserved + wanted)
        return reserved + wanted

    def _read_indexes(self, folder: Path) -> None:
        with suppress(OSError), os.scandir(folder) as entries:
            names = sorted(each.path for each in entries if each.name.endswith(".index"))
            for name in names:
                path = name.removesuffix(".index") + ".records"
                if path == self._own.path:
                    continue
                if path not in self._paths:
                    self._paths.append(path)
                    self._read_bytes.append(0)
                with suppress(OSError):
                    self._read_index(name, self._paths.index(path))

    def _read_index(self, name: str, file: int) -> None:
        """Adds the entries that were not there before; a last one that is half written is read another time."""
        begin = self._read_bytes[file]
        with open(name, "rb") as index:
            if begin == 0 and index.read(len(_MAGIC)) != _MAGIC:  # of another version, or nothing yet
                return
            begin = begin or len(_MAGIC)
            index.seek(begin)
            data = index.read()
        entries = np.frombuffer(data, _ENTRY, count=len(data) // _ENTRY.itemsize)
        self._read_bytes[file] = begin + entries.nbytes
        entries = entries[entries["check"] == _checks(entries)]
        known = np.zeros(len(entries), _KNOWN)
        for column in ("key", "offset", "length", "crc"):
            known[column] = entries[column]
        known["file"] = file
        self._sorted = np.concatenate((self._sorted, known))

    def _merge(self) -> None:
        """Sorts what is known; what this process has found out stands above what others wrote."""
        new = np.zeros(len(self._new), _KNOWN)
        for row, (key, entry) in enumerate(self._new.items()):
            new[row] = (np.frombuffer(key, np.uint64), *entry)
        self._new = {}
        merged = np.concatenate((new, self._sorted))
        order = np.lexsort((merged["key"][:, 1], merged["key"][:, 0]))  # stable
        merged = merged[order]
        is_first = np.ones(len(merged), np.bool_)
        is_first[1:] = (merged["key"][1:] != merged["key"][:-1]).any(axis=1)
        self._sorted = merged[is_first]


class _OwnFiles:
    """The files that one process appends to; memory without a name if there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self._index: int | None = None
        self._end = self._room = 0
        self._base = None if folder is None else folder / f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._records: int | None = None
        if self._base is not None:
            self.path = f"{self._base}.records"
        elif hasattr(os, "memfd_create"):  # freed even if the process is killed
            self._records = os.memfd_create("fastdata-cache")
            self.path = f"/proc/self/fd/{self._records}"
            weakref.finalize(self, os.close, self._records)
        else:
            raise OptionError(_NEEDS_LINUX)

    def append(self, key: Keys, record: bytes, reserve: Any) -> int | None:
        """Writes a record and its entry; returns its offset, or None if there is no room."""
        if self._records is None:
            self._open()
        assert self._records is not None
        if self._end + len(record) > self._room:
            room = reserve(self._room, self._end + len(record) - self._room)
            if room is None:
                return None
            self._room = room
        offset = self._end
        _write_at(self._records, record, offset)
        self._end += len(record)
        if self._index is not None:
            entry = np.zeros(1, _ENTRY)
            entry[0] = (key, offset, len(record), int(google_crc32c.value(record)) if record else 0, 0)
            entry["check"] = _checks(entry)
            if os.write(self._index, entry.tobytes()) < entry.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{self._base}.index")
        return offset

    def are_gone(self) -> bool:
        """True if somebody has removed them."""
        return self._index is not None and not os.path.exists(self.path)

    def make_room(self, size: int) -> None:
        """Makes the file so long that others count the room as taken."""
        assert self._records is not None
        os.ftruncate(self._records, size)

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._records = os.open(self.path, flags, 0o666)
        self._index = os.open(f"{self._base}.index", flags | os.O_APPEND, 0o666)
        os.write(self._index, _MAGIC)
        weakref.finalize(self, _give_back, os.getpid(), self._records, self._index)


def _give_back(process: int, records: int, index: int) -> None:
    """Closes a process's files, and gives back the room that was not used."""
    if process == os.getpid():
        with suppress(OSError):
            os.lseek(index, len(_MAGIC), os.SEEK_SET)
            data = os.read(index, os.fstat(index).st_size)
            entries = np.frombuffer(data, _ENTRY, count=len(data) // _ENTRY.itemsize)
            ends = entries["offset"] + entries["length"]
            os.ftruncate(records, int(ends.max()) if len(ends) else 0)
    for each in (records, index):
        os.close(each)


def _write_at(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    os.lseek(file, offset, os.SEEK_SET)
    while view:
        view = view[os.write(file, view) :]


def _bytes_of(folder: Path) -> int:
    """Bytes that the records in a folder take, with the room that processes have reserved."""
    total = 0
    with os.scandir(folder) as entries:
        for each in entries:
            if each.name.endswith(".records"):
                with suppress(OSError):
                    total += each.stat().st_size
    return total


def _checks(entries: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """A check of each entry, which a change of one word of it changes."""
    words = np.ascontiguousarray(entries).view(np.uint32).reshape(-1, len(_FACTORS) + 1)[:, :-1].astype(np.uint64)
    checks: npt.NDArray[np.uint32] = ((words * _FACTORS).sum(axis=1) + np.uint64(len(_MAGIC))).astype(np.uint32)
    return checks


class CachedFiles:
    """A file loader that reads what a cache has, and has it keep a share of the rest.

    Args:
        loader: a loader that reads and makes records.
        cache: the cache, whose epoch has begun.
        epoch: decides whose turn it is.
    """

    def __init__(self, loader: FileLoader, cache: RecordCache, epoch: int) -> None:
        self._loader, self._cache, self._epoch = loader, cache, epoch

    def load(self, batch: FileBatch) -> LoadedFiles:
        """Loads N images; see `fastdata.loaders.backend.FileLoader`."""
        keys, there = _keys_of(batch)
        found = self._cache.find(keys)
        cached = there & (found["length"] > 0)
        kept = None
        if self._cache.takes_more:
            is_turn = (keys[:, 0] + np.uint64(self._epoch % _EPOCHS_TO_FILL)) % np.uint64(_EPOCHS_TO_FILL) == 0
            kept = there & (found["file"] < 0) & is_turn
        loaded = self._loader.load(replace(self._with_records(batch, found, cached), kept=kept))
        if kept is not None and loaded.records:
            for row in np.flatnonzero(kept & loaded.ok).tolist():
                self._cache.add(keys[row], loaded.records[row])
        if (wrong := cached & ~loaded.ok).any():
            self._cache.forget(keys[wrong])
        return replace(loaded, records=(), cached=int(np.count_nonzero(cached & loaded.ok)))

    def close(self, ended: bool) -> None:
        """Closes the loader; the cache goes on with the next epoch."""
        self._loader.close(ended)

    def _with_records(self, batch: FileBatch, found: npt.NDArray[Any], cached: Bools) -> FileBatch:
        """The batch with records in place of the images that have one."""
        if not cached.any():
            return batch
        paths, count = list(batch.paths), len(batch.paths)
        for row in np.flatnonzero(cached).tolist():
            paths[row] = self._cache.path(int(found["file"][row]))
        columns = [
            np.where(cached, own, given if given is not None else np.full(count, default, np.int64))
            for own, given, default in (
                (found["offset"], batch.offsets, 0),
                (found["length"], batch.lengths, -1),
                (found["crc"], batch.crcs, -1),
            )
        ]
        return replace(batch, paths=paths, offsets=columns[0], lengths=columns[1], crcs=columns[2])


def _keys_of(batch: FileBatch) -> tuple[Keys, Bools]:
    """Keys of N images, and False for those whose file is not there."""
    keys, states = np.zeros((len(batch.paths), 2), np.uint64), dict[Any, bytes | None]()
    offsets: Sequence[int] = batch.offsets.tolist() if batch.offsets is not None else [0] * len(batch.paths)
    there = np.ones(len(batch.paths), np.bool_)
    for row, (path, offset) in enumerate(zip(batch.paths, offsets, strict=True)):
        if path not in states:
            states[path] = _state_of(path)
        state = states[path]
        if state is None:
            there[row] = False
            continue
        digest = blake2b(state + offset.to_bytes(8, "little"), digest_size=_KEY_BYTES).digest()
        keys[row] = np.frombuffer(digest, np.uint64)
    return keys, there


def _state_of(path: str | os.PathLike[str]) -> bytes | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    name = os.fsencode(path)
    name = name if os.path.isabs(name) else os.path.abspath(name)
    return name + b"\0%d %d %d " % (found.st_size, found.st_mtime_ns, found.st_ino)
