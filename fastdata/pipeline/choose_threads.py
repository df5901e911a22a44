"""num_workers="auto": as many threads as keep the CPUs busy while some of them wait for storage or network."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from fastdata.loaders import Backend
from fastdata.loaders.per_image import inspect
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource, some_indices
from fastdata.system.waiting import WaitingTime
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key
from fastdata.views.plan import Plan

__all__ = ["MOST_PER_CPU", "ThreadChoice", "choose_threads"]

MOST_PER_CPU = 4  # where files come slowly
_KEY = Key(seed=0, epoch=0)
_SAMPLES = 8
_BUDGET_S = 0.2  # for reading, and again for decoding; one sample is enough
_COARSE_S = 1e-3  # a clock of CPU time that cannot tell an image's from nothing


@dataclass(frozen=True)
class ThreadChoice:
    """How many threads, and why, in words, for `explain()`."""

    threads: int
    reason: str


def choose_threads(source: ImageSource, plan: Plan, backend: Backend, *, cpus: int) -> ThreadChoice:
    """Reads and decodes samples spread over the source; takes CPUs × (1 + time waited / CPU time) of one.

    That is how many threads keep all CPUs busy (B. Goetz, Java Concurrency in Practice, 8.2); never fewer than there
    are CPUs, and at most `MOST_PER_CPU` times as many.  Samples that cannot be read or decoded are left out.

    Args:
        source: the samples.
        plan: what is done to them.
        backend: who decodes.
        cpus: that may be used.
    """
    if isinstance(source, ArraySource):
        return ThreadChoice(cpus, "as many as CPUs: pixels are in memory")
    if backend.batch_decoder() is not None or time.get_clock_info("thread_time").resolution > _COARSE_S:
        return ThreadChoice(cpus, "as many as CPUs")
    read = _read_some(source)
    decode_s = _decoding_s(read.images, plan, backend)
    if decode_s <= 0:
        return ThreadChoice(cpus, "as many as CPUs: no sample tried could be decoded")
    work_s = read.cpu_s + decode_s
    threads = min(MOST_PER_CPU * cpus, max(cpus, round(cpus * (1 + read.waited_s / work_s))))
    reason = (
        f"for {cpus} CPUs: reading an image waits {1e3 * read.waited_s:.2f} ms for storage, the rest takes "
        f"{1e3 * work_s:.2f} ms ({len(read.images)} of your samples)"
    )
    return ThreadChoice(threads, reason)


@dataclass(frozen=True)
class _Read:
    """Encoded images; seconds that a read typically waited, and its CPU seconds."""

    images: list[bytes]
    waited_s: float
    cpu_s: float


def _read_some(source: ImageSource) -> _Read:
    images: list[bytes] = []
    waiting, deadline = WaitingTime(), time.perf_counter() + _BUDGET_S
    for index in some_indices(source, 2 * _SAMPLES + 1)[1::2] or range(min(1, len(source))):  # hardly any timed before
        with suppress(Exception), waiting:  # sources raise many kinds; the epoch will report it
            images.append(source.read_encoded(index))
        if time.perf_counter() > deadline:
            break
    return _Read(images, waiting.typical_s, sum(waiting.cpu_s) / max(1, len(waiting.cpu_s)))


def _decoding_s(images: list[bytes], plan: Plan, backend: Backend) -> float:
    """CPU seconds of one, decoded as it would be; 0 if none can be."""
    waiting, deadline, decoded = WaitingTime(), time.perf_counter() + _BUDGET_S, 0
    for number, data in enumerate(images):
        with suppress(Exception):
            image = inspect(data)
            size = np.array([[image.width, image.height]], np.int64)
            (view,) = draw_views(plan.ops, size, np.array([number]), key=_KEY).rows()
            place = [np.empty((*view.size, 3), np.uint8)]
            if decoded == 0:
                backend.decode([image], [view], place)  # loads libraries
            with waiting:
                decoded += backend.decode([image], [view], place) == [None]
        if time.perf_counter() > deadline:
            break
    return sum(waiting.cpu_s) / len(waiting.cpu_s) if decoded else 0.0
