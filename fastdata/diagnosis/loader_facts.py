"""Facts about a loader and its program: length, queue, ranks."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
import torch.utils.data

from fastdata.dataloader.loader import StatelessDataLoader

__all__ = [
    "epoch_length",
    "is_compiled",
    "is_plain",
    "likeness",
    "queued",
    "ranks",
]


def is_plain(loader: Any) -> bool:
    """True if iterating a loader is torch's or fastdata's own affair: others may go on with one iterator for ever."""
    own = type(loader).__iter__
    plain = own in (torch.utils.data.DataLoader.__iter__, StatelessDataLoader.__iter__)
    return plain or type(loader).__module__.startswith(("accelerate.", "fastdata."))


def likeness(loader: Any) -> tuple[Any, ...]:
    """Properties that a loader keeps when it is made anew: (type, type of its dataset, batch size, num_workers)."""
    batch_size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return type(loader), type(loader.dataset), batch_size, loader.num_workers


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
