"""Local files: reading without blocking on pipes, atomic writes, and locks between processes."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fastdata.system.disk_space import naming_file

__all__ = [
    "cache_folder",
    "is_at",
    "locked",
    "read_file",
    "remove_durably",
    "sync_file",
    "sync_folder",
    "try_lock",
    "whole_file",
    "write_whole",
]

_fcntl: Any = None  # Windows has none, and no locks here
with suppress(ImportError):
    _fcntl = importlib.import_module("fcntl")


def cache_folder() -> Path:
    """Where this package keeps what it can make again: `$XDG_CACHE_HOME/fastdata`.

    Raises:
        RuntimeError: it is not set, and the user has no home.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastdata"


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file.  Does not block on a named pipe without a writer, which reads as empty."""
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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
