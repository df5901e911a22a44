"""A command killed before the Nth call of the file system leaves nothing half-made, and can be run again.

Nothing is half-made under a final name, and what was left is finished or replaced when the command is run again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import failing_calls

ROUNDS = (60, 600, 4_000)


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with a random job and call."""
    return failing_calls.rounds_with(folder, ["kill"])
