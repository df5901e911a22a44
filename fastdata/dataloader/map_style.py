"""Samples from a map-style dataset's own code, for a loader: index batches, worker processes, jobs for threads."""

from __future__ import annotations

import queue
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pickle import PickleError
from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate, get_worker_info

from fastdata.dataloader.arguments import LoaderArguments, may_pin
from fastdata.dataloader.prepare import decodes_on
from fastdata.dataloader.record import EpochRecord
from fastdata.dataloader.routes import Route
from fastdata.dataloader.verdict import Findings, warn_if_images
from fastdata.dataloader.worker_states import LoaderView
from fastdata.errors import PipelineError
from fastdata.lazy.batch_messages import MadeAgain, MakeAgain, ReportedBatch, SampleOrder, UnfinishedBatch
from fastdata.lazy.complete import CompletedBatch, Completion
from fastdata.lazy.fetch import REPORTED, SampleFetcher
from fastdata.lazy.find import FindTransforms, find_transforms
from fastdata.lazy.places import FusedTransforms
from fastdata.lazy.stream_fetch import StreamFetcher
from fastdata.loaders import create_backend
from fastdata.patches.worker_process import replace_fetcher
from fastdata.pipeline.choose_backend import BackendChoice
from fastdata.pipeline.config import OnError
from fastdata.pipeline.jobs import FailedJob
from fastdata.pipeline.stats import PipelineStats
from fastdata.views.philox import Key

__all__ = ["AskWorker", "Orders", "Samples", "WorkerJobs", "map_style", "opening_encoded", "stream"]


class Samples:
    """Parts of a loader that an epoch's iterator needs, without the loader, which may itself refer to the iterator.

    Args:
        arguments: arguments of the loader.
        stats: totals of the loader.
        findings: findings of the loader, extended while it runs.
        route: path of the batches.
        device: where batches go; None is host memory.
        pin: batches are to be pinned, if they can be.
    """

    def __init__(
        self,
        arguments: LoaderArguments,
        stats: PipelineStats,
        findings: Findings,
        *,
        route: Route,
        device: torch.device | None,
        pin: bool,
    ) -> None:
        self.device = device
        self.arguments, self.stats, self.findings = arguments, stats, findings
        self.route, self._pin = route, pin
        self.base_seed: int | None = None  # that torch's iterator has drawn

    @property
    def pins(self) -> bool:
        """True if batches are to be pinned, if they can be."""
        return self._pin

    @property
    def fused(self) -> bool:
        """True if transforms of the dataset are fused."""
        return bool(self.route.fused)

    @property
    def find_transforms(self) -> FindTransforms:
        """The search for the transforms of a dataset that are to be fused."""
        return FindTransforms(self.route.dataset, self.route.found, follow=self.arguments.draws == "torch")

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The user's collate function, or torch's default."""
        own = self.arguments.collate_fn
        return own if own is not None else default_collate

    @property
    def defers(self) -> bool:
        """True if images that the dataset opens may stay encoded."""
        return self.route.left_to_torch is None

    @property
    def on_error(self) -> OnError:
        """Policy for samples that fail in the dataset's own code; always "raise" if images may not stay encoded."""
        return self.arguments.on_error if self.defers else "raise"

    @property
    def fetcher(self) -> Callable[..., SampleFetcher]:
        """Makes the fetcher of an epoch of torch's four arguments."""
        return partial(SampleFetcher, on_error=self.on_error, for_others=self.findings.happened.is_for_others)

    @property
    def needs_orders(self) -> bool:
        """True if the dataset's code is to be told seed and epoch of what it makes."""
        return self.fused or self.on_error == "replace"

    @property
    def depth(self) -> int:
        """Batches that are completed at a time."""
        return max(1, self.arguments.prefetch_factor or 1)

    def view_key(self, record: EpochRecord) -> Key:
        """Seed and epoch of the draws for samples; the seed is kept in the epoch's state."""
        batches = record.batches
        assert batches is not None
        state = batches.state
        view_seed = state.view_seed if state.view_seed is not None else self.arguments.seed
        if view_seed is None:
            view_seed = state.worker_seed if state.worker_seed is not None else self.base_seed
        assert view_seed is not None
        if state.view_seed is None:
            batches.state = replace(state, view_seed=view_seed)
        return Key(seed=view_seed, epoch=record.start.epoch)

    def completion(self, record: EpochRecord, again: Callable[[int | None, MakeAgain], MadeAgain]) -> Completion:
        """Returns the `Completion` of an epoch's batches.

        Args:
            record: record of the epoch.
            again: has a batch made again; see `Completion`.
        """
        arguments, findings = self.arguments, self.findings
        if findings.choice is None:
            backend = create_backend("native", fidelity=arguments.fidelity)
            findings.choice = BackendChoice(backend=backend, reason="samples come from the dataset's own code")
        return Completion(
            backend=findings.choice.backend,
            threads=arguments.num_workers,
            on_error=self.on_error,
            memory_format=arguments.memory_format,
            pin=may_pin(self._pin),
            stats=self.stats,
            order=record.batches,
            packs=decodes_on(arguments, self.device) == "cuda" and findings.choice.backend.name == "native",
            cache=arguments.record_cache,
            again=again,
        )

    def noted(self, data: Any) -> Any:
        """A batch as the dataset's own code has made it; warns once it is clear that nothing is gained."""
        report = data.report if isinstance(data, UnfinishedBatch | ReportedBatch) else None
        if self.findings.happened.batches < REPORTED and not isinstance(data, MadeAgain):
            self.findings.happened.note(report)
            if self.findings.happened.batches == REPORTED and not self.findings.happened.gains:
                batch = data.batch if report is not None else data
                warn_if_images(self.arguments, self.route, self.findings.happened, batch)
        return data.batch if isinstance(data, ReportedBatch) else data


