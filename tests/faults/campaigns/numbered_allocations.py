"""Whenever memory is refused to the native core, that batch's error says so, and all others have their pixels.

The core's own requests are counted, and those of libjpeg-turbo and libdeflate for it.  A JPEG for whose record there is
no memory stays a file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import failing_allocations

ROUNDS = (200, 3_000, 100_000)


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds with a random job and request."""
    return failing_allocations.rounds(folder)
