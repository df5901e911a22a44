"""Costs of each stage of the pipeline, and the samples that failed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.profiler import record_function

from fastdata.errors import DecodeError, ReadError, SamplesSkipped, ViewError
from fastdata.system.stack_level import users_level

__all__ = ["STAGES", "BatchTimes", "EpochSkips", "PipelineStats"]

STAGES = ("read", "view", "decode", "convert", "transform", "collate")

_QUARANTINE_KEPT = 1000


@dataclass
class BatchTimes:
    """Thread-seconds per stage for one task or one batch, with what they bought."""

    seconds: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    encoded_bytes: int = 0
    cached: int = 0

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
        samples: samples delivered; those that were skipped are not.
        encoded_bytes: bytes read.
        cached: views whose image came from the cache.
        failures: samples that could not be decoded.
        kinds: number of failures of each kind, by the kind in words.
        quarantine: (index, location, reason) of the first thousand of them.
    """

    stage_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    wait_s: float = 0.0
    busy_s: float = 0.0
    batches: int = 0
    samples: int = 0
    encoded_bytes: int = 0
    cached: int = 0
    failures: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    quarantine: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, times: BatchTimes) -> None:
        """Adds one batch's times."""
        for stage, seconds in times.seconds.items():
            self.stage_s[stage] += seconds
        self.samples += times.samples
        self.encoded_bytes += times.encoded_bytes
        self.cached += times.cached

    def add_failure(self, failure: DecodeError) -> None:
        """Counts a sample that could not be decoded, and keeps it in the quarantine list."""
        index, location, reason = failure.index, failure.location, failure.reason
        self.failures += 1
        kind = _kind_of(failure)
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        if len(self.quarantine) < _QUARANTINE_KEPT:
            self.quarantine.append((index, location, reason))

    @property
    def wait_share(self) -> float:
        """Share of the loop's time spent waiting for data, 0 to 1."""
        total = self.wait_s + self.busy_s
        return self.wait_s / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, with `wait_share`."""
        copies = {"stage_s": dict(self.stage_s), "kinds": dict(self.kinds)}
        return {**vars(self), **copies, "wait_share": self.wait_share}


def _kind_of(failure: DecodeError) -> str:
    """Kind of a sample's failure in a few words, for counting."""
    if isinstance(failure, ViewError):
        return "smaller than the crop"
    if isinstance(failure, FileNotFoundError):
        return "missing"
    if isinstance(failure, PermissionError):
        return "not readable"
    reason = failure.reason
    if "decompression bomb" in reason or "exceed the limit" in reason:
        return "too large"
    if "not an image" in reason or "cannot identify" in reason:
        return "not an image"
    if "truncated" in reason or "premature" in reason.lower() or "empty" in reason:
        return "truncated"
    return "could not be read" if isinstance(failure, ReadError) else "damaged"


class EpochSkips:
    """Tells at the end of an epoch what was left out of it.

    Args:
        stats: the loader's totals, as they are when the epoch begins.
    """

    def __init__(self, stats: PipelineStats) -> None:
        self._stats, self._before = stats, dict(stats.kinds)

    def tell(self, epoch: int) -> None:
        """Warns if samples of the epoch were skipped, with how many there were of each kind."""
        kinds = {kind: count - self._before.get(kind, 0) for kind, count in self._stats.kinds.items()}
        found = sorted(((count, kind) for kind, count in kinds.items() if count), reverse=True)
        if not found:
            return
        total, listed = sum(count for count, _ in found), ", ".join(f"{count} {kind}" for count, kind in found)
        warnings.warn(
            f"epoch {epoch}: {total} {'sample was' if total == 1 else 'samples were'} left out (on_error='skip'): "
            f"{listed}; stats()['quarantine'] names them",
            SamplesSkipped,
            stacklevel=users_level(),
        )
