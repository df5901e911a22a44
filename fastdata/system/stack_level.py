"""The line of the user's code that a warning or a report is to show."""

from __future__ import annotations

import os
import sys
from types import FrameType

from fastdata.system.files import working_folder

__all__ = ["librarys_call", "place_of", "users_level", "users_place"]

# Frames that nobody wrote in the program: those of the package and torch, and what calls functions for them.
_NOT_THE_USERS = frozenset({"fastdata", "torch", "concurrent", "contextlib", "functools", "threading"})


def users_level() -> int:
    """`stacklevel` for a `warnings.warn` in the calling function: the first frame outside of fastdata and torch.

    In threads of the package, which no such frame has called, it is the calling function's own.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 0
    while frame is not None:
        if not _is_import(frame):  # which warnings leaves out, too
            level += 1
            if _package(frame) not in _NOT_THE_USERS:
                return level
        frame = frame.f_back
    return 1


def place_of(frame: FrameType) -> str:
    """FILE:LINE of a frame, from the working folder on if the file lies below it."""
    return f"{_file(frame).removeprefix(working_folder() + os.sep)}:{frame.f_lineno}"


def users_place() -> str:
    """FILE:LINE of the program's frame that has called the calling function, not of a library; "" if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _package(frame) not in _NOT_THE_USERS and not _is_import(frame) and "-packages" not in _file(frame):
            return place_of(frame)
        frame = frame.f_back
    return ""


def librarys_call() -> str:
    """Function of Pillow or torchvision that the program's code has called, and where: "rotate (data.py:12)".

    Only its name if a library has called it; "" if no such function is being run.
    """
    name, frame = "", sys._getframe(1).f_back
    while frame is not None and frame.f_globals.get("__name__") != "fastdata.lazy.fetch":
        if _package(frame) in ("PIL", "torchvision"):
            function = frame.f_code.co_name
            name = name if function.startswith(("_", "<")) or function in _INNER else function
        elif _package(frame) not in _NOT_THE_USERS and "-packages" not in _file(frame):
            return f"{name} ({os.path.basename(_file(frame))}:{frame.f_lineno})" if name else ""
        frame = frame.f_back
    return name


_INNER = ("load", "im", "forward", "wrapper")  # functions that say nothing of what is done


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _is_import(frame: FrameType) -> bool:
    name = _file(frame)
    return "importlib" in name and "_bootstrap" in name
