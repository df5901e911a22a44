"""A machine that other programs keep busy: real processes, which are nobody's children and end by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["busy_with_others"]

BURN = "import sys, time\nended = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < ended: pass"


@contextmanager
def busy_with_others(count: int, *, most_s: float = 60.0) -> Iterator[None]:
    """So many processes compute until the end of the block; at most 2."""
    assert count <= 2
    numbers = []
    for _ in range(count):
        command = f'"{sys.executable}" -c "$0" {most_s} >/dev/null 2>&1 & echo $!'  # whose parent ends at once
        done = subprocess.run(["sh", "-c", command, BURN], capture_output=True, text=True, check=True)
        numbers.append(int(done.stdout))
    try:
        yield
    finally:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
