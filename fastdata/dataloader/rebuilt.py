"""Loaders that accelerate makes anew from one of ours.

`Accelerator.prepare` builds a loader of torch's class from the arguments of the given one, and so does
`skip_first_batches`.  A loader built from ours shall be ours, with the choices that only we know (`backend`,
`on_error`, …): accelerate's name for torch's class is replaced by a function that tells by the dataset whether a loader
of ours is behind it.  Every other loader that accelerate makes is torch's, as before.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch.utils.data

__all__ = ["remember"]

_MODULE = "accelerate.data_loader"
_CHOICES = (
    "backend",
    "fidelity",
    "device",
    "seed",
    "on_error",
    "memory_format",
    "augment_on",
    "workers",
    "decode_device",
    "dali",
    "progress",
)

_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: a class may be unhashable
_turn = threading.Lock()


def remember(loader: Any, make: Callable[..., Any]) -> None:
    """Notes a loader of ours.

    Args:
        loader: the loader.
        make: our class, which makes another with the same arguments.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    with _turn:
        _alive[id(loader)] = loader
        if getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
            module.DataLoader = _in_place_of(module.DataLoader, make)  # type: ignore[attr-defined]


def _in_place_of(torchs: Callable[..., Any], make: Callable[..., Any]) -> Callable[..., Any]:
    def rebuilt(dataset: Any, *arguments: Any, **named: Any) -> Any:
        origin = _origin(dataset, named.get("batch_sampler"))
        if origin is None:
            return torchs(dataset, *arguments, **named)
        return make(dataset, *arguments, **named, **{choice: getattr(origin, choice) for choice in _CHOICES})

    return rebuilt


def _origin(dataset: Any, batch_sampler: Any) -> Any:
    """The loader of ours that has a dataset, and if there are several, the one that has the batch sampler."""
    with _turn:
        having = [loader for loader in _alive.values() if getattr(loader, "dataset", None) is dataset]
    inner = getattr(batch_sampler, "batch_sampler", batch_sampler)  # of accelerate's BatchSamplerShard
    same = [loader for loader in having if loader.batch_sampler is inner]
    return (same or having or [None])[0]
