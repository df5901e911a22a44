"""State of the sample that this thread is making: for the random numbers of fused transforms, and for messages."""

from __future__ import annotations

import operator
import os
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from fastdata.lazy.batch_messages import ImageCounts
from fastdata.loaders.fallback import is_asking_pillow
from fastdata.system.stack_level import librarys_call
from fastdata.views.given import Given
from fastdata.views.philox import Key

__all__ = ["Draw", "Notes", "SampleContext", "context", "still_pending"]

_NEXT_TRANSFORM = 0xD1B54A32D192ED03  # between the seeds of a sample's fused transforms; any large odd number
_USES_KEPT = 3


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


@dataclass
class Notes(ImageCounts):
    """Counts of what was done with a batch's images while it is made, and the tensors that were left pending.

    Attributes:
        decoded: only those that were decoded for the dataset's own code.
        converted: less those that are used in RGB, too; in the end 0, unless it is all of them.
        encoded: images that stayed encoded when they were opened.
        pending: weak references to the tensors that were left pending.
        kept: those of them that are still referenced when the batch has been made.
    """

    encoded: int = 0
    pending: list[weakref.ref[Any]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)

    def counts(self, samples: int) -> ImageCounts:
        """Returns the counts of the batch, with so many samples, when it has been made."""
        made = ImageCounts()
        made.add(self)
        made.samples, made.decoded = samples, 0 if self.converted else self.left + self.decoded
        return made

    def note_handed(self) -> None:
        """Counts an image whose pixels are given to Pillow, and notes for which function."""
        self.handed += 1
        if len(self.uses) < _USES_KEPT and (use := librarys_call()):
            self.uses.add(use)

    @property
    def natively(self) -> bool:
        """True if images were left pending, or decoded by the native core."""
        return self.left > 0 or self.decoded > 0

    def note_alone(self, source: Any, view: Any, *, for_pillow: bool, at_once: bool) -> None:
        """Counts an image of which a view is decoded by itself, as are all of a stream: `at_once`."""
        self.decoded += 1
        if not at_once:
            self.in_vain += source.note_alone(view, for_pillow=for_pillow)


class _Having:
    """Puts values into a dictionary within a `with` block; quick, since a sample may be nothing but a number."""

    __slots__ = ("_before", "_into", "_values")

    def __init__(self, into: dict[str, Any], values: dict[str, Any]) -> None:
        self._into, self._values = into, values

    def __enter__(self) -> None:
        into = self._into
        self._before = {name: into[name] for name in self._values}
        into.update(self._values)

    def __exit__(self, *_: object) -> None:
        self._into.update(self._before)


