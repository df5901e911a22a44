"""What each stage of the pipeline cost, and which samples failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.profiler import record_function

__all__ = ["STAGES", "BatchTimes", "PipelineStats"]

STAGES = ("read", "view", "decode", "convert", "transform", "collate")

_QUARANTINE_KEPT = 1000


@dataclass
class BatchTimes:
    """Thread-seconds per stage for one task or one batch, with what they bought."""

    seconds: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    encoded_bytes: int = 0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Books the time of a block under one of `STAGES`, and shows it to torch.profiler as "fastdata.NAME"."""
        with record_function(f"fastdata.{name}"):
            began = time.perf_counter()
            try:
                yield
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began


@dataclass
class PipelineStats:
    """Totals of a loader since it was made; written by the consumer's thread alone.

    Attributes:
        stage_s: thread-seconds per stage, summed over all decode threads; when the native core reads and decodes whole
            batches, seconds of its calls, which include waiting for its threads.
        wait_s: seconds the caller waited in `next()`.
        busy_s: seconds the caller spent between two `next()` calls.
        batches: batches delivered.
        samples: samples decoded.
        encoded_bytes: bytes read.
        failures: samples that could not be decoded.
        quarantine: (index, location, reason) of the first thousand of them.
    """

    stage_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    wait_s: float = 0.0
    busy_s: float = 0.0
    batches: int = 0
    samples: int = 0
    encoded_bytes: int = 0
    failures: int = 0
    quarantine: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, times: BatchTimes) -> None:
        """Adds one batch's times."""
        for stage, seconds in times.seconds.items():
            self.stage_s[stage] += seconds
        self.samples += times.samples
        self.encoded_bytes += times.encoded_bytes

    def add_failure(self, index: int, location: str, reason: str) -> None:
        """Counts a sample that could not be decoded, and keeps it in the quarantine list."""
        self.failures += 1
        if len(self.quarantine) < _QUARANTINE_KEPT:
            self.quarantine.append((index, location, reason))

    @property
    def wait_share(self) -> float:
        """Share of the loop's time spent waiting for data, 0 to 1."""
        total = self.wait_s + self.busy_s
        return self.wait_s / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, with `wait_share`."""
        return {**vars(self), "stage_s": dict(self.stage_s), "wait_share": self.wait_share}
