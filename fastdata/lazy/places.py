"""Puts fused transforms into the places that hold their originals, and the originals back.

In a worker process they stay, in the training process they are there while a batch is made.  Threads that make batches
of loaders with a transform in common share its place: the first puts its fused transform there, which passes calls of
another thread on to the one of that thread's loader; the last puts the original back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CellType
from typing import Any

from fastdata.lazy.fused_transform import FusedTransform
from fastdata.lazy.sample_context import context
from fastdata.views.plan import Plan

__all__ = ["FusedTransforms", "Place", "original_of"]


@dataclass(frozen=True)
class Place:
    """A place that holds a transform, or a tuple with one.

    Attributes:
        holder: attributes of an object, a dictionary, a list, a class, or the cell of a function's variable.
        key: the key or name there.
        original: what the place holds.
        ours: what takes its place.
    """

    holder: Any
    key: Any
    original: Any
    ours: Any

    def replace(self, old: Any, new: Any) -> bool:
        """Puts `new` in the place if it still holds `old`."""
        if not self.holds(old):
            return False
        if isinstance(self.holder, CellType):
            self.holder.cell_contents = new
        elif isinstance(self.holder, type):
            setattr(self.holder, self.key, new)
        else:
            self.holder[self.key] = new
        return True

    def holds(self, value: Any) -> bool:
        """True if the place holds just this."""
        try:
            if isinstance(self.holder, CellType):
                return self.holder.cell_contents is value
            return (vars(self.holder) if isinstance(self.holder, type) else self.holder)[self.key] is value
        except (KeyError, IndexError, ValueError):  # somebody has removed it
            return False


@dataclass
class _Installed:
    """A place that holds a fused transform now, and the number of threads that make batches with it."""

    swap: Place
    threads: int = 0


_installed: dict[tuple[int, Any], _Installed] = {}  # by holder and key
_lock = threading.Lock()


@dataclass(frozen=True)
class FusedTransforms:
    """The transforms of a dataset that can be fused.

    Attributes:
        plans: the compiled plan of each, by its place, like "transform" or "dataset.transform".
        parts: places of transforms that are steps of a longer transform, which cannot be fused as a whole.
        swaps: the places, each with its original and its fused transform.
        several_views: an image may be given to more than one of them, or several times to one.
        by_original: the fused transforms by the `id` of their originals.
    """

    plans: dict[str, Plan]
    parts: set[str]
    swaps: list[Place]
    several_views: bool = False
    by_original: Mapping[int, FusedTransform] = field(default_factory=dict)

    def install(self) -> None:
        """Puts the fused transforms in all places that still hold the original ones."""
        context.several_views, context.fused_transforms = self.several_views, self.by_original
        for swap in self.swaps:
            swap.replace(swap.original, swap.ours)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the fused transforms within a `with` block; transforms set by other code meanwhile stay."""
        taken: list[tuple[int, Any]] = []
        with context.having(several_views=self.several_views, fused_transforms=self.by_original):
            try:
                with _lock:
                    taken.extend(place for place in map(_take, self.swaps) if place is not None)
                yield
            finally:
                with _lock:
                    for place in taken:
                        _give_back(place)


def original_of(value: Any) -> Any:
    """The transform, or the tuple with one, that stood where a loader has put another one; other values as they are."""
    if type(value) is tuple and any(issubclass(type(each), FusedTransform) for each in value):
        with _lock:
            return next((each.swap.original for each in _installed.values() if each.swap.ours is value), value)
    return value._fastdata[0] if issubclass(type(value), FusedTransform) else value


def _take(swap: Place) -> tuple[int, Any] | None:
    """Has a place hold fused transforms; returns the place, or None if it holds something else by now."""
    place = id(swap.holder), swap.key
    others = _installed.get(place)
    if others is None or others.swap.original is not swap.original or not swap.holds(others.swap.ours):
        if not swap.replace(swap.original, swap.ours):
            return None
        others = _installed.setdefault(place, _Installed(swap))
        others.swap = swap
    others.threads += 1
    return place


def _give_back(place: tuple[int, Any]) -> None:
    """Has a place hold its original again when the last thread has left it, unless other code has set it."""
    own = _installed[place]
    own.threads -= 1
    if not own.threads:
        del _installed[place]
        own.swap.replace(own.swap.ours, own.swap.original)


def _unlock() -> None:
    """Replaces the lock in a forked process, since another thread may have held it when the process was forked."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
