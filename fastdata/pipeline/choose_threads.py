"""num_workers="auto": as many threads as keep the CPUs busy while some of them wait for storage or network."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import run_all
from fastdata.pipeline.resources import EpochResources
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource, some_indices
from fastdata.system.io_wait import WaitingTime
from fastdata.views.philox import Key

__all__ = ["MOST_PER_CPU", "ThreadChoice", "choose_threads"]

MOST_PER_CPU = 4  # where files come slowly
_KEY = Key(seed=0, epoch=0)
_SAMPLES = 8
_BUDGET_S = 0.2  # for reading, and again for making samples; one is enough


@dataclass(frozen=True)
class ThreadChoice:
    """The chosen number of threads, and the reason in words, for `explain()`."""

    threads: int
    reason: str


def choose_threads(config: PipelineConfig, *, cpus: int) -> ThreadChoice:
    """Reads samples spread over the source, and makes them; takes CPUs × (1 + time waited / CPU time) of one.

    That is how many threads keep all CPUs busy (B. Goetz, Java Concurrency in Practice, 8.2); never fewer than there
    are CPUs, and at most `MOST_PER_CPU` times as many.  Samples that cannot be read or made are left out.

    Args:
        config: configuration of the epoch.
        cpus: number of CPUs that may be used.
    """
    if isinstance(config.source, ArraySource):
        return ThreadChoice(cpus, "as many as CPUs: pixels are in memory")
    # Windows counts CPU time in steps that are longer than an image takes.
    if config.backend.batch_decoder() is not None or os.name == "nt":
        return ThreadChoice(cpus, "as many as CPUs")
    samples = list(some_indices(config.source, _SAMPLES))
    reading, making = _read(config.source, samples), _make(config, samples)
    if not (reading.wall_s and making.wall_s):
        return ThreadChoice(cpus, "as many as CPUs: no sample tried could be made")
    waits_s, work_s = reading.typical_s, making.typical_cpu_s
    threads = min(MOST_PER_CPU * cpus, max(cpus, round(cpus * (1 + waits_s / max(work_s, 1e-6)))))
    reason = (
        f"for {cpus} CPUs: reading an image waits {1e3 * waits_s:.2f} ms for storage, making the sample takes "
        f"{1e3 * work_s:.2f} ms of CPU time ({len(reading.wall_s)} of your samples)"
    )
    return ThreadChoice(threads, reason)


def _tried(samples: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yields samples, and True for those to count.  The first comes twice: it has to load libraries and open stores."""
    if not samples:
        return
    yield samples[0], False
    deadline = time.perf_counter() + _BUDGET_S
    for sample in (*samples[1:], samples[0]):  # which is the only one, or has been read before
        yield sample, True
        if time.perf_counter() > deadline:
            return


def _read(source: ImageSource, samples: Sequence[int]) -> WaitingTime:
    counted, others = WaitingTime(), WaitingTime()
    for sample, counts in _tried(samples):
        with suppress(Exception), counted if counts else others:  # sources raise many kinds; the epoch will report it
            source.read_encoded(sample)
    return counted


def _make(config: PipelineConfig, samples: Sequence[int]) -> WaitingTime:
    """Makes batches of one in this thread, as they would be made."""
    alone = replace(
        config, key=_KEY, threads=0, on_error="raise", device=None, pin=False, order=None, torchs_workers=None
    )
    resources, counted, others = EpochResources(alone), WaitingTime(), WaitingTime()
    try:
        for sample, counts in _tried(samples):
            batch = ImageBatch(resources, 0, [sample], [0])
            with suppress(Exception), counted if counts else others:
                run_all(batch.tasks)
                batch.finish()
                batch.result()
    finally:
        resources.close(ended=True)
    return counted
