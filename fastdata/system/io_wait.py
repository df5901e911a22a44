"""Measures the time that a thread waits for storage or network instead of computing."""

from __future__ import annotations

import statistics
import time

__all__ = ["WaitingTime"]


class WaitingTime:
    """Wall and CPU seconds of each block of code that runs inside of it, in this thread; not of those that raise.

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
        self._queued_s: list[float] = []

    def __enter__(self) -> None:
        self._began = _queued_s(), time.perf_counter(), time.thread_time()

    def __exit__(self, raised: object, *_: object) -> None:
        ended = time.perf_counter(), time.thread_time()
        queued, wall, cpu = self._began
        if raised is None:
            self.wall_s.append(ended[0] - wall)
            self.cpu_s.append(ended[1] - cpu)
            self._queued_s.append(_queued_s() - queued)

    def _waited_s(self) -> list[float]:
        columns = zip(self.wall_s, self.cpu_s, self._queued_s, strict=True)
        return [max(0.0, wall - cpu - queued) for wall, cpu, queued in columns]

    @property
    def total_s(self) -> float:
        """Seconds in which nothing was computed, though a CPU was free."""
        return sum(self._waited_s())

    @property
    def typical_s(self) -> float:
        """Seconds of one block in which nothing was computed, though a CPU was free: the median."""
        return statistics.median(self._waited_s() or [0.0])

    @property
    def typical_cpu_s(self) -> float:
        """CPU seconds of one block: the median."""
        return statistics.median(self.cpu_s or [0.0])


def _queued_s() -> float:
    """Seconds for which this thread was ready to run and others ran, where the system tells (Linux)."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0
