"""Whether decode threads keep each other waiting for Python's interpreter, which the rest of a transform may hold."""

from __future__ import annotations

import itertools
import math
import time
from contextlib import suppress
from dataclasses import replace

from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.timed_before import key_of, recall, remember
from fastdata.sources.protocol import some_indices
from fastdata.system.cpus import usable_cpus

__all__ = ["tail_holds_interpreter"]

_ALONE_S = 0.03
_TOGETHER_S = 0.12
_LONGEST_S = 0.3
_MOST_DIFFERENT = 64  # samples
_SCALES = 0.85  # share of what as many processes would make, with what they cost taken off


def tail_holds_interpreter(config: PipelineConfig) -> bool:
    """Makes a few samples in one thread, then in as many as will decode; True if these wait for each other.

    Takes a few tenths of a second, or as long as some samples if these take longer, and is done on two occasions for
    the same dataset, transform and machine (pipeline/timed_before.py).  The steps that are called are copies of the
    user's, and draw from generators of their own.

    Args:
        config: of a pipeline whose plan has a tail; two threads at least are tried, as the training loop is one, too.
    """
    circumstances = {"tail_of": config.threads, "fidelity": config.backend.fidelity}
    key = key_of(config.source, config.plan, [config.backend], **circumstances)
    before = recall(key) if key is not None else None
    if before is not None and before.ms.keys() != {"alone", "together", "threads"}:
        before = None
    if before is not None and before.settled:
        timed = before.ms
    else:
        timed = _timed(config)
        if before is not None:
            least = min(timed, before.ms, key=lambda each: each["together"])
            timed = {**least, "alone": min(timed["alone"], before.ms["alone"])}
        if key is not None:
            remember(key, timed, before)
    return timed["alone"] / min(timed["threads"], usable_cpus()) < _SCALES * timed["together"]


def _timed(config: PipelineConfig) -> dict[str, float]:
    """Milliseconds that each sample adds in one thread, and in several; and how many those are."""
    config = replace(config, collate_fn=list, on_error="raise", pin=False)
    alone = _seconds_per_sample(config, 1, 1)
    if (count := int(_ALONE_S / alone)) > 1:
        alone = _seconds_per_sample(config, 1, count)
    threads = max(2, min(config.threads, int(_LONGEST_S / alone)))  # if they wait, samples come one after the other
    rounds = max(1, math.ceil(_TOGETHER_S / alone / threads))
    together = _seconds_per_sample(config, threads, rounds * threads)
    return {"alone": alone * 1e3, "together": together * 1e3, "threads": threads}


def _seconds_per_sample(config: PipelineConfig, threads: int, count: int) -> float:
    """What each of some samples adds that some threads make; those that fail are not counted.

    Nor are the first, one for each thread: a thread that begins loads libraries and starts threads of torch's.
    """
    resources = EpochResources(replace(config, threads=threads))
    indices = itertools.islice(itertools.cycle(some_indices(config.source, _MOST_DIFFERENT)), threads + count)
    jobs = (ImageBatch(resources, number, [index], [0]) for number, index in enumerate(indices))
    running = OrderedJobs(jobs, threads=threads, depth=threads, on_close=resources.close)
    made = 0
    try:
        for _ in range(threads):
            with suppress(Exception):
                next(running)
        began = time.perf_counter()
        for _ in range(count):
            with suppress(Exception):  # of damaged files, of the user's own code; the epoch will report it
                next(running)
                made += 1
        return (time.perf_counter() - began) / max(1, made)
    finally:
        running.close()
