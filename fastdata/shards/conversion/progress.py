"""How far a conversion is, in images and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastdata.shards.conversion.job import ShardDone
from fastdata.terminal.progress import Progress

__all__ = ["ConversionProgress"]


class ConversionProgress:
    """Says on stderr how many images are done, with images/s, MB/s and the time left.

    Args:
        clock: for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = Progress(None, unit="image", what="converted", clock=clock)
        self._clock, self._began, self._bytes = clock, clock(), 0

    def plan(self, images: int | None) -> None:
        """So many images more will come; None where nobody knows."""
        if images is not None:
            self._shown.expect(images)

    def add(self, done: ShardDone) -> None:
        """A shard is finished."""
        self._bytes += done.source_bytes
        seconds = max(self._clock() - self._began, 1e-9)
        self._shown.update(f"{self._bytes / 1e6 / seconds:.0f} MB/s", steps=done.source_samples)

    def close(self) -> None:
        """The work has ended, or was given up."""
        self._shown.close()
