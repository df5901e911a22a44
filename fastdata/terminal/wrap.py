"""Text within the width of the terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

__all__ = ["columns", "wrapped"]

_LEAST, _MOST = 80, 120  # lines that are longer are hard to read
_ELSEWHERE = 100  # in files, pipes and notebooks


def columns() -> int:
    """Columns of a line: COLUMNS if it is set, else those of the terminal within 80 and 120; 100 if there is none."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    if sys.stdout is None or not sys.stdout.isatty():
        return _ELSEWHERE
    return min(max(shutil.get_terminal_size().columns, _LEAST), _MOST)


def wrapped(text: str, *, hanging: int = 2, width: int | None = None) -> str:
    """The text with longer lines wrapped, such that words (paths, commands' arguments) stay whole.

    Args:
        text: lines, each of which is wrapped by itself.
        hanging: spaces before the second and further lines that one is made into.
        width: columns of a line; None for `columns()`.
    """
    wrapper = textwrap.TextWrapper(
        max(width or columns(), hanging + 20),  # words have some room, whatever COLUMNS says
        subsequent_indent=" " * hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(wrapper.fill(line) for line in text.split("\n"))
