"""State of the sample that this thread is making: for the random numbers of fused transforms, and for messages."""

from __future__ import annotations

import operator
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.loaders.per_image import is_asking_pillow
from fastdata.views.given import Given
from fastdata.views.philox import Key
from fastdata.views.streams import Stream, seeds

__all__ = [
    "Draw",
    "Notes",
    "count_converted",
    "count_decoded",
    "count_fused",
    "count_joint",
    "count_opened_by_pillow",
    "count_plain",
    "decodes_at_once",
    "decoding_at_once",
    "draws_repeated",
    "expect_several_views",
    "expects_several_views",
    "fuse_draws",
    "index_being_made",
    "is_for_pillow",
    "left_so_far",
    "making",
    "next_draw",
    "note_batch",
    "note_opened",
    "note_pending",
    "note_seed",
    "note_source",
    "noting",
    "opened_last",
    "opened_so_far",
    "opens_encoded",
    "samples_of_the_batch",
    "seed_of",
    "set_opens_encoded",
    "sources_of_the_sample",
]

_NEXT_TRANSFORM = 0xD1B54A32D192ED03  # between the seeds of a sample's fused transforms; any large odd number


@dataclass(frozen=True)
class Draw:
    """The inputs from which the random numbers of one fused transform follow.

    Attributes:
        key: seed and epoch, different for each fused transform of a sample.
        index: index of the sample.
        occurrence: number of earlier occurrences of the index in the epoch.
        given: numbers that were drawn already, as the transform's own code draws them; None: they follow from the rest.
    """

    key: Key
    index: int
    occurrence: int
    given: Given | None = None

    @property
    def seed(self) -> int:
        """The seed for random functions that the rest of a transform calls."""
        return seed_of(self.key, self.index, self.occurrence)


def seed_of(key: Key, index: Any, occurrence: int) -> int:
    """Returns a seed for random functions that are called for a sample."""
    return seeds(key, Stream.TAIL, [_as_number(index)], [occurrence])[0]


class Notes:
    """Counts of what was done with a batch's images.

    Attributes:
        pending: pending tensors that are still referenced.
        left: number of images left to be decoded with the batch.
        decoded: number of images that the native core decoded for the dataset's own code.
        opened: number of images opened by Pillow, since they could not stay encoded.
        converted: number of images that were converted, whole, to another mode than RGB, if all of them were.
        fused: number of transform steps that were done natively, or left for the batch's decoding.
        joint: number of calls of known transforms with an image and its targets, which they transform by themselves.
        plain: reasons why fused transforms called the original transform instead.
    """

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.left = self.decoded = self.opened = self.fused = self.joint = 0
        self.converted = 0
        self.plain: set[str] = set()

    @property
    def natively(self) -> bool:
        """True if images were left pending, or decoded by the native core."""
        return self.left > 0 or self.decoded > 0


class _Making(threading.local):
    key: Key | None = None
    index: Any = None
    occurrence = transforms = 0
    at_once = 1
    opens_encoded = False
    several_views = decodes_at_once = False
    decoded = images_opened = fused = joint = encoded = converted = 0

    fuses_draws = True
    repeated = False
    opened = ""

    def __init__(self) -> None:
        self.pending: list[weakref.ref[Any]] = []
        self.plain: set[str] = set()
        self.sources: list[Any] = []
        self.tokens: set[int] = set()
        self.batch: list[tuple[int, int]] = []  # index and occurrence of each sample
        self.seed: int | None = None  # seed of torch's generator, unless set within a sample
        self.seed_after: int | None = None  # seed of torch's generator at the end of the previous batch


_this_thread = _Making()


@contextmanager
def making(index: Any, occurrence: int = 0, key: Key | None = None, *, samples: int = 1) -> Iterator[None]:
    """Marks the sample that is made within a `with` block, whose fused transforms count from 0; draws need a key.

    Args:
        index: the sample.
        occurrence: number of its earlier occurrences in the epoch.
        key: seed and epoch.
        samples: number of samples that are made in one call: all of the batch that `note_batch` was told, or one.  The
            calls of transforms are taken to be for one sample after the other, then again for the first.
    """
    mine = _this_thread
    before = mine.key, mine.index, mine.occurrence, mine.transforms, mine.seed, mine.at_once
    mine.key, mine.index, mine.occurrence, mine.transforms, mine.opened = key, index, occurrence, 0, ""
    mine.at_once = samples
    mine.tokens.clear()
    mine.sources = []
    try:
        yield
    finally:
        mine.key, mine.index, mine.occurrence, mine.transforms, mine.seed, mine.at_once = before


def opens_encoded() -> bool:
    """True if images that this thread opens stay encoded."""
    return _this_thread.opens_encoded and not is_asking_pillow()


def set_opens_encoded(value: bool) -> bool:
    """Sets whether images that this thread opens stay encoded; returns the previous value."""
    before, _this_thread.opens_encoded = _this_thread.opens_encoded, value
    return before


def decodes_at_once() -> bool:
    """True if tensors of this thread's images are decoded when they are made."""
    return _this_thread.decodes_at_once


@contextmanager
def decoding_at_once() -> Iterator[None]:
    """Has tensors of this thread's images decoded when they are made, within a `with` block."""
    before, _this_thread.decodes_at_once = _this_thread.decodes_at_once, True
    try:
        yield
    finally:
        _this_thread.decodes_at_once = before


def expects_several_views() -> bool:
    """True if several views of images that this thread opens may be decoded."""
    return _this_thread.several_views


