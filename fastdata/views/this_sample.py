"""Which sample this thread is making: for the random numbers of captured transforms, and for messages."""

from __future__ import annotations

import operator
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fastdata.views.philox import Key
from fastdata.views.streams import Stream, seeds

__all__ = [
    "Draw",
    "Notes",
    "count_decoded",
    "index_being_made",
    "making",
    "next_draw",
    "note_pending",
    "noting",
    "opens_encoded",
    "pillow_decodes",
    "seed_of",
    "set_opens_encoded",
]

_NEXT_CAPTURE = 0xD1B54A32D192ED03  # between the seeds of a sample's captures; any large odd number


@dataclass(frozen=True)
class Draw:
    """What random numbers follow from.

    Attributes:
        key: seed and epoch, another for each capture of a sample.
        index: the sample.
        copy: how often it has come before in the epoch.
    """

    key: Key
    index: int
    copy: int

    @property
    def seed(self) -> int:
        """For random functions that the rest of a transform calls."""
        return seed_of(self.key, self.index, self.copy)


def seed_of(key: Key, index: Any, copy: int) -> int:
    """A seed for random functions that are called for a sample."""
    return seeds(key, Stream.TAIL, [_as_number(index)], [copy])[0]


class Notes:
    """What became of a batch's images.

    Attributes:
        pending: tensors left to be decoded later that somebody still holds.
        natively: some were left, or decoded by the native core for the dataset's own code.
    """

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.natively = False


class _Making(threading.local):
    key: Key | None = None
    index: Any = None
    copy = captures = 0
    opens_encoded = False
    decoded = 0

    def __init__(self) -> None:
        self.pending: list[weakref.ref[Any]] = []


_this_thread = _Making()


@contextmanager
def making(index: Any, copy: int = 0, key: Key | None = None) -> Iterator[None]:
    """While one sample is made; its captures are counted from 0.  Without a key nothing is drawn for them."""
    mine = _this_thread
    before = mine.key, mine.index, mine.copy, mine.captures
    mine.key, mine.index, mine.copy, mine.captures = key, index, copy, 0
    try:
        yield
    finally:
        mine.key, mine.index, mine.copy, mine.captures = before


def opens_encoded() -> bool:
    """True where images that this thread opens stay encoded."""
    return _this_thread.opens_encoded


def set_opens_encoded(value: bool) -> bool:
    """Decides it for this thread; returns what was before."""
    before, _this_thread.opens_encoded = _this_thread.opens_encoded, value
    return before


@contextmanager
def pillow_decodes() -> Iterator[None]:
    """While Pillow decodes what the core could not: what it opens is opened."""
    before = set_opens_encoded(False)
    try:
        yield
    finally:
        set_opens_encoded(before)


def index_being_made() -> Any:
    """As the sampler gave it; None outside of any sample."""
    return _this_thread.index


def note_pending(tensor: Any) -> None:
    """A tensor is left whose images are to be decoded later."""
    _this_thread.pending.append(weakref.ref(tensor))


def count_decoded() -> None:
    """An image was decoded natively for the sample."""
    _this_thread.decoded += 1


@contextmanager
def noting() -> Iterator[Notes]:
    """While a batch is made: what becomes of its images."""
    mine, notes = _this_thread, Notes()
    before = mine.pending, mine.decoded
    mine.pending, mine.decoded = [], 0
    try:
        yield notes
    finally:
        notes.pending = [tensor for tensor in (reference() for reference in mine.pending) if tensor is not None]
        notes.natively = bool(mine.pending) or mine.decoded > 0
        mine.pending, mine.decoded = before


def next_draw() -> Draw | None:
    """For the next capture of the sample under way; None where no sample is made for a loader in this thread."""
    mine = _this_thread
    if mine.key is None:
        return None
    number, mine.captures = mine.captures, mine.captures + 1
    return Draw(mine.key.derived(number, _NEXT_CAPTURE), _as_number(mine.index), mine.copy)


def _as_number(index: Any) -> int:
    """Datasets need not be indexed by numbers."""
    try:
        return operator.index(index)
    except TypeError:
        return zlib.crc32(repr(index).encode())
