"""How a map-style dataset's own code makes samples for a loader: index batches, worker processes, jobs for threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from torch.utils.data._utils import fetch as torch_fetch

from fastdata.captures.complete import CompletedBatch, Completion, FailedBatch, FetchedBatch
from fastdata.captures.fetch import SampleFetcher, SampleOrder, UnfinishedBatch
from fastdata.captures.find import CapturedDataset
from fastdata.dataloader.record import EpochRecord
from fastdata.pipeline.config import OnError
from fastdata.pipeline.stats import PipelineStats
from fastdata.views.philox import Key

__all__ = ["EpochLoader", "MapStyle", "Orders", "in_step", "jobs_from_workers", "jobs_in_threads", "opening_encoded"]


class EpochLoader(Protocol):
    """What the iterators below ask of the loader that makes them."""

    num_workers: int
    prefetch_factor: int | None
    worker_init_fn: Callable[[int], None] | None
    on_error: OnError
    _stats: PipelineStats

    def begin_epoch(self) -> EpochRecord:
        """Begins the epoch that comes next."""
        ...

    def view_key(self, record: EpochRecord) -> Key:
        """Seed and epoch of what is drawn for samples; the seed is kept in the epoch's state."""
        ...

    def note_batch(self, accelerated: bool) -> None:
        """A batch came, with images that were left to be decoded here, or without."""
        ...

    def completion(self, record: EpochRecord, captured: CapturedDataset | None) -> Completion:
        """How an epoch's batches are completed."""
        ...


class MapStyle:
    """A loader of a map-style dataset as torch's iterators read it.

    Args:
        loader: the loader.
        orders: the epoch's index batches, or `SampleOrder` of them.
        captured: its dataset with captures, if there are any.
    """

    def __init__(self, loader: EpochLoader, orders: Any, captured: CapturedDataset | None) -> None:
        self._loader, self._index_sampler = loader, orders
        self.worker_init_fn = _BeginWorker(loader.worker_init_fn, loader.on_error)
        if captured is not None:
            self.dataset = captured.dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Orders:
    """The index batches of an epoch as a dataset with captures needs them."""

    def __init__(self, loader: EpochLoader, record: EpochRecord) -> None:
        self._loader, self._record = loader, record

    def __len__(self) -> int:
        assert self._record.batches is not None
        return len(self._record.batches)

    def __iter__(self) -> Iterator[SampleOrder]:
        batches = self._record.batches
        assert batches is not None
        for number, indices in enumerate(batches):
            copies = batches.copies_of(indices)
            yield SampleOrder(number, indices, copies, self._loader.view_key(self._record))


class _BeginWorker:
    """A worker_init_fn, and before it: JPEGs stay encoded, and batches say what is left to do."""

    def __init__(self, own: Callable[[int], None] | None, on_error: OnError) -> None:
        self._own, self._on_error = own, on_error

    def __call__(self, worker: int) -> None:
        if (opening := opening_encoded()) is not None:
            opening.open_encoded_from_now_on()
            torch_fetch._MapDatasetFetcher = partial(SampleFetcher, on_error=self._on_error)  # type: ignore[misc,assignment]
        if self._own is not None:
            self._own(worker)


def opening_encoded() -> Any:
    """The module, if Pillow is in use in this process and the native core can take its place."""
    if "PIL.Image" not in sys.modules:
        return None
    from fastdata.loaders import opening_encoded as module

    return module if module.can_open_encoded() else None


@contextmanager
def in_step(captured: CapturedDataset | None) -> Iterator[None]:
    """While the copy of a dataset makes samples in place of the dataset: what is set on one is set on the other."""
    if captured is None:
        yield
        return
    captured.pull()
    try:
        yield
    finally:
        captured.push()


def jobs_in_threads(
    loader: EpochLoader, record: EpochRecord, captured: CapturedDataset, completion: Completion
) -> Iterator[FetchedBatch]:
    """A job for each batch of an epoch whose samples are made in decode threads."""
    fetcher = SampleFetcher(
        captured.dataset, True, completion.collate_fn, False, on_error=completion.on_error, seeded=True
    )
    for order in Orders(loader, record):
        captured.pull()
        yield FetchedBatch(completion, fetcher, order)
        captured.push()


class _Raised:
    """What was raised in the place of a batch."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def jobs_from_workers(
    received: Callable[[], Any], completion: Completion, first: UnfinishedBatch, number: int
) -> Iterator[Any]:
    """A job for each batch from the worker processes.

    Args:
        received: the iterator's method that waits for the next one, while there is that iterator: jobs that kept it
            alive would keep its worker processes.
        completion: how batches are completed.
        first: the batch that has been received already.
        number: its number.
    """
    data: Any = first
    while True:
        yield FailedBatch(data.error) if isinstance(data, _Raised) else CompletedBatch(completion, data, number)
        number += 1
        next_data = received()
        if next_data is None:
            return
        try:
            data = next_data()
        except StopIteration:
            return
        except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
            data = _Raised(error)
        finally:
            del next_data
