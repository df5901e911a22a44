"""The iterators of a loader, which keep count of what has been handed over."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data import dataloader as torch_dataloader

from fastdata.dataloader.map_style import (
    Orders,
    Samples,
    map_style,
    opening_encoded,
    stream,
    transforms_of_stream,
)
from fastdata.dataloader.record import EpochRecord, keeps_state, load_while_iterated, pass_over, same_state
from fastdata.dataloader.worker_faults import TakeCare
from fastdata.dataloader.worker_memory import ShareBlocks
from fastdata.dataloader.worker_states import KeepStates, LoaderView, WorkerStates
from fastdata.errors import DatasetError
from fastdata.lazy.batch_messages import MadeAgain, MakeAgain, UnfinishedBatch
from fastdata.lazy.complete import CompletedBatch, Completion
from fastdata.lazy.places import FusedTransforms
from fastdata.lazy.stream_fetch import StreamFetcher
from fastdata.order.random_states import GlobalStates
from fastdata.order.state import LoaderState
from fastdata.pipeline.jobs import SkipResult
from fastdata.pipeline.stats import PipelineStats
from fastdata.system.switches import is_off
from fastdata.terminal.progress import Progress

__all__ = ["Closable", "CountedIterator", "EpochIterator", "Numbered", "SingleProcessIterator"]


class Closable(Protocol):
    """Protocol of objects that have threads to stop."""

    def close(self) -> None:
        """Stops them."""


class Numbered:
    """Yields (number, batch) for the batches of one of torch's iterators below; those that raised count, too.

    Args:
        batches: the iterator.
        ahead: it is asked before its batches are delivered, so states are kept for each.
    """

    def __init__(self, batches: CountedIterator, *, ahead: bool) -> None:
        self._batches, self._ahead = batches, ahead
        batches.delivers = False
        if ahead:
            batches.record.take_snapshot(0)

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        batch = next(self._batches)
        if self._ahead:
            self._batches.record.take_snapshot(self._batches.handed)
        return self._batches.handed - 1, batch


class EpochIterator:
    """Yields the batches of one epoch to the caller, counting and timing them.

    After an error of a batch the next call gives the batch behind it, as torch's iterators do.  Dropping the iterator,
    or calling `close`, stops the pipeline behind it.  Threads that share it take turns: each batch goes to one of them.
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
        leaves_out: bool = False,
    ) -> None:
        self._leaves_out = leaves_out
        self._inner, self._record, self._stats = inner, record, stats
        self._length, self._pipeline = length, pipeline
        self._left_at: float | None = None
        self._is_closed = False
        self._turn = threading.Lock()
        self._failures_before = stats.failures
        self._shown = Progress(length, unit="batch", what="this epoch") if progress else None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("this loader has no length")
        return self._length

    def __next__(self) -> Any:
        with self._turn:
            return self._next_batch()

    def _next_batch(self) -> Any:
        came_at = time.perf_counter()
        if self._left_at is not None:
            self._stats.busy_s += came_at - self._left_at
        try:
            number, batch = next(self._inner)[:2]
        except Exception as error:
            self._left_at = None
            if isinstance(error, StopIteration) and not self._is_closed:
                self._record.end()
                self.close()
                if self._leaves_out:
                    self._check_not_all_failed()
            raise
        except BaseException:  # Ctrl-C
            self.close()
            raise
        self._record.delivered_batches = number + 1
        self._stats.batches += 1
        self._left_at = time.perf_counter()
        self._stats.wait_s += self._left_at - came_at
        if self._shown is not None:
            self._shown.update(f"waiting {self._stats.wait_share:.0%}")
        return batch

    def _check_not_all_failed(self) -> None:
        """Raises DatasetError if an epoch gave nothing because every sample failed."""
        failures, self._failures_before = self._stats.failures - self._failures_before, self._stats.failures
        start = self._record.start
        if failures and not (start.delivered or start.history or self._record.delivered_batches):
            index, location, reason = self._stats.quarantine[-1]
            raise DatasetError(
                f"all {failures} samples of the epoch failed and were skipped, the last of them sample {index} "
                f"({location}): {reason}; see stats()['quarantine'], or pass on_error='raise'"
            )

    def close(self) -> None:
        """Stops the pipeline and joins its threads.  Harmless when repeated; the epoch counts as broken off."""
        self._left_at, self._is_closed = None, True
        with ExitStack() as stack:  # copies ahead, which hold batches, then what makes these
            if self._shown is not None:
                stack.callback(self._shown.close)
                self._shown = None
            if self._pipeline is not None:
                stack.callback(self._pipeline.close)
            if (close := getattr(self._inner, "close", None)) is not None:
                stack.callback(close)


