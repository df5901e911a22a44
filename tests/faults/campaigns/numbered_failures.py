"""A command in which the Nth call of the file system fails says so, leaves nothing half-made, and can be run again.

It says so with the path or the reason.  Nothing is half-made under a final name.  Run again, it succeeds with the same
result.  If it did not fail, its result was right; a file that others can do without may be missing then, if a warning
says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import failing_calls

ROUNDS = (60, 600, 6_500)  # 6,400 are all calls with all kinds
KINDS = ["EIO", "ENOSPC", "EDQUOT", "EMFILE", "short", "EIO for good", "ENOSPC for good", "EMFILE for good"]


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with one job, call and kind of failure each."""
    return failing_calls.rounds_with(folder, KINDS)
