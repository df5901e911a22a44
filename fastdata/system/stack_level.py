"""The line of the user's code that a warning is to show."""

from __future__ import annotations

import sys
from types import FrameType

__all__ = ["users_level"]

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
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOT_THE_USERS:
                return level
        frame = frame.f_back
    return 1


def _is_import(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name
