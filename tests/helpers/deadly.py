"""Work that kills its process."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def die(_: int) -> None:
    """Dies without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(job: tuple[int, str]) -> int:
    """Dies the first time it is asked for job 3, of which a marker is left."""
    number, marker = job
    if number == 3 and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number
