"""Whether decode threads keep each other waiting for Python's interpreter, which the rest of a transform may hold."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from dataclasses import replace
from types import FunctionType

from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.timed_before import key_of, recall, remember
from fastdata.sources.protocol import ImageSource
from fastdata.system.cpus import usable_cpus

__all__ = ["tail_holds_interpreter"]

_ALONE_S = 0.03
_TOGETHER_S = 0.06
_MOST_THREADS = 16
_SCALES = 0.75  # share of what as many processes would make, with what they cost taken off


def tail_holds_interpreter(config: PipelineConfig) -> bool:
    """Makes a few samples in one thread, then in as many as will decode; True if these wait for each other.

    Takes about a tenth of a second, and is not repeated for the same dataset, transform and machine
    (pipeline/timed_before.py).  The steps that are called are copies of the user's, and draw from generators of their
    own.

    Args:
        config: of a pipeline whose plan has a tail; two threads at least are tried, as the training loop is one, too.
    """
    threads = max(2, min(config.threads, _MOST_THREADS))
    try:
        steps = [_fingerprint(step) for step in config.plan.tail]
        key = key_of(config.source, config.plan, [config.backend], threads=threads, steps=steps)
    except Exception:  # noqa: BLE001 - sources and steps are the user's
        key = None
    before = recall(key) if key is not None else None
    if before is None or not before.keys() >= {"alone", "together"}:
        before = _ms_per_sample(config, threads)
        if key is not None:
            remember(key, before)
    wanted = before["alone"] / min(threads, usable_cpus())
    return wanted < _SCALES * before["together"]


def _ms_per_sample(config: PipelineConfig, threads: int) -> dict[str, float]:
    """Milliseconds that each sample adds, made by one thread and by several."""
    config = replace(config, collate_fn=list, on_error="raise", pin=False)
    _make_samples(config, 1, 0)  # loads libraries
    alone, together = _make_samples(config, 1, _ALONE_S), _make_samples(config, threads, _TOGETHER_S)
    return {"alone": 1e3 * alone, "together": 1e3 * together}


def _make_samples(config: PipelineConfig, threads: int, seconds: float) -> float:
    """Seconds for each sample that some threads make for a while, at least one each."""
    resources = EpochResources(replace(config, threads=threads))
    indices = itertools.cycle(_some(config.source))
    jobs = (ImageBatch(resources, number, [index], [0]) for number, index in enumerate(indices))
    running = OrderedJobs(jobs, threads=threads, depth=2 * threads, on_close=resources.close)
    made, began = 0, time.perf_counter()
    try:
        while made < threads or time.perf_counter() < began + seconds:
            with suppress(Exception):  # of the user's own code; the epoch will report it
                next(running)
            made += 1
        return (time.perf_counter() - began) / made
    finally:
        running.close()


def _some(source: ImageSource) -> list[int]:
    """Samples spread over a source, or where it says that they are at hand."""
    near = getattr(source, "near_indices", None)
    return list(near(64)) if near is not None else list(range(0, len(source), max(1, len(source) // 64)))


def _fingerprint(step: object) -> tuple[object, ...]:
    """What a step is and does, as far as that can be named."""
    code = getattr(step if isinstance(step, FunctionType) else vars(type(step)).get("__call__"), "__code__", None)
    shown = repr(step) if " at 0x" not in repr(step) else ""
    return type(step).__module__, type(step).__qualname__, shown, code.co_code if code is not None else b""