class CountedIterator(torch_dataloader._BaseDataLoaderIter):
    """torch's own iterator, keeping an `EpochRecord` and the loader's totals up to date.

    Args:
        loader: the loader that it is made for.
        record: record of the epoch under way.
        samples: parts of the loader that it needs.
    """

    _left_at: float | None = None
    _left_out = 0  # samples that are not in the batch that comes, since they could not be decoded

    def __init__(self, loader: Any, record: EpochRecord, samples: Samples) -> None:
        self._record, start = record, record.start
        self._samples, self._totals = samples, samples.stats
        self._auto_collates = loader.batch_sampler is not None
        self._failed = 0  # batches that raised since the last that did not
        self.handed = 0  # batches given to whoever asks
        self.delivers = True  # to the caller himself; False where somebody between asks ahead and counts deliveries
        as_torch_reads_it: Any = loader
        if record.batches is not None:
            as_torch_reads_it = map_style(loader, self._orders(), samples)
        elif samples.defers and isinstance(loader.dataset, IterableDataset):
            as_torch_reads_it = stream(loader)
        if loader.num_workers > 0:
            begin: Callable[[int], None] | None = as_torch_reads_it.worker_init_fn
            takes_care = not is_off()
            if takes_care:
                begin = TakeCare(begin)
            # Which worker makes which batch of a map-style dataset is known only where they come in order.
            if (loader.in_order or record.batches is None) and hasattr(loader, "state_dict"):
                record.workers = WorkerStates(loader.num_workers, start.worker_states)
                begin = KeepStates(begin, record.workers.resumed())
            if takes_care:
                begin = ShareBlocks(begin, self)
            as_torch_reads_it = LoaderView(as_torch_reads_it, worker_init_fn=begin)
        if samples.pins and not loader.pin_memory:
            as_torch_reads_it = LoaderView(as_torch_reads_it, pin_memory=True)  # they go on to a GPU
        if record.batches is not None or start.batches == 0:
            super().__init__(as_torch_reads_it)
        else:  # an iterable dataset, which is run again with the random numbers that it had
            assert start.sampler_random is not None
            with GlobalStates.from_json(start.sampler_random).drawing():
                super().__init__(as_torch_reads_it)
                self._pass_over(start)
        record.restore_globals()

    @property
    def _base_seed(self) -> int:
        """Base seed of the worker processes' random numbers; a resumed epoch keeps that of the epoch it resumes."""
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        self._seed = self._record.worker_seed if self._record.worker_seed is not None else drawn
        self._samples.base_seed = self._seed
        if self._record.batches is None:
            self._record.start = replace(self._record.start, worker_seed=self._seed)
        else:
            self._record.batches.state = replace(self._record.batches.state, worker_seed=self._seed)

    def _pass_over(self, start: LoaderState) -> None:
        """Drops the batches of an iterable dataset that were delivered before the state was saved."""
        if self._record.workers is None:  # else each worker process does that, or begins where its dataset was
            pass_over(start.batches, super().__next__)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # persistent workers begin another epoch
            workers, delivered = self._record.workers, self._record.delivered_batches
            self._record, self.handed, self._left_at = loader.begin_epoch(), 0, None
            self._record.workers = workers
            if workers is not None:
                workers.begin_epoch(delivered)
            self._index_sampler = self._orders() if self._record.batches is not None else self._index_sampler
        super()._reset(loader, first_iter)
        if not first_iter and self._record.batches is None:
            self._pass_over(self._record.start)

    def _orders(self) -> Any:
        needed = self._samples.needs_orders and self._auto_collates
        return Orders(self._samples, self._record) if needed else self._record.batches

    def __next__(self) -> Any:
        came_at, taken, self._left_out = time.perf_counter(), self._taken(), 0
        if self._left_at is not None:
            self._totals.busy_s += came_at - self._left_at
            self._left_at = None
        try:
            batch = self._not_begun_anew(super().__next__())
        except StopIteration:
            self._record.end()
            raise
        except Exception:
            self._failed += self._taken() > taken
            raise
        if self._record.batches is not None:
            self._failed += self._taken() - taken - 1  # batches of which nothing was left
        self.handed += 1 + self._failed  # whoever goes on has passed over those that raised
        self._failed = 0
        self._totals.samples += self._samples_in(batch) - self._left_out
        if self.delivers:
            self._record.delivered_batches = self.handed
            self._totals.batches += 1
            self._left_at = time.perf_counter()
            self._totals.wait_s += self._left_at - came_at
        return batch

    def _samples_in(self, batch: Any) -> int:
        """The number of samples in the batch just handed over; for iterable datasets that of its first part."""
        size = self._record.size_of(self.handed - 1)
        if size is not None:
            return size
        parts = batch
        while isinstance(parts, Mapping | list | tuple) and parts:  # down to the first that is a column of values
            batch, parts = parts, next(iter(parts.values() if isinstance(parts, Mapping) else parts))
        if isinstance(parts, torch.Tensor | np.ndarray):
            return len(parts) if parts.ndim else 1
        return len(batch) if isinstance(batch, list | tuple) else 1

    @property
    def record(self) -> EpochRecord:
        """Record of the epoch under way."""
        return self._record

    def _not_begun_anew(self, batch: Any) -> Any:
        """Returns the batch; if the dataset began anew although its state was restored, skips to the right batch."""
        record, start = self._record, self._record.start
        if record.stateful is None or self.handed > 0:
            return batch
        state = copy.deepcopy(record.stateful.state_dict())
        if start.batches == 0:
            record.first_state = state
        elif record.batches is None and same_state(state, record.first_state):
            for _ in range(start.batches - 1):
                super().__next__()
            record.restore_globals()
            batch = super().__next__()
        return batch

    def _taken(self) -> int:
        """A count that grows with every batch that was fetched, whether it could be made or not."""
        raise NotImplementedError


