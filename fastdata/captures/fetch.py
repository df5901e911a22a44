"""Making the samples of one batch with the dataset's own code, as torch's worker processes and torch's loop do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher

from fastdata.loaders import pillow
from fastdata.pipeline.config import OnError
from fastdata.pipeline.seeded_draws import SeededDraws
from fastdata.views.philox import Key
from fastdata.views.this_sample import making, seed_of, tally_of_this_thread

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
    ) -> None:
        super().__init__(dataset, auto_collation, collate_fn, drop_last)
        self._on_error, self._seeded = on_error, seeded

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The collated batch; an UnfinishedBatch if images are pending, were decoded natively, or cannot be opened."""
        given, before = possibly_batched_index, tally_of_this_thread()
        order = given if isinstance(given, SampleOrder) else None
        try:
            if order is not None:
                batch = self.collate_fn(self._samples(order))
            else:
                batch = super().fetch(given)  # type: ignore[no-untyped-call]
        except Exception as error:
            if order is None or self._on_error == "raise" or not is_of_an_image(error):
                raise
            return UnfinishedBatch(None, order)
        return batch if tally_of_this_thread() == before else UnfinishedBatch(batch, order)

    def _samples(self, order: SampleOrder) -> list[Any]:
        at_once = getattr(self.dataset, "__getitems__", None)
        if at_once:
            index, copy = (order.indices[0], order.copies[0]) if len(order.indices) else (None, 0)
            with making(index, copy, order.key):
                return at_once(order.indices)  # type: ignore[no-any-return]
        return [self.sample(index, copy, order.key) for index, copy in zip(order.indices, order.copies, strict=True)]

    def sample(self, index: Any, copy: int, key: Key) -> Any:
        """One sample, as the dataset gives it."""
        with making(index, copy, key), SeededDraws(seed_of(key, index, copy)) if self._seeded else nullcontext():
            return self.dataset[index]


def is_of_an_image(error: Exception) -> bool:
    """True for what Pillow raises of files that are missing, no images, damaged or too large."""
    return isinstance(error, OSError | SyntaxError | EOFError | pillow.bomb_error())
