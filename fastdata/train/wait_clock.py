"""Measures how long training waits for data: by the host's clock, or on a GPU by the device's."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from fastdata.system import cuda

__all__ = ["WaitClock"]


class WaitClock:
    """Sums the seconds from the end of each step's work until the next batch has come.

    On a CUDA device the host only launches work and may be far ahead of it: what it waits for is then no loss.  So
    both ends are events on the consumer's stream, and what counts is how long the device was idle between them.  A
    device without such events, as the CPU, is measured by the host's clock.

    Args:
        device: the device that computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pairs: deque[tuple[Any, Any]] = deque()  # whose times are not known yet
        self._began: Any = None
        self._seconds = 0.0

    def ask(self) -> None:
        """To be called when a step's work has been launched, before the next batch is asked for."""
        self._began = self._now()

    def came(self) -> None:
        """To be called when the batch has come."""
        if self._device.type == "cuda":
            self._pairs.append((self._began, self._now()))
        else:
            self._seconds += self._now() - self._began

    def seconds(self) -> float:
        """The sum so far, of all batches that the device has reached; does not wait for it."""
        while self._pairs and self._pairs[0][1].query():
            began, ended = self._pairs.popleft()
            self._seconds += began.elapsed_time(ended) / 1e3
        return self._seconds

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        return cuda.recorded_event(cuda.current_stream(self._device), timed=True)
