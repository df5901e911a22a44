"""A clock that moves only when a test says so."""

from __future__ import annotations

__all__ = ["DrawnClock"]


class DrawnClock:
    """Stands for `time.perf_counter` (call it) and for `time.sleep` (`sleep`), or for the module `time` as a whole.

    Attributes:
        now: seconds.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
