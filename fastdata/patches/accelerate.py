"""Loaders that accelerate makes anew from one of ours.

`Accelerator.prepare` builds a loader of torch's class from the arguments of the given one, and so does
`skip_first_batches`.  A loader built from ours shall be ours, with the choices that only we know (`backend`,
`on_error`, …): accelerate's name for torch's class is replaced by a class that tells by the dataset and the batch
sampler whether a loader of ours is behind it.  Every other loader that accelerate makes is torch's, as before.
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
_MOST_WRAPPERS = 8  # around a batch sampler
_alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id: a class may be unhashable
_turn = threading.Lock()


def remember(loader: Any, make: Callable[..., Any]) -> None:
    """Notes a loader of ours.

    Args:
        loader: the loader.
        make: called with a loader of ours, and what accelerate gives torch's class; makes another with its arguments.
    """
    module = sys.modules.get(_MODULE)
    if module is None:
        return
    with _turn:
        _alive[id(loader)] = loader
        if getattr(module, "DataLoader", None) is torch.utils.data.DataLoader:
            module.DataLoader = _in_place_of(module.DataLoader, make)  # type: ignore[attr-defined]


def _in_place_of(torchs: type[Any], make: Callable[..., Any]) -> type[Any]:
    class Rebuilding(type):
        """Metaclass of a stand-in for torch's DataLoader; it builds a loader of ours if one of ours is rebuilt."""

        def __call__(cls, dataset: Any, *arguments: Any, **named: Any) -> Any:
            origin = _origin(dataset, named.get("batch_sampler"))
            if origin is None:
                return torchs(dataset, *arguments, **named)
            return make(origin, dataset, *arguments, **named)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, torchs)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, torchs)

    return Rebuilding(torchs.__name__, (), {"__doc__": torchs.__doc__})


def _origin(dataset: Any, batch_sampler: Any) -> Any:
    """The loader of ours whose dataset and batch sampler these are; accelerate wraps batch samplers."""
    samplers: list[Any] = []
    while batch_sampler is not None and len(samplers) < _MOST_WRAPPERS:
        samplers.append(batch_sampler)
        batch_sampler = getattr(batch_sampler, "batch_sampler", None)
    with _turn:
        having = [loader for loader in _alive.values() if getattr(loader, "dataset", None) is dataset]
    mine = (loader for loader in having if any(loader.batch_sampler is each for each in samplers))
    return next(mine, None)
