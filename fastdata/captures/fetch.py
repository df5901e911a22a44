"""Making the samples of one batch with the dataset's own code, as torch's worker processes and torch's loop do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Subset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fastdata.device.prefetch import map_tensors
from fastdata.loaders import pillow
from fastdata.pipeline.collate import stacks_pending
from fastdata.pipeline.config import OnError
from fastdata.pipeline.getitems import FetchesMany
from fastdata.pipeline.seeded_draws import SeededDraws
from fastdata.views.philox import Key
from fastdata.views.streams import Stream, seeds
from fastdata.views.this_sample import making, noting, seed_of

__all__ = ["SampleFetcher", "SampleOrder", "UnfinishedBatch", "is_of_an_image"]


@dataclass(frozen=True)
class SampleOrder:
    """Which samples make a batch, for a dataset with captures.

    Attributes:
        number: of the batch, counted from the first that is made.
        indices: as the sampler gave them.
        copies: how often each has come before in the epoch.
        key: seed and epoch.
    """

    number: int
    indices: Any
    copies: Sequence[int]
    key: Key


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch in which something is left to do.

    Attributes:
        batch: collated, with pending images in it, or some that were decoded natively; None if a sample failed that is
            to be skipped or replaced.
        order: which samples it is made of, if the dataset has captures.
    """

    batch: Any
    order: SampleOrder | None


class SampleFetcher(_MapDatasetFetcher):
    """torch's, that knows which sample it is making, and says if images are pending in the batch.

    Args:
        dataset: the dataset, or its copy with captures.
        auto_collation: batches, not single samples, are wanted.
        collate_fn: merges samples.
        drop_last: as torch has it.
        on_error: what to do with samples whose image cannot be opened or decoded.
        seeded: random functions draw from generators seeded for each sample, for datasets that share a process.
        like_pipeline: collate_fn draws as in the image pipeline, and what fails is left to that.
    """

    def __init__(
        self,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
        *,
        on_error: OnError = "raise",
        seeded: bool = False,
        like_pipeline: bool = False,
    ) -> None:
        super().__init__(dataset, auto_collation, stacks_pending(collate_fn), drop_last)
        self._on_error, self._seeded, self._like_pipeline = on_error, seeded, like_pipeline

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The collated batch; an UnfinishedBatch if images are pending, were decoded natively, or cannot be opened."""
        given = possibly_batched_index
        order = given if isinstance(given, SampleOrder) else None
        try:
            with noting() as notes:
                if order is not None:
                    batch = self.collated(self._samples(order), order)
                else:
                    batch = self._without_captures(given)
        except Exception as error:
            if order is None or not self._is_left(error):
                raise
            return UnfinishedBatch(None, order)
        if not notes.natively:
            return batch
        try:
            _leave_to_the_loader(batch, notes.pending)
        except OSError as error:
            if order is None or not self._is_left(error):
                raise
            return UnfinishedBatch(None, order)
        return UnfinishedBatch(batch, order)

    def _is_left(self, error: Exception) -> bool:
        """True for errors that are left to the loader, which makes the batch again."""
        return self._like_pipeline or (self._on_error != "raise" and is_of_an_image(error))

    def collated(self, samples: list[Any], order: SampleOrder) -> Any:
        """A batch of samples."""
        draws: Any = nullcontext()
        if self._like_pipeline:
            draws = SeededDraws(seeds(order.key, Stream.COLLATE, [order.number], [0])[0])
        with draws:
            return self.collate_fn(samples)

    def _without_captures(self, given: Any) -> Any:
        """As torch's, but that errors and messages know which sample is made."""
        if not self.auto_collation or getattr(self.dataset, "__getitems__", None):
            with making(None if self.auto_collation else given):
                return super().fetch(given)  # type: ignore[no-untyped-call]
        return self.collate_fn([self.sample(index) for index in given])

    def _samples(self, order: SampleOrder) -> list[Any]:
        at_once = _takes_indices_at_once(self.dataset)
        if at_once:
            index, copy = (order.indices[0], order.copies[0]) if len(order.indices) else (None, 0)
            with making(index, copy, order.key):
                return at_once(order.indices)  # type: ignore[no-any-return]
        return [self.sample(index, copy, order.key) for index, copy in zip(order.indices, order.copies, strict=True)]

    def sample(self, index: Any, copy: int = 0, key: Key | None = None) -> Any:
        """One sample, as the dataset gives it."""
        draws: Any = nullcontext()
        if self._seeded and key is not None:
            draws = SeededDraws(seed_of(key, index, copy))
        try:
            with making(index, copy, key), draws:
                return self.dataset[index]
        except Exception as error:
            if hasattr(error, "add_note"):  # since Python 3.11
                error.add_note(f"while making sample {index} of {type(self.dataset).__name__}")
            raise


def _takes_indices_at_once(dataset: Any) -> Any:
    """Its `__getitems__`; None where that is torch's Subset's or ours, behind which are single samples all the same."""
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    own = getattr(inner, "__getitems__", None)
    is_for_torch = getattr(own, "__func__", None) is FetchesMany.__getitems__
    return getattr(dataset, "__getitems__", None) if own and not is_for_torch else None


def _leave_to_the_loader(batch: Any, pending: list[Any]) -> None:
    """Marks what the loader will find in a batch and decode; whatever else of it somebody keeps is decoded now.

    Raises:
        OSError: an image of those cannot be decoded.
    """
    found = set()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.add(id(tensor))
        return tensor

    map_tensors(batch, note)
    for tensor in pending:
        if id(tensor) in found:
            tensor.undecoded.is_sent = True
        elif tensor.undecoded.value is None:
            tensor.undecoded.decoded()


def is_of_an_image(error: Exception) -> bool:
    """True for what Pillow raises of files that are missing, no images, damaged or too large."""
    return isinstance(error, OSError | SyntaxError | EOFError | pillow.bomb_error())
