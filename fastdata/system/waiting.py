"""How long a thread waits, for storage or network, while it does something, instead of computing."""

from __future__ import annotations

import statistics
import time

__all__ = ["WaitingTime"]


class WaitingTime:
    """Wall and CPU seconds of each block of code that runs inside of it, in this thread.

    Example:
        >>> waiting = WaitingTime()
        >>> for path in paths:
        ...     with waiting:
        ...         open(path, "rb").read()
        >>> waiting.typical_s
    """

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        wall, cpu = self._began
        self.cpu_s.append(time.thread_time() - cpu)
        self.wall_s.append(time.perf_counter() - wall)

    @property
    def total_s(self) -> float:
        """Seconds in which nothing was computed."""
        return max(0.0, sum(self.wall_s) - sum(self.cpu_s))

    @property
    def typical_s(self) -> float:
        """The same of one block: the median, as any of them may have had to wait for a busy machine's other work."""
        waited = [max(0.0, wall - cpu) for wall, cpu in zip(self.wall_s, self.cpu_s, strict=True)]
        return statistics.median(waited) if waited else 0.0
