"""Which sample this thread is making: for the random numbers of fused transforms, and for messages."""

from __future__ import annotations

import operator
import os
import threading
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.loaders.per_image import is_asking_pillow
from fastdata.views.philox import Key
from fastdata.views.streams import Stream, seeds

__all__ = [
    "Draw",
    "Notes",
    "count_decoded",
    "count_fused",
    "count_opened_by_pillow",
    "count_plain",
    "draws_repeated",
    "expect_several_views",
    "expects_several_views",
    "fuse_draws",
    "index_being_made",
    "left_so_far",
    "making",
    "next_draw",
    "note_opened",
    "note_pending",
    "note_seed",
    "note_source",
    "noting",
    "opened_last",
    "opens_encoded",
    "seed_of",
    "set_opens_encoded",
    "sources_of_the_sample",
]

_NEXT_TRANSFORM = 0xD1B54A32D192ED03  # between the seeds of a sample's fused transforms; any large odd number


@dataclass(frozen=True)
class Draw:
    """What random numbers follow from.

    Attributes:
        key: seed and epoch, another for each fused transform of a sample.
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
        left: how many were left, whether or not somebody still holds them.
        decoded: images that the native core decoded for the dataset's own code.
        opened: images that were opened by Pillow, since they could not stay encoded.
        fused: steps of transforms that were done natively, or left with the images.
        plain: why fused transforms were called as they are.
    """

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.left = self.decoded = self.opened = self.fused = 0
        self.plain: set[str] = set()

    @property
    def natively(self) -> bool:
        """True if images were left, or decoded by the native core."""
        return self.left > 0 or self.decoded > 0


class _Making(threading.local):
    key: Key | None = None
    index: Any = None
    copy = transforms = 0
    opens_encoded = False
    several_views = False
    decoded = images_opened = fused = 0

    fuses_draws = True
    repeated = False
    opened = ""

    def __init__(self) -> None:
        self.pending: list[weakref.ref[Any]] = []
        self.plain: set[str] = set()
        self.sources: list[Any] = []
        self.tokens: set[int] = set()
        self.seed: int | None = None  # of torch's generator, as it was when nobody had set it within a sample
        self.seed_after: int | None = None  # the same at the end of the batch before


_this_thread = _Making()


@contextmanager
def making(index: Any, copy: int = 0, key: Key | None = None) -> Iterator[None]:
    """While one sample is made; its fused transforms are counted from 0.  Without a key nothing is drawn for them."""
    mine = _this_thread
    before = mine.key, mine.index, mine.copy, mine.transforms, mine.seed
    mine.key, mine.index, mine.copy, mine.transforms, mine.opened = key, index, copy, 0, ""
    mine.tokens.clear()
    mine.sources = []
    try:
        yield
    finally:
        mine.key, mine.index, mine.copy, mine.transforms, mine.seed = before


def opens_encoded() -> bool:
    """True where images that this thread opens stay encoded."""
    return _this_thread.opens_encoded and not is_asking_pillow()


def set_opens_encoded(value: bool) -> bool:
    """Decides it for this thread; returns what was before."""
    before, _this_thread.opens_encoded = _this_thread.opens_encoded, value
    return before


def expects_several_views() -> bool:
    """True where images that this thread opens may be seen several times."""
    return _this_thread.several_views


def expect_several_views(value: bool) -> bool:
    """Decides it for this thread; returns what was before."""
    before, _this_thread.several_views = _this_thread.several_views, value
    return before


def left_so_far() -> list[Any]:
    """References to the tensors that this thread has left for the batch under way."""
    return _this_thread.pending


def index_being_made() -> Any:
    """As the sampler gave it; None outside of any sample."""
    return _this_thread.index


def note_pending(tensor: Any) -> None:
    """A tensor is left whose images are to be decoded later."""
    _this_thread.pending.append(weakref.ref(tensor))


def count_decoded() -> None:
    """An image was decoded natively for the sample."""
    _this_thread.decoded += 1


def count_plain(why: str) -> None:
    """A fused transform was called as it is."""
    _this_thread.plain.add(why)


def count_fused(steps: int) -> None:
    """Steps of a transform were done natively, or left with an image."""
    _this_thread.fused += steps


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """While a batch is made: what becomes of its images."""
    mine = _this_thread
    before = mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.plain
    mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.plain = [], 0, 0, 0, set()
    if torch.initial_seed() != mine.seed_after:  # seeded since the batch before, which is not the samples' own doing
        note_seed()
    try:
        yield
    finally:
        notes.pending = [tensor for tensor in (reference() for reference in mine.pending) if tensor is not None]
        notes.left, notes.decoded, notes.opened = len(mine.pending), mine.decoded, mine.images_opened
        notes.fused, notes.plain = mine.fused, mine.plain
        mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.plain = before
        mine.seed_after = torch.initial_seed()


def next_draw(*, draws: bool) -> Draw | None:
    """For the next fused transform of the sample under way; None where the transform is to draw, and do, by itself.

    That is where no sample is made for a loader in this thread, and where the user's code decides what is drawn: it
    has seeded torch's generator, or set it back to show two images of a sample alike.  So that this is noticed, a
    fused transform that draws moves the generator on by one number, as the transform itself would by some.

    Args:
        draws: the transform has a random step.
    """
    mine = _this_thread
    if mine.key is None:
        return None
    if draws:
        if not mine.fuses_draws or torch.initial_seed() != mine.seed:
            count_plain("your code seeds torch's generator within a sample")
            return None
        token = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
        if token in mine.tokens:
            mine.repeated = True
            return None
        mine.tokens.add(token)
    number, mine.transforms = mine.transforms, mine.transforms + 1
    return Draw(mine.key.derived(number, _NEXT_TRANSFORM), _as_number(mine.index), mine.copy)


def note_seed() -> None:
    """The seed of torch's generator as it is now is not the user's, who sets another while samples are made."""
    _this_thread.seed = torch.initial_seed()


def draws_repeated() -> bool:
    """True, once, if the user's code has set the generator back within a sample."""
    mine = _this_thread
    repeated, mine.repeated = mine.repeated, False
    return repeated


def fuse_draws(value: bool) -> None:
    """Decides for this thread's next samples: False lets random transforms draw by themselves."""
    _this_thread.fuses_draws = value


def note_opened(opened: Any) -> None:
    """An image file is opened in this thread; for messages."""
    _this_thread.opened = opened


def note_source(source: Any) -> None:
    """An image is opened in this thread that stays encoded."""
    _this_thread.sources.append(source)


def sources_of_the_sample() -> list[Any]:
    """Those of the sample under way."""
    return _this_thread.sources


def count_opened_by_pillow() -> None:
    """An image is opened in this thread that cannot stay encoded."""
    _this_thread.images_opened += 1


def opened_last() -> str:
    """The path of the image that this thread has opened last for the sample under way, or ""."""
    opened = _this_thread.opened
    opened = getattr(opened, "name", opened)
    return os.fsdecode(opened) if isinstance(opened, str | bytes | os.PathLike) else ""


def _as_number(index: Any) -> int:
    """Datasets need not be indexed by numbers."""
    try:
        return operator.index(index)
    except TypeError:
        return zlib.crc32(repr(index).encode())