class SingleProcessIterator(CountedIterator, torch_dataloader._SingleProcessDataLoaderIter):
    """torch's iterator for num_workers=0."""

    _fetched = 0
    _defers = False  # images may stay encoded
    _streams = False  # images of an iterable dataset may stay encoded up to their tensors

    def __init__(self, loader: Any, record: EpochRecord, samples: Samples) -> None:
        self._streams = samples.defers and isinstance(loader.dataset, IterableDataset)
        self._fused_transforms = FusedTransforms({}, set(), [])
        if self._streams and opening_encoded() is not None:
            self._fused_transforms = transforms_of_stream(loader.dataset)
        with self._fused_transforms.installed():  # a stream may keep them in variables from its beginning
            super().__init__(loader, record, samples)
        self._completion: Completion | None = None
        if samples.fused:
            self._fused_transforms = samples.find_transforms(self._dataset)
        self._defers = record.batches is not None and samples.defers
        if self._defers and opening_encoded() is not None:
            parts = self._dataset, self._auto_collation, self._collate_fn, self._drop_last
            self._dataset_fetcher = samples.fetcher(*parts)
        if self._streams and opening_encoded() is not None:
            self._dataset_fetcher = StreamFetcher(self._dataset_fetcher)
        iterator = getattr(self._dataset_fetcher, "dataset_iter", None)
        stateful = next(filter(keeps_state, (self._dataset, iterator)), None)
        self._record.has_begun(stateful, lazily=isinstance(iterator, Generator))

    def _pass_over(self, start: LoaderState) -> None:
        iterator = self._dataset_fetcher.dataset_iter
        if start.dataset_state is None or not (keeps_state(self._dataset) or keeps_state(iterator)):
            super()._pass_over(start)
        elif iterator is self._dataset:
            load_while_iterated(iterator, start.dataset_state)
        elif not keeps_state(self._dataset):  # others were given theirs before
            iterator.load_state_dict(copy.deepcopy(start.dataset_state))

    def _next_data(self) -> Any:
        opening = opening_encoded() if self._defers or self._streams else None
        if opening is None:
            data = super()._next_data()  # type: ignore[no-untyped-call]
            return self._samples.noted(data) if self._streams else data
        while True:
            with opening.opening_encoded(), self._fused_transforms.installed():
                data = super()._next_data()  # type: ignore[no-untyped-call]
            data = self._samples.noted(data)
            if not isinstance(data, UnfinishedBatch | MadeAgain):
                return data
            if self._completion is None:
                self._completion = self._samples.completion(self._record, self._make_again)
            with suppress(SkipResult):
                _, batch, self._left_out = CompletedBatch(self._completion, data).run_here()
                return batch

    def _make_again(self, _: int | None, request: MakeAgain) -> MadeAgain:
        opening = opening_encoded()
        assert opening is not None
        with opening.opening_encoded(), self._fused_transforms.installed():
            return self._dataset_fetcher.fetch(request)  # type: ignore[no-any-return]

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        self._fetched += 1
        return index

    def _taken(self) -> int:
        return self._fetched


# torch names its profiler ranges after the class.
SingleProcessIterator.__name__ = "_SingleProcessDataLoaderIter"