def map_style(loader: Any, orders: Any, samples: Samples) -> LoaderView:
    """A loader of a map-style dataset as torch's iterators read it.

    Args:
        loader: the loader.
        orders: the epoch's index batches, or `SampleOrder` of them.
        samples: parts of the loader that make samples.
    """
    view = LoaderView(loader, dataset=samples.route.dataset, _index_sampler=orders)
    if not samples.defers or loader.num_workers == 0:
        return view
    _prepare()
    begin = _BeginWorker(loader.worker_init_fn, samples.fetcher, samples.find_transforms if samples.fused else None)
    return LoaderView(view, worker_init_fn=begin)


def _prepare() -> None:
    """Does here, once, what every worker process that is forked would do again."""
    if (opening := opening_encoded()) is not None:
        opening.prepare()


def stream(loader: Any) -> LoaderView:
    """A loader of an iterable dataset as torch's iterators read it."""
    if loader.num_workers == 0:
        return LoaderView(loader)
    _prepare()
    return LoaderView(loader, worker_init_fn=_BeginStream(loader.worker_init_fn))


def transforms_of_stream(dataset: Any) -> FusedTransforms:
    """The transforms of an iterable dataset that can be fused; they draw from the global generators."""
    return find_transforms(dataset, follow=True)


class _BeginStream:
    """A worker_init_fn, and before it: images that the stream opens stay encoded until it needs tensors."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        if (opening := opening_encoded()) is not None:
            opening.open_encoded_from_now_on(0.0)  # no path is kept: a stream's files may be temporary
            info = get_worker_info()
            assert info is not None
            transforms_of_stream(info.dataset).install()  # before the stream begins, which may keep them in variables
            replace_fetcher("_IterableDatasetFetcher", lambda torchs: lambda *parts: StreamFetcher(torchs(*parts)))
        if self._own is not None:
            self._own(worker)


class Orders:
    """The index batches of an epoch, with what is drawn for their samples."""

    def __init__(self, samples: Samples, record: EpochRecord) -> None:
        self._samples, self._record = samples, record

    def __len__(self) -> int:
        assert self._record.batches is not None
        return len(self._record.batches)

    def __iter__(self) -> Iterator[SampleOrder]:
        batches = self._record.batches
        assert batches is not None
        for number, indices in enumerate(batches):
            occurrences = batches.occurrences_of(indices) if self._samples.fused else None
            yield SampleOrder(number, indices, occurrences, self._samples.view_key(self._record))


class _BeginWorker:
    """A worker_init_fn, and before it: images stay encoded, transforms are fused, batches say what is left to do."""

    def __init__(
        self,
        own: Callable[[int], None] | None,
        fetcher: Callable[..., SampleFetcher],
        find: Callable[[Any], FusedTransforms] | None,
    ) -> None:
        self._own, self._fetcher, self._find = own, fetcher, find
        self._program_began = program_began()

    def __call__(self, worker: int) -> None:
        if self._find is not None:
            import_module("PIL.Image")  # in a spawned process nobody may have done so yet
        if (opening := opening_encoded()) is not None:
            opening.open_encoded_from_now_on(self._program_began)
            info = get_worker_info()
            assert info is not None
            if self._find is not None:
                self._find(info.dataset).install()  # the process has an object of its own
            replace_fetcher("_MapDatasetFetcher", lambda _: self._fetcher)
        if self._own is not None:
            self._own(worker)


def program_began() -> float:
    """Start time of this process, in seconds since 1970."""
    import psutil  # not before there are worker processes

    return float(psutil.Process().create_time())


def opening_encoded() -> Any:
    """Returns the module `fastdata.lazy.opening` if Pillow is imported and the native core can take its place."""
    if "PIL.Image" not in sys.modules:
        return None
    from fastdata.lazy import opening as module

    return module if module.can_open_encoded() else None


class WorkerJobs:
    """A job for each batch from the worker processes.

    Args:
        iterator: torch's iterator, which receives the batches; held weakly, since it keeps its worker processes alive.
        receive: method of the iterator that waits for the next batch.
        completion: completes the batches.
        first: the batch that has been received already.
        number: number of that batch.
    """

    def __init__(
        self, iterator: Any, receive: Callable[[Any], Any], completion: Completion, first: Any, number: int
    ) -> None:
        self._iterator, self._receive, self._completion = weakref.ref(iterator), receive, completion
        self._first: list[Any] = [first]
        self._number = number - 1
        self._lost = False  # the last attempt ended in an error of the way here, not of a batch

    def __iter__(self) -> WorkerJobs:
        return self

    def __next__(self) -> CompletedBatch | FailedJob:
        if self._first:
            self._number += 1
            return CompletedBatch(self._completion, self._first.pop(), self._number)
        iterator = self._iterator()
        if iterator is None:
            raise StopIteration
        received, self._lost = iterator.received, False
        iterator.ask_if_nothing_comes()
        try:
            data = self._receive(iterator)
        except StopIteration:
            raise
        except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
            self._lost = iterator.received == received
            self._number += not self._lost
            return FailedJob(error)
        self._number += 1
        return CompletedBatch(self._completion, data, self._number)

    def may_take(self) -> bool:
        """True if the next batch has arrived, so that taking it holds nobody up."""
        iterator = self._iterator()
        if self._first:
            return True
        return iterator is not None and not self._lost and _has_arrived(iterator)


class AskWorker:
    """Has batches made again by the worker processes that have made them; see `Completion.again`.

    Requests take the way of torch's index batches, and what is made that of its batches, under keys below 0.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator, self._key = weakref.ref(iterator), 0

    def __call__(self, worker: int | None, request: MakeAgain) -> MadeAgain:
        """The batch, once it is there; errors of the user's code are raised as torch raises them.

        Raises:
            PipelineError: the worker process has ended.
        """
        iterator = self._iterator()
        if iterator is None or worker is None or iterator._shutdown or not iterator._workers_status[worker]:
            raise PipelineError(
                f"batch {request.order.number} had to be made again, since an image in it could not be decoded, but "
                "the worker process that had made it has ended"
            )
        self._key -= 1
        key = self._key
        iterator._task_info[key] = (worker,)
        iterator._index_queues[worker].put((key, request))
        iterator._tasks_outstanding += 1
        while len(iterator._task_info[key]) == 1:
            number, data = iterator._get_data()
            iterator._tasks_outstanding -= 1
            iterator._task_info[number] += (data,)
        _, made = iterator._task_info.pop(key)
        if isinstance(made, ExceptionWrapper):
            made.reraise()  # type: ignore[no-untyped-call]
        return made  # type: ignore[no-any-return]


def _has_arrived(iterator: Any) -> bool:
    """True if torch's iterator need not wait for the next batch; puts aside what came out of order, as it does.

    The end has not arrived while a batch is in flight: it ends the worker processes, which may have to make that again.
    """
    if iterator._rcvd_idx >= iterator._send_idx:
        return False
    try:
        while len(iterator._task_info.get(iterator._rcvd_idx, ())) == 1 and iterator._in_order:
            number, data = iterator._data_queue.get_nowait()
            iterator._tasks_outstanding -= 1
            iterator._task_info[number] += (data,)
    except queue.Empty:
        return False
    except (OSError, EOFError, PickleError):  # of the way here; whoever receives will see it, too
        return True
    return bool(iterator._in_order) or not iterator._data_queue.empty()
