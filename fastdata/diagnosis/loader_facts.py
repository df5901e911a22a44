"""Facts about a loader and its program: length, queue, ranks, and the time to hand a batch to the GPU."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Generator
from typing import Any

import torch
import torch.utils.data
from torch.utils._pytree import tree_leaves

from fastdata.dataloader.loader import StatelessDataLoader
from fastdata.system import cuda

__all__ = [
    "epoch_length",
    "handover_ms",
    "is_compiled",
    "is_plain",
    "likeness",
    "over_and_over",
    "queued",
    "ranks",
]

_HANDED_OVER = 5  # times


def is_plain(loader: Any) -> bool:
    """True if iterating a loader is torch's or fastdata's own affair: others may go on with one iterator for ever."""
    own = type(loader).__iter__
    plain = own in (torch.utils.data.DataLoader.__iter__, StatelessDataLoader.__iter__)
    return plain or type(loader).__module__.startswith(("accelerate.", "fastdata."))


def likeness(loader: Any) -> tuple[Any, ...]:
    """Properties that a loader keeps when it is made anew: (type, type of its dataset, batch size, num_workers)."""
    batch_size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return type(loader), type(loader.dataset), batch_size, loader.num_workers


def over_and_over(loader: Any) -> Generator[Any, None, None]:
    """Batches of a loader, one epoch after the other; an epoch without any ends it."""
    has_any = True
    while has_any:
        has_any = False
        for batch in loader:
            has_any = True
            yield batch


def handover_ms(batch: Any) -> tuple[float, float, float]:
    """Milliseconds to pin a batch in host memory, to copy it to the GPU from there, and from memory that is not pinned.

    Medians of some times.
    """
    tensors = [leaf.cpu() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    pageable = [torch.empty_like(each).copy_(each) for each in tensors]  # which is not pinned, if `each` was
    took: list[tuple[float, float, float]] = []
    for _ in range(_HANDED_OVER):
        times = [time.perf_counter()]
        pinned = [each.pin_memory() for each in pageable]
        times.append(time.perf_counter())
        for batches in (pinned, pageable):
            for each in batches:
                each.to("cuda", non_blocking=True)
            cuda.synchronize()
            times.append(time.perf_counter())
        took.append((times[1] - times[0], times[2] - times[1], times[3] - times[2]))
    pin_s, copy_s, pageable_s = (statistics.median(part) for part in zip(*took, strict=True))
    return 1e3 * pin_s, 1e3 * copy_s, 1e3 * pageable_s


def epoch_length(*known: Any) -> float:
    """Length of the first object that has one; infinite if none has, or if it belongs to an iterable dataset."""
    for each in known:
        if isinstance(getattr(each, "dataset", None), torch.utils.data.IterableDataset):
            return math.inf
        try:
            return len(each)
        except (TypeError, AttributeError, NotImplementedError):
            continue
    return math.inf


def queued(loader: Any) -> int:
    """Batches that may be ready before a loader is asked."""
    workers, factor = getattr(loader, "num_workers", 0), getattr(loader, "prefetch_factor", None)
    return int(workers or 0) * int(factor or 2)


def ranks() -> int:
    """Ranks of a distributed run; 0 if it is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_world_size())


def is_compiled() -> bool:
    """True if torch.compile has made something of this process's code."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"].get("unique_graphs", 0))
