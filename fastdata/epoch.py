"""One pass over a loader: what has been handed over, and the iterators that keep count of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from torch.utils.data import dataloader as torch_dataloader

from fastdata.order import EpochBatches, LoaderState
from fastdata.progress import Progress
from fastdata.stats import PipelineStats

__all__ = ["EpochIterator", "EpochRecord", "MultiProcessIterator", "SingleProcessIterator"]


class EpochRecord:
    """How far one epoch has come; outlives its iterator, so that a state can be taken after `break`.

    Attributes:
        start: the state the epoch began with.
        batches: its index batches; None for iterable datasets.
        delivered_batches: batches handed to the caller, counted from `start`.
        ended: the caller has seen StopIteration.
    """

    def __init__(self, start: LoaderState, batches: EpochBatches | None) -> None:
        self.start, self.batches = start, batches
        self.delivered_batches = 0
        self.ended = False

    def delivered(self) -> int:
        """Samples of the epoch handed to the caller, including those before `start`."""
        if self.batches is None:
            return self.start.delivered
        return self.batches.delivered_after(self.delivered_batches)


class Closable(Protocol):
    """What has threads to stop."""

    def close(self) -> None: ...


class EpochIterator:
    """Yields the batches of one epoch to the caller, counting and timing them.

    Dropping it, or calling `close`, stops the pipeline behind it.
    """

    def __init__(
        self,
        inner: Iterator[tuple[Any, ...]],
        *,
        record: EpochRecord,
        stats: PipelineStats,
        length: int | None,
        pipeline: Closable | None = None,
        progress: bool = False,
    ) -> None:
        self._inner, self._record, self._stats = inner, record, stats
        self._length, self._pipeline = length, pipeline
        self._left_at: float | None = None
        self._shown = Progress(length, unit="batch", what="this epoch") if progress else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("this loader has no length")
        return self._length

    def __next__(self) -> Any:
        came_at = time.perf_counter()
        if self._left_at is not None:
            self._stats.busy_s += came_at - self._left_at
        try:
            number, batch = next(self._inner)[:2]
        except BaseException as error:
            self._record.ended |= isinstance(error, StopIteration)
            self.close()
            raise
        self._record.delivered_batches = number + 1
        self._stats.batches += 1
        self._left_at = time.perf_counter()
        self._stats.wait_s += self._left_at - came_at
        if self._shown is not None:
            self._shown.update(f"waiting {self._stats.wait_share:.0%}")
        return batch

    def close(self) -> None:
        """Stops the pipeline and joins its threads.  Harmless when repeated."""
        self._left_at = None
        if self._pipeline is not None:
            self._pipeline.close()
        if self._shown is not None:
            self._shown.close()
            self._shown = None


class _Counted(torch_dataloader._BaseDataLoaderIter):
    """torch's own iterator, keeping an `EpochRecord` up to date."""

    def __init__(self, loader: Any) -> None:
        self._record: EpochRecord = loader._begin_epoch()
        loader._epoch_batches = self._record.batches  # what loader._index_sampler gives while this is made
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # persistent workers begin another epoch
            self._record = loader._begin_epoch()
            self._index_sampler = self._record.batches if self._record.batches is not None else self._index_sampler
        super()._reset(loader, first_iter)

    def __next__(self) -> Any:
        try:
            batch = super().__next__()
        except StopIteration:
            self._record.ended = True
            raise
        self._record.delivered_batches += 1
        return batch

    def skip(self, batches: int) -> None:
        """Passes over batches that were delivered before the state was saved."""
        for _ in range(batches):
            super().__next__()


class SingleProcessIterator(_Counted, torch_dataloader._SingleProcessDataLoaderIter):
    """torch's iterator for num_workers=0."""


class MultiProcessIterator(_Counted, torch_dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator for num_workers>0."""


# torch names its profiler ranges after the class.
SingleProcessIterator.__name__ = "_SingleProcessDataLoaderIter"
MultiProcessIterator.__name__ = "_MultiProcessingDataLoaderIter"
