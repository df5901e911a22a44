"""Progress of a conversion, in images and bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastdata.shards.conversion.job import ShardDone
from fastdata.terminal.progress import Progress

__all__ = ["ConversionProgress"]


class ConversionProgress:
    """Shows on stderr how many images are converted, with images/s, MB/s and the time left.

    Args:
        clock: returns the time in seconds; replaced in tests.
        hidden: show nothing.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, hidden: bool = False) -> None:
        self._shown = Progress(None, unit="image", what="converted", clock=clock, hidden=hidden)
        self._clock, self._began, self._bytes = clock, clock(), 0

    def plan(self, images: int | None) -> None:
        """Adds a number of images to the total; None if it is unknown."""
        if images is not None:
            self._shown.expect(images)

    def add(self, done: ShardDone) -> None:
        """Adds a finished shard."""
        self._bytes += done.source_bytes
        seconds = max(self._clock() - self._began, 1e-9)
        self._shown.update(f"{self._bytes / 1e6 / seconds:.0f} MB/s", steps=done.source_samples)

    def close(self) -> None:
        """Called when the conversion has ended or was interrupted."""
        self._shown.close()
