"""How far a conversion is: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from fastdata.shards.job import ShardDone

__all__ = ["Progress"]

_LINE_EVERY_S = 10.0


class Progress:
    """Says on stderr how many images are done, with images/s, MB/s and the time left.

    A terminal gets a bar where tqdm is installed.  Anything else, like a job's log, gets lines.
    """

    def __init__(self) -> None:
        self._began, self._images, self._bytes, self._total = time.monotonic(), 0, 0, 0
        self._said_at, self._said_images = self._began, -1
        self._bar: Any = None

    def plan(self, images: int | None) -> None:
        """So many images more will come; None where nobody knows."""
        self._total += images or 0
        if not sys.stderr.isatty():
            return
        try:
            from tqdm import tqdm
        except ImportError:
            return
        if self._bar is None:
            self._bar = tqdm(total=self._total or None, unit="image", dynamic_ncols=True)
        else:
            self._bar.total = self._total or None

    def add(self, done: ShardDone) -> None:
        """A shard is finished."""
        self._images += done.source_samples
        self._bytes += done.source_bytes
        if self._bar is not None:
            self._bar.set_postfix_str(f"{self._bytes / 1e6 / self._seconds():.0f} MB/s", refresh=False)
            self._bar.update(done.source_samples)
        elif time.monotonic() - self._said_at >= _LINE_EVERY_S:
            self._say()

    def close(self) -> None:
        """Ends the bar's line, or says a last one."""
        if self._bar is not None:
            self._bar.close()
        elif self._images not in (0, self._said_images):
            self._say()

    def _seconds(self) -> float:
        return max(time.monotonic() - self._began, 1e-9)

    def _say(self) -> None:
        self._said_at, self._said_images = time.monotonic(), self._images
        seconds = self._seconds()
        left = (self._total - self._images) * seconds / max(self._images, 1)
        print(
            f"{self._images} of {self._total or '?'} images, {self._images / seconds:.0f} images/s, "
            f"{self._bytes / 1e6 / seconds:.0f} MB/s" + (f", {max(left, 0):.0f} s left" if self._total else ""),
            file=sys.stderr,
            flush=True,
        )
