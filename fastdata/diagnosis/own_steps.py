"""Finds the step of the user's own that takes most of a sample: a transform's class, or a function.

Some samples are made under Python's profiler, whose shares are those of the samples that were timed without it.
"""

from __future__ import annotations

import cProfile
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType

__all__ = ["Profiled", "profiled", "slowest_step"]

_METHODS = ("__call__", "forward", "transform", "_transform", "apply")  # in which libraries do a step's work
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


@dataclass(frozen=True)
class Profiled:
    """Seconds of each function with all that it calls, and which functions it calls itself."""

    total_s: float
    seconds: dict[CodeType, float]
    calls: dict[CodeType, list[CodeType]]

    def reached(self, begin: CodeType) -> set[CodeType]:
        """Functions that are called within this one."""
        found, left = set[CodeType](), [begin]
        while left:
            new = [each for each in self.calls.get(left.pop(), []) if each not in found]
            found.update(new)
            left += new
        return found


def profiled(make: Callable[[], object]) -> Profiled | None:
    """Profiles a call in this thread; None where another profiler is on, which would be in the way."""
    if sys.getprofile() is not None:
        return None
    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:  # from Python 3.12 on
        return None
    try:
        make()
    finally:
        profile.disable()
    seconds, calls = dict[CodeType, float](), dict[CodeType, list[CodeType]]()
    top: CodeType | None = getattr(make, "__code__", None)
    for entry in profile.getstats():
        if isinstance(entry.code, CodeType):
            seconds[entry.code] = entry.totaltime
            calls[entry.code] = [each.code for each in entry.calls or () if isinstance(each.code, CodeType)]
    return Profiled(seconds.get(top, 0.0) if top is not None else 0.0, seconds, calls)


def slowest_step(found: Profiled, known: CodeType, *, least: float) -> tuple[str, float]:
    """Name of the user's step that takes most of a sample, and its share; ("", 0.0) if none takes so much.

    Of a function and one that it calls the inner one is named, if it takes so much, too.

    Args:
        found: the profile of some samples.
        known: function that decodes or resizes, which is told on its own: it does not count as the user's.
        least: share of a sample.
    """
    if found.total_s <= 0:
        return "", 0.0
    reached = {code: found.reached(code) for code in found.seconds if _is_users(code)}
    shares = {
        code: (found.seconds[code] - (found.seconds.get(known, 0.0) if known in inner else 0.0)) / found.total_s
        for code, inner in reached.items()
    }
    large = {code for code, share in shares.items() if share >= least}
    inner_ones = [code for code in large if not (reached[code] - {code}) & large]
    if not inner_ones:
        return "", 0.0
    slowest = max(inner_ones, key=lambda code: shares[code])
    return _name(slowest), min(1.0, shares[slowest])


def _is_users(code: CodeType) -> bool:
    """Code of the program, not of Python, of a library or of fastdata; what makes whole samples is no step."""
    path = code.co_filename
    is_generated = path.startswith("<") and not path.startswith("<ipython-input")
    is_librarys = path.startswith((_OURS, _STANDARD)) or any(part in path for part in _LIBRARIES)
    is_step = code.co_name not in ("__getitem__", "__getitems__") and not code.co_name.endswith(("comp>", "expr>"))
    return is_step and not is_generated and not is_librarys


def _name(code: CodeType) -> str:
    """Name by which the user knows a step: the class of a step that is called, else the function."""
    parts = str(getattr(code, "co_qualname", code.co_name)).rpartition("<locals>.")[2].split(".")
    if code.co_name in _METHODS and len(parts) > 1:
        return parts[-2]
    if len(parts) == 1 and code.co_name in ("<lambda>", *_METHODS):  # before Python 3.11 code does not know its class
        return f"{code.co_name.strip('<>')} of {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
    return ".".join(parts)


_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
