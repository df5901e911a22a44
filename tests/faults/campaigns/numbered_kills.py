"""A command killed or interrupted before its Nth call of the file system leaves nothing half-made; run again, it ends.

Nothing is half-made under a final name, and what was left is finished or replaced when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import failing_calls

ROUNDS = (60, 1_700, 4_000)  # 1,600 are all calls


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with one job and call each."""
    return failing_calls.rounds_with(folder, ["kill", "Ctrl-C"])
