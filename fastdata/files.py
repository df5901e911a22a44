"""Files of the local disk: reading without waiting for pipes, and locks among processes."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

__all__ = ["locked", "read_file", "try_lock"]

_fcntl: Any = None  # Windows has none, and no locks here
with suppress(ImportError):
    _fcntl = importlib.import_module("fcntl")


def read_file(path: Any) -> bytes:
    """The bytes of a file; none of a pipe that nobody writes to, which is not waited for."""
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        return file.read()


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Waits for a lock among processes and threads; the system lets go of it when its process dies."""
    with open(path, "w") as file:
        if _fcntl is not None:
            _fcntl.flock(file, _fcntl.LOCK_EX)
        try:
            yield
        finally:
            _unlock(file)


@contextmanager
def try_lock(path: str | os.PathLike[str]) -> Iterator[bool]:
    """The same without waiting: False when somebody else holds it."""
    with open(path, "w") as file:
        try:
            if _fcntl is not None:
                _fcntl.flock(file, _fcntl.LOCK_EX | _fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            _unlock(file)


def _unlock(file: IO[str]) -> None:
    if _fcntl is not None:  # closing is not enough: a process forked meanwhile has the file open, too
        _fcntl.flock(file, _fcntl.LOCK_UN)
