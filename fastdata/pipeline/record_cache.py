"""A cache of unpacked JPEGs: `DataLoader(cache=…)` keeps records of the images that it decodes, and reads those later.

A record (docs/format.md) holds a JPEG's coefficients without entropy coding.  It decodes to the pixels of its file, in
about half the time.  In every epoch the cache keeps records of a third of the images that have none, so that the first
costs little more and after three all are there.

An image is named by a hash of its file's path, size, times and inode, and of its place in the file: one that has
changed is another image.  A cache may be damaged, full, half written or gone, but never changes a pixel: what does not
fit is read from its file, and kept anew.  Nothing in a folder is ever replaced or removed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import OptionError
from fastdata.pipeline.record_files import CHUNK_BYTES, Keys, OwnFiles, Table, bytes_of, entry_of, new_entries, unread
from fastdata.system.cpus import local_processes
from fastdata.system.disk_space import no_space
from fastdata.system.files import locked
from fastdata.system.memory import available_memory
from fastdata.system.stack_level import users_level

__all__ = [
    "EPOCHS_TO_FILL",
    "FileState",
    "RecordCache",
    "file_state",
    "keys_of",
    "open_cache",
    "state_of",
]

Bools: TypeAlias = npt.NDArray[np.bool_]
Ints: TypeAlias = npt.NDArray[np.int64]

_KEY_BYTES = 16
EPOCHS_TO_FILL = 3
_SHARE_OF_MEMORY, _SHARE_OF_DISK = 4, 2  # of what is free, that a cache may take unless told otherwise
_COARSE_NS, _TICK_NS = 2_000_000_000, 20_000_000  # steps of times: of file systems with whole seconds, and of others


def open_cache(place: str | os.PathLike[str] | None, most_bytes: int | None) -> RecordCache | None:
    """Returns the cache that a loader's arguments ask for; None for none.

    Raises:
        OptionError: the arguments make no sense, or the folder cannot be made.
    """
    if most_bytes is not None and place is None:
        raise OptionError(f"cache_bytes={most_bytes!r} limits a cache; pass cache='ram' or cache=FOLDER, too")
    if most_bytes is not None and (
        isinstance(most_bytes, bool) or not isinstance(most_bytes, int) or most_bytes < CHUNK_BYTES
    ):
        raise OptionError(f"cache_bytes={most_bytes!r} is not accepted; use a number of bytes from {CHUNK_BYTES} on")
    if place is None:
        return None
    if not isinstance(place, str | os.PathLike) or not os.fspath(place):
        raise OptionError(f"cache={place!r} is not accepted; use 'ram' or a folder")
    if isinstance(place, str) and place == "ram":
        if not hasattr(os, "memfd_create"):
            raise OptionError("cache='ram' needs Linux; name a folder, which may lie on a RAM disk")
        return RecordCache(None, most_bytes)
    try:
        folder = Path(os.path.abspath(place))
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cache={place!r}: the folder cannot be made ({error}); name another one") from error
    return RecordCache(folder, most_bytes)


class RecordCache:
    """Records in a folder, or in this process's memory.

    Args:
        folder: an absolute path; None for memory that goes with the object.
        most_bytes: bytes that all records together may take; None: a quarter of the memory available, divided among the
            training processes of this machine, or half of the space that is free on the disk.

    Processes that are forked or get a copy have the folder in common; each writes files of its own.
    """

    _own: OwnFiles
    _own_number: int
    _limit: int
    _is_full: bool
    _turn: int

    def __init__(self, folder: Path | None, most_bytes: int | None) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._process: int | None = None
        self._lock = threading.Lock()
        self._files: list[str] = []  # of records, by number; never shortened, since threads may hold numbers
        self._forget_all()

    def __reduce__(self) -> tuple[type[RecordCache], tuple[Path | None, int | None]]:
        return RecordCache, (self.folder, self.most_bytes)

    def begin_epoch(self) -> int:
        """Takes notice of what other processes have kept; returns the number of the third whose turn it is."""
        self._take_notice()
        with self._lock:
            self._turn = (self._turn + 1) % EPOCHS_TO_FILL
            return self._turn

    def count(self) -> int:
        """Number of images that have a record now."""
        self._take_notice()
        return self._table.records

    def find(self, keys: Keys) -> npt.NDArray[Any]:
        """Entries of N images: dtype `KNOWN`, (N,); `file` is -1 where nothing is known."""
        new = self._new
        found = self._table.find(keys)
        for row in range(len(keys)) if new else ():
            if (entry := new.get(keys[row].tobytes())) is not None:
                found[row] = entry[0]
        return found

    def look(
        self, states: Sequence[FileState | None], offsets: Sequence[int], turn: int
    ) -> tuple[Keys, npt.NDArray[Any], Bools, Bools | None]:
        """Looks for N images, at these offsets of files in such states (None: not known).

        Args:
            states: states of their files.
            offsets: their places in the files.
            turn: the third whose turn it is, as `begin_epoch` returned it.

        Returns:
            Their keys; their entries; True for each that has a record; and True for each of which one is wanted, None
            if the cache takes no more.
        """
        keys = keys_of(states, offsets)
        found, there = self.find(keys), np.array([state is not None for state in states], np.bool_)
        wanted = None
        if self.takes_more:
            wanted = there & (found["file"] < 0) & (keys[:, 0] % np.uint64(EPOCHS_TO_FILL) == np.uint64(turn))
        return keys, found, there & (found["length"] > 0), wanted

    def places(
        self, found: npt.NDArray[Any], cached: Bools, given: Sequence[Ints | None] = (None, None, None)
    ) -> list[Ints]:
        """Offsets, lengths and checksums: of records where there are such, else those given (None: of whole files)."""
        return [
            np.where(cached, found[name].astype(np.int64), column if column is not None else np.int64(otherwise))
            for name, column, otherwise in zip(("offset", "length", "crc"), given, (0, -1, -1), strict=True)
        ]

    def path(self, file: int) -> str:
        """Path of a file of records, by its number."""
        return self._files[file]

    def forget(self, keys: Keys) -> None:
        """Has the images kept anew: their records are damaged, or gone."""
        with self._lock:
            for key in keys:
                self._new[key.tobytes()] = entry_of(key, 0, 0, 0, -1)

    @property
    def takes_more(self) -> bool:
        """False once the cache is full, or could not be written."""
        return not self._is_full

    def add(self, key: Keys, record: bytes) -> None:
        """Keeps the record of an image; b"" notes that it has none.  Called by any thread."""
        with self._lock:
            known = self._new.get(key.tobytes())
            if self._is_full or self._process != os.getpid() or (known is not None and known["file"][0] >= 0):
                return
            try:
                entry = self._own.append(key, record, self._own_number, self._reserve)
            except OSError as error:
                self._keep_no_more(error)
                return
            if entry is None:
                self._is_full = True
            else:
                self._new[key.tobytes()] = entry

    def add_unchanged(self, key: Keys, record: bytes, path: str | os.PathLike[str], before: FileState | None) -> None:
        """Keeps the record of a file that has not changed since `before`, and cannot without being noticed."""
        state = state_of(path)
        if state is not None and state == before and not state.is_just_written():
            self.add(key, record)

    def _keep_no_more(self, error: OSError) -> None:
        self._is_full = True
        place = self.folder if self.folder is not None else Path("ram")
        told = no_space(error, place) or str(error)
        warnings.warn(f"the cache in {place} keeps no more: {told}", stacklevel=users_level())

    def _forget_all(self) -> None:
        self._table, self._new = Table.of([]), dict[bytes, npt.NDArray[Any]]()
        self._read: dict[str, tuple[int, int]] = {}  # by index file: its number, and the bytes that were read
        self._is_full, self._turn = False, int.from_bytes(os.urandom(1), "little") % EPOCHS_TO_FILL

    def _take_notice(self) -> None:
        if self._process is not None and self._process != os.getpid():  # a forked child
            self._lock, self._process = threading.Lock(), None
        with self._lock:
            if self._process is None or self._own.are_gone() or not self._is_there():
                self._begin()
            parts: list[npt.NDArray[Any]] = []
            if self.folder is not None:
                with suppress(OSError):
                    parts = self._unread(self.folder)
            new = self._new
            if parts or new:
                self._table, self._new = Table.of([self._table.known, *parts, *new.values()]), {}

    def _is_there(self) -> bool:
        return self.folder is None or os.path.exists(self.folder)  # False, too, for one that cannot be reached

    def _begin(self) -> None:
        """Begins with files of its own: in the first epoch, in a forked child, after somebody removed the folder."""
        self._forget_all()
        self._process, self._own = os.getpid(), OwnFiles(self.folder)
        self._own_number = len(self._files)
        self._files.append(self._own.path)
        try:
            self._limit = self.most_bytes if self.most_bytes is not None else self._limit_by_place()
        except OSError as error:
            self._keep_no_more(error)
            return
        if self._limit < CHUNK_BYTES:
            self._keep_nothing()

    def _keep_nothing(self) -> None:
        self._is_full = True
        place, share = self.folder or "memory", "half" if self.folder is not None else "a quarter"
        warnings.warn(
            f"the cache in {place} keeps nothing: it may take {share} of what is free, {self._limit / 1e6:.1f} MB, but "
            f"needs {CHUNK_BYTES / 1e6:.1f} MB; free space, pass cache_bytes, or leave cache out",
            stacklevel=users_level(),
        )

    def _limit_by_place(self) -> int:
        if self.folder is None:
            return available_memory() // (_SHARE_OF_MEMORY * local_processes())
        self.folder.mkdir(parents=True, exist_ok=True)
        return bytes_of(self.folder) + shutil.disk_usage(self.folder).free // _SHARE_OF_DISK

    def _reserve(self, room: int, missing: int) -> int | None:
        """Returns how large the own file may become, so that it has room for what is missing; None if it may not."""
        wanted = max(CHUNK_BYTES, missing)
        if self.folder is None:
            # Others' caches, and whatever else has begun since, need the memory, too.
            is_scarce = self.most_bytes is None and available_memory() < self._limit
            return None if is_scarce or room + wanted > self._limit else room + wanted
        with locked(self.folder / "lock"):
            if bytes_of(self.folder) + wanted > self._limit:
                return None
            self._own.make_room(room + wanted)
        return room + wanted

    def _unread(self, folder: Path) -> list[npt.NDArray[Any]]:
        own = self._own.path.removesuffix(".records") + ".index"
        parts = []
        for index in unread(folder, {path: end for path, (_, end) in self._read.items()}, own):
            number, begin = self._read.get(index, (len(self._files), 0))
            if number == len(self._files):
                self._files.append(index.removesuffix(".index") + ".records")
            self._read[index] = number, begin
            with suppress(OSError):
                entries, end = new_entries(index, begin, number)
                self._read[index] = number, end
                parts += [entries] if len(entries) else []
        return parts


def keys_of(states: Sequence[FileState | None], offsets: Sequence[int]) -> Keys:
    """Keys of N images, uint64 (N, 2), at these offsets of files in such states; zeros where that is not known."""
    keys = np.zeros((len(states), 2), np.uint64)
    for row, (state, offset) in enumerate(zip(states, offsets, strict=True)):
        if state is not None:
            digest = blake2b(state.named + offset.to_bytes(8, "little"), digest_size=_KEY_BYTES).digest()
            keys[row] = np.frombuffer(digest, np.uint64)
    return keys


class FileState(NamedTuple):
    """State of a file: whole path, size, times of modification and of status, and inode; and the first time alone."""

    named: bytes
    modified_ns: int

    def is_just_written(self) -> bool:
        """True if the file might change once more without another time."""
        step = _COARSE_NS if self.modified_ns % 1_000_000_000 == 0 else _TICK_NS
        return abs(time.time_ns() - self.modified_ns) < step


def state_of(path: str | os.PathLike[str]) -> FileState | None:
    """State of a file; None if it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return file_state(path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def file_state(path: str | os.PathLike[str], inode: int, size: int, modified_ns: int, changed_ns: int) -> FileState:
    """State of a file of which these were told; on Windows `changed_ns` is when it was made, and does not count."""
    name = os.fsencode(path)
    name = name if os.path.isabs(name) else os.path.abspath(name)
    named = name + b"\0%d %d %d %d " % (size, modified_ns, changed_ns if os.name == "posix" else 0, inode)
    return FileState(named, modified_ns)