def expect_several_views(value: bool) -> bool:
    """Sets whether several views of this thread's images are expected; returns the previous value."""
    before, _this_thread.several_views = _this_thread.several_views, value
    return before


def left_so_far() -> list[Any]:
    """Returns weak references to the tensors that this thread has left pending for the batch under way."""
    return _this_thread.pending


def index_being_made() -> Any:
    """Returns the current sample's index, as the sampler gave it; None outside of a sample."""
    return _this_thread.index


def note_pending(tensor: Any) -> None:
    """Records a tensor whose images are to be decoded later."""
    _this_thread.pending.append(weakref.ref(tensor))


def count_decoded() -> None:
    """Counts an image that was decoded natively for the sample."""
    _this_thread.decoded += 1


def count_plain(why: str) -> None:
    """Records why a fused transform called the original transform instead."""
    _this_thread.plain.add(why)


def count_fused(steps: int) -> None:
    """Counts transform steps that were done natively, or left for the batch's decoding."""
    _this_thread.fused += steps


def count_joint() -> None:
    """Counts a call of a known transform with an image and its targets."""
    _this_thread.joint += 1


@contextmanager
def noting(notes: Notes) -> Iterator[None]:
    """Collects, within a `with` block in which a batch is made, the counts for its images into `notes`."""
    mine = _this_thread
    before = mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.joint, mine.plain
    mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.joint, mine.plain = [], 0, 0, 0, 0, set()
    mine.encoded = mine.converted = 0
    if torch.initial_seed() != mine.seed_after:  # seeded since the batch before, which is not the samples' own doing
        note_seed()
    try:
        yield
    finally:
        notes.pending = [tensor for tensor in (reference() for reference in mine.pending) if tensor is not None]
        notes.left = sum(each.undecoded.count for each in notes.pending if each.undecoded.known() is None)
        notes.decoded, notes.opened = mine.decoded, mine.images_opened
        notes.fused, notes.joint, notes.plain = mine.fused, mine.joint, mine.plain
        notes.converted = mine.converted if is_for_pillow() else 0
        mine.pending, mine.decoded, mine.images_opened, mine.fused, mine.joint, mine.plain = before
        mine.seed_after = torch.initial_seed()


def next_draw(*, draws: bool) -> Draw | None:
    """Returns the draw of the sample's next fused transform; None if the original transform is to be called instead.

    It is None if no sample is being made for a loader in this thread, or if the user's code controls random numbers:
    it has seeded torch's generator, or set it back to treat two images of a sample alike.  To notice this, a fused
    transform that draws advances the generator by one number, as the original transform would by some.

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
    turn, at = divmod(number, mine.at_once)
    index, occurrence = mine.batch[at] if mine.at_once > 1 else (_as_number(mine.index), mine.occurrence)
    return Draw(mine.key.derived(turn, _NEXT_TRANSFORM), index, occurrence)


def note_batch(samples: Iterable[tuple[Any, int]]) -> None:
    """Records index and occurrence of each sample of the next batch: numbers may be drawn for all of them at once."""
    _this_thread.batch = [(_as_number(index), occurrence) for index, occurrence in samples]


def samples_of_the_batch() -> list[tuple[int, int]]:
    """Returns index and occurrence of each sample of the batch that this thread made last, or makes."""
    return _this_thread.batch


def note_seed() -> None:
    """Records the seed of torch's generator; another seed found later within a sample was set by user code."""
    _this_thread.seed = torch.initial_seed()


def draws_repeated() -> bool:
    """Returns True, once, if the user's code has set the generator back within a sample."""
    mine = _this_thread
    repeated, mine.repeated = mine.repeated, False
    return repeated


def fuse_draws(value: bool) -> None:
    """Sets whether random transforms are fused in this thread's next samples; if False, they draw by themselves."""
    _this_thread.fuses_draws = value


def note_opened(opened: Any) -> None:
    """Records the image file that this thread opens, for messages."""
    _this_thread.opened = opened


def note_source(source: Any) -> None:
    """Records an image that this thread opens and that stays encoded."""
    _this_thread.sources.append(source)
    _this_thread.encoded += 1


def sources_of_the_sample() -> list[Any]:
    """Returns the encoded images that were opened for the sample under way."""
    return _this_thread.sources


def is_for_pillow(before: tuple[int, int] = (0, 0)) -> bool:
    """True if all images since then were converted to another mode than RGB, which Pillow does, and not used in RGB.

    Args:
        before: result of `opened_so_far` at that time; else the batch's begin.
    """
    encoded, converted = opened_so_far()
    return 0 < encoded - before[0] <= converted - before[1]


def opened_so_far() -> tuple[int, int]:
    """How many images of the batch stayed encoded, and how many of these were converted; see `count_converted`."""
    return _this_thread.encoded, _this_thread.converted


def count_converted(number: int) -> None:
    """Counts an encoded image that is converted, whole, to another mode than RGB; -1 for one that is used in RGB."""
    _this_thread.converted += number


def count_opened_by_pillow() -> None:
    """Counts an image that Pillow opens, since it cannot stay encoded."""
    _this_thread.images_opened += 1


def opened_last() -> str:
    """Returns the path of the image opened last in this thread for the sample under way, or ""."""
    opened = _this_thread.opened
    opened = getattr(opened, "name", opened)
    return os.fsdecode(opened) if isinstance(opened, str | bytes | os.PathLike) else ""


def _as_number(index: Any) -> int:
    """Returns the index as an integer; for an index that is no number, a checksum of its repr."""
    try:
        return operator.index(index)
    except TypeError:
        return zlib.crc32(repr(index).encode())
