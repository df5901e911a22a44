"""Ends of a process: at once, as by Ctrl-C while a command starts and ends, without a traceback.

While modules are imported, a KeyboardInterrupt would be raised inside of any of them, and some catch it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

__all__ = ["STATUS", "exit_at_once", "leave_at_once", "raise_again", "raised"]

STATUS = 130  # of a process that Ctrl-C has ended


def exit_at_once(status: int, message: str | None = None) -> NoReturn:
    """Ends the process at once, once its output is written: what it does at its end, such as saving, is not done."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a full disk, a closed pipe, no stream at all
                stream.flush()
        if message is not None:
            os.write(2, f"{message}\n".encode())
    finally:
        os._exit(status)


def leave_at_once() -> None:
    """Lets Ctrl-C end this process with `STATUS`, unless somebody has given it another meaning, such as none."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_again() -> bool:
    """Lets Ctrl-C raise KeyboardInterrupt again, if `leave_at_once` has changed that; True if so."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        return False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return True


@contextmanager
def raised() -> Iterator[None]:
    """Lets Ctrl-C raise KeyboardInterrupt in the block, and leave at once again behind it."""
    had_left = raise_again()
    try:
        yield
    finally:
        if had_left:
            leave_at_once()


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(STATUS)
