"""Local files: reading regular files only, atomic writes, and locks between processes."""

from __future__ import annotations

import errno
import importlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fastdata.limits import check_encoded_bytes
from fastdata.system.disk_space import naming_file

__all__ = [
    "NotRegularFile",
    "cache_folder",
    "check_regular",
    "is_at",
    "locked",
    "open_descriptor",
    "open_file",
    "read_at",
    "read_file",
    "remove_durably",
    "sync_file",
    "sync_folder",
    "try_lock",
    "whole_file",
    "working_folder",
    "write_whole",
]

_fcntl: Any = None  # Windows has none, and no locks here
with suppress(ImportError):
    _fcntl = importlib.import_module("fcntl")


def cache_folder() -> Path:
    """Folder of the files that this package can make again: `$XDG_CACHE_HOME/fastdata`, else `~/.cache/fastdata`.

    Raises:
        RuntimeError: XDG_CACHE_HOME is not set, and the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastdata"


def working_folder() -> str:
    """Path of this process's working folder; "" if it has been removed, where only absolute paths lead anywhere."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


class NotRegularFile(OSError):
    """A path leads to a FIFO, a socket or a device: reading it may never end."""


_MUCH_BYTES, _HEAD_BYTES = 16 << 20, 4096  # of files from this size on the head is looked at first
_FLAGS = sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_BINARY", "O_NONBLOCK"))  # those that this system has
_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_regular(status: os.stat_result, path: str | bytes | os.PathLike[str]) -> None:
    """Refuses what is not a regular file.

    Args:
        status: status of an open file, so that nobody can put another in its place, or of its path.
        path: path for the message.

    Raises:
        IsADirectoryError: it is a folder.
        NotRegularFile: it is something else.
    """
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "something else")
    raise NotRegularFile(f"{os.fsdecode(path)} is {kind}, not a regular file")


def open_descriptor(path: str | bytes | os.PathLike[str]) -> int:
    """Opens a regular file for reading.  Follows links, and never waits for the other end of a FIFO.

    Raises:
        IsADirectoryError, NotRegularFile: see `check_regular`.
    """
    number = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        check_regular(os.fstat(number), path)
    except BaseException:
        os.close(number)
        raise
    return number


def open_file(path: str | bytes | os.PathLike[str], *, buffering: int = -1) -> IO[bytes]:
    """Opens a regular file for reading, as `open_descriptor` does."""
    return open(path, "rb", buffering=buffering, opener=lambda path, _: open_descriptor(path))


def read_file(path: str | os.PathLike[str], offset: int = 0, length: int = -1) -> bytes:
    """The bytes of a regular file, or of a part of it: of an encoded image, or of something smaller.

    Args:
        path: path of the file.
        offset: offset of the part in bytes.
        length: length of the part in bytes; -1 for the rest of the file.

    Raises:
        IsADirectoryError, NotRegularFile: see `check_regular`.
        TooManyBytes: it is larger than an encoded image may be.
        OSError: it is large, and begins like no image; or the part is not in the file.
    """
    with open_file(path, buffering=0) as file:
        whole = os.fstat(file.fileno()).st_size
        size = length if length >= 0 else whole - offset
        if not 0 <= offset <= offset + size <= whole:
            place = f"bytes {offset} to {offset + max(0, size)}"
            raise OSError(f"{place} lie outside the file of {whole} bytes: {os.fsdecode(path)}")
        check_encoded_bytes(size, os.fsdecode(path))
        file.seek(offset)
        if size > _MUCH_BYTES:
            _check_head(file.read(_HEAD_BYTES), os.fsdecode(path))
            file.seek(offset)
        return file.read(-1 if length < 0 else size)


def read_at(path: str | bytes | os.PathLike[str], offset: int, size: int) -> bytes:
    """Up to `size` bytes of a regular file, from an offset; none if it cannot be read."""
    try:
        with open_file(path, buffering=0) as file:
            file.seek(offset)
            return file.read(size)
    except OSError:
        return b""


def _check_head(head: bytes, path: str) -> None:
    """Raises OSError for a head of zeros, as in a sparse file; every format that Pillow reads has something there."""
    if not any(head):
        raise OSError(f"{path} is not an image: it begins with {len(head)} zeros")


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Holds a lock between processes and threads, waiting for it first; it is released if the process dies."""
    with open(path, "w") as file:
        if _fcntl is not None:
            _fcntl.flock(file, _fcntl.LOCK_EX)
        try:
            yield
        finally:
            _unlock(file)


@contextmanager
def try_lock(path: str | os.PathLike[str], *, patience_s: float = 0.0) -> Iterator[bool]:
    """Tries to take a lock for `patience_s`; yields False if another process or thread still holds it then.

    A lock is free once every process that has its file open is gone: with a process that was killed also the one it was
    just starting, which takes a moment on a busy machine.  False, too, if its file was removed meanwhile: whoever held
    it has finished, and the next one would lock another file.
    """
    with open(path, "w") as file:
        until = time.monotonic() + patience_s
        while not (is_ours := _takes_at_once(file)) and time.monotonic() < until:
            time.sleep(0.01)
        try:
            yield is_ours and is_at(path, file)
        finally:
            if is_ours:
                _unlock(file)


def is_at(path: str | os.PathLike[str], file: IO[Any]) -> bool:
    """True if that is where an open file still is."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _takes_at_once(file: IO[str]) -> bool:
    try:
        if _fcntl is not None:
            _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _unlock(file: IO[str]) -> None:
    if _fcntl is not None:  # closing is not enough: a process forked meanwhile has the file open, too
        _fcntl.flock(file, _fcntl.LOCK_UN)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a file to write atomically: afterwards it exists completely or not at all, even after a power cut."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with naming_file(path), open(partial, "wb") as file:
            yield file
            sync_file(file)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: it exists completely or not at all, even after a power cut."""
    with whole_file(path) as file:
        file.write(data)


def remove_durably(path: Path) -> None:
    """Removes a file so that it stays removed after a power cut."""
    path.unlink()
    sync_folder(path.parent)


def sync_file(file: IO[bytes]) -> None:
    """Flushes what was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flushes renames in a folder to the disk; Windows has no such call and needs none."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