class SampleContext(threading.local):
    """State of the sample, and of the batch, that this thread is making.

    Attributes:
        key: seed and epoch; None if no sample is being made for a loader, and in streams.
        index: the sample's index, as the sampler gave it; None outside of a sample.
        occurrence: number of earlier occurrences of the index in the epoch.
        at_once: number of samples that are made in one call.
        batch: index and occurrence of each sample of the batch: numbers may be drawn for all of them at once.
        opened: the image file that was opened last.
        sources: the encoded images that were opened for the sample; None outside of a sample, as in streams, which
            would fill it for ever.
        notes: what was done with the batch's images; outside of a batch, counts that nobody reads.
        has_left_some: a tensor has been left pending, at any time, which the dataset may have kept.
        leaves_encoded: images that are opened may stay encoded; see `opens_encoded`.
        is_for_others: none does for now, since that gained nothing: the library that opens an image decodes it.
        modes_for_pillow: modes of images that are opened by Pillow, since they are used in that mode, as masks are.
        decodes_at_once: tensors of images are decoded when they are made.
        several_views: several views of an image may be decoded.
        follows: a stream is read: fused transforms draw what their own code would draw, and need no key.
        fused_transforms: those of the loader that makes the batch, by the `id` of their originals.
        repeats_views: code in this thread has asked for the pixels of one view several times; from then on each image
            keeps a copy of those that were asked for last.
        fuses_draws: random transforms are fused; if False, they draw by themselves.
        repeats_draws: the user's code has set the generator back within a sample.
    """

    def __init__(self) -> None:
        self.key: Key | None = None
        self.index: Any = None
        self.occurrence, self.at_once = 0, 1
        self.batch: list[tuple[int, int]] = []
        self.opened: Any = ""
        self.sources: list[Any] | None = None
        self.notes = self._nobodys = Notes()
        self.has_left_some = self.leaves_encoded = self.decodes_at_once = self.several_views = False
        self.is_for_others, self.modes_for_pillow = False, frozenset[str]()
        self.fused_transforms: Mapping[int, Any] = {}
        self.repeats_views = self.follows = False
        self.fuses_draws, self.repeats_draws = True, False
        self._transforms = 0  # fused transforms that the sample has had
        self._tokens: set[int] = set()  # numbers that its transforms have drawn
        self._seed: int | None = None  # seed of torch's generator, unless set within a sample
        self._seed_after: int | None = None  # the same at the end of the previous batch

    @property
    def opens_encoded(self) -> bool:
        """True if images that this thread opens stay encoded."""
        return self.leaves_encoded and not is_asking_pillow()

    def having(self, **attributes: Any) -> _Having:
        """Sets attributes within a `with` block."""
        return _Having(vars(self), attributes)

    def making(self, index: Any, occurrence: int = 0, key: Key | None = None, *, samples: int = 1) -> _Having:
        """Marks the sample that is made in the `with` block that begins now, whose fused transforms count from 0.

        Draws need a key.

        Args:
            index: the sample.
            occurrence: number of its earlier occurrences in the epoch.
            key: seed and epoch.
            samples: number of samples that are made in one call: all of the batch that `note_batch` was told, or one.
                The calls of transforms are taken to be for one sample after the other, then again for the first.
        """
        own = vars(self)
        own["opened"] = ""
        own["_tokens"].clear()
        facts = {"key": key, "index": index, "occurrence": occurrence, "sources": [], "at_once": samples}
        return _Having(own, {**facts, "_transforms": 0, "_seed": own["_seed"]})

    @contextmanager
    def noting(self, notes: Notes) -> Iterator[None]:
        """Collects into `notes`, within a `with` block in which a batch is made, what is done with its images."""
        if torch.initial_seed() != self._seed_after:  # seeded since the batch before, which is not the samples' doing
            self.note_seed()
        try:
            with self.having(notes=notes):
                yield
        finally:
            notes.kept = still_pending(notes.pending)
            notes.left = sum(each.undecoded.count for each in notes.kept if each.undecoded.known() is None)
            notes.converted = notes.converted if 0 < notes.encoded <= notes.converted else 0
            self._seed_after = torch.initial_seed()

    def note_batch(self, samples: Iterable[tuple[Any, int]]) -> None:
        """Records index and occurrence of each sample of the next batch."""
        self.batch = [(_as_number(index), occurrence) for index, occurrence in samples]

    def note_seed(self) -> None:
        """Records the seed of torch's generator; another seed found later within a sample was set by user code."""
        self._seed = torch.initial_seed()

    def note_pending(self, tensor: Any) -> None:
        """Records a tensor that was left pending, if a batch is being made: others are received, or the user's own."""
        if self.notes is not self._nobodys:
            self.notes.pending.append(weakref.ref(tensor))
            self.has_left_some = True

    def note_source(self, source: Any) -> None:
        """Records an image that was opened and stays encoded."""
        if self.sources is not None:
            self.sources.append(source)
        self.notes.encoded += 1

    def next_draw(self, *, draws: bool) -> Draw | None:
        """Returns the draw of the sample's next fused transform; None if the original transform is to be called.

        It is None if no sample is being made for a loader in this thread, or if the user's code controls random
        numbers: it has seeded torch's generator, or set it back to treat two images of a sample alike.  To notice this,
        a fused transform that draws advances the generator by one number, as the original transform would by some.

        Args:
            draws: the transform has a random step.
        """
        if self.key is None:
            return _OF_A_STREAM if self.follows and not draws else None
        if draws:
            if not self.fuses_draws or torch.initial_seed() != self._seed:
                self.notes.plain.add("your code seeds torch's generator within a sample")
                return None
            token = int(torch.empty((), dtype=torch.int64, device="cpu").random_())
            if token in self._tokens:
                self.repeats_draws = True
                return None
            self._tokens.add(token)
        number, self._transforms = self._transforms, self._transforms + 1
        turn, at = divmod(number, self.at_once)
        index, occurrence = self.batch[at] if self.at_once > 1 else (_as_number(self.index), self.occurrence)
        return Draw(self.key.derived(turn, _NEXT_TRANSFORM), index, occurrence)

    def opened_path(self) -> str:
        """Returns the path of the image opened last for the sample under way, or ""."""
        opened = getattr(self.opened, "name", self.opened)
        return os.fsdecode(opened) if isinstance(opened, str | bytes | os.PathLike) else ""


def still_pending(references: Iterable[Any]) -> list[Any]:
    """Returns the pending tensors that somebody holds, of weak references; decoded ones are ordinary tensors."""
    living = (reference() for reference in references)
    return [tensor for tensor in living if tensor is not None and "undecoded" in tensor.__dict__]


_OF_A_STREAM = Draw(Key(seed=0, epoch=0), 0, 0)
context = SampleContext()


def _as_number(index: Any) -> int:
    """Returns the index as an integer; for an index that is no number, a checksum of its repr."""
    try:
        return operator.index(index)
    except TypeError:
        return zlib.crc32(repr(index).encode())
