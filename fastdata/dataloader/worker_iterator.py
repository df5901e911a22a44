"""torch's iterator for worker processes, which keeps count of what is handed over and of where each worker stands."""

from __future__ import annotations

import itertools
import queue
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import worker as torch_worker

from fastdata.dataloader.iterators import CountedIterator
from fastdata.dataloader.map_style import AskWorker, WorkerJobs
from fastdata.dataloader.worker_faults import Receiver
from fastdata.dataloader.worker_states import END, FromWorker
from fastdata.device.prefetch import chosen_by_threads
from fastdata.lazy.batch_messages import MadeAgain, UnfinishedBatch
from fastdata.pipeline.jobs import OrderedJobs

__all__ = ["MultiProcessIterator"]


class _WeakMethod:
    """Calls a method that gives a list, as long as its object is there."""

    def __init__(self, method: Callable[[list[bool]], list[Any]]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, heard: list[bool]) -> list[Any]:
        method = self._method()
        return method(heard) if method is not None else []


class MultiProcessIterator(CountedIterator, torch_dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator for num_workers>0.

    Once a batch comes with pending images, it and all behind it are completed in decode threads, some ahead.
    Nevertheless the sampler is asked when torch asks it, once for each batch that is handed over: it may draw from a
    generator that the training step uses as well.
    """

    _completing: OrderedJobs | None = None
    _completed = 0
    _to_ask = 0  # batches that were received ahead, for which the sampler has not been asked for another one yet
    _may_ask = True  # now; else the question is put off
    _asks_in_turn = False  # one question for each batch that is handed over, though others are received ahead
    _sent: frozenset[int] | set[int] = frozenset()  # numbers of batches that have been asked for, and where they end
    _sent_before = 0
    _got = -1  # number of the batch that came last

    @property
    def _worker_queue_idx_cycle(self) -> itertools.cycle[int]:
        """Cycle of worker numbers, in turn; a resumed epoch begins with the worker that would have been next."""
        return self._turns

    @_worker_queue_idx_cycle.setter
    def _worker_queue_idx_cycle(self, turns: itertools.cycle[int]) -> None:
        workers = self._record.workers
        self._turns = turns
        if workers is not None:
            workers.wait_for_all = _WeakMethod(self._first_of_all)
        for _ in range(workers.first if workers is not None else 0):
            next(turns)

    @property
    def _data_queue(self) -> Any:
        """Queue from which batches are received."""
        return self._received_from

    @_data_queue.setter
    def _data_queue(self, inner: Any) -> None:
        has_thread = isinstance(inner, queue.Queue)  # torch's thread for pinned memory receives
        self._received_from = inner if has_thread else Receiver(inner, self)

    def _first_of_all(self, heard: list[bool]) -> list[Any]:
        """Batches that have arrived but were not asked for; waits for one of every worker that will make one.

        Args:
            heard: for each worker, True if no batch of it is needed.
        """
        if self._completing is not None:  # others receive what arrives
            return []
        if not self._in_order:  # what waited in turn would be overtaken by what the same worker made later
            return []
        waiting = {worker for worker, alive in enumerate(self._workers_status) if alive and not heard[worker]}
        while True:
            arrived = [info[1] for info in self._task_info.values() if len(info) == 2]
            waiting -= {each.worker for each in arrived if isinstance(each, FromWorker)}
            if not waiting or self._tasks_outstanding <= 0 or self._shutdown:
                return arrived
            number, data = self._get_data()
            self._tasks_outstanding -= 1
            if isinstance(data, torch_worker._IterableDatasetStopIteration):  # as torch's _next_data does
                waiting.discard(data.worker_id)
                if self._persistent_workers:
                    self._workers_status[data.worker_id] = False
                else:
                    self._mark_worker_as_unavailable(data.worker_id)
                self._try_put_index()
            else:
                self._task_info[number] += (data,)

    def _process_data(self, data: Any, *more: Any) -> Any:
        workers, arrived = self._record.workers, self._record.arrived
        if arrived is not None:
            arrived.append(self._number_taken())
        if workers is not None:
            data = workers.received(data, delivered=self._record.delivered_batches, worker=more[0])
        return super()._process_data(data, *more)  # type: ignore[no-untyped-call]

    def _try_put_index(self) -> None:
        if self._may_ask:
            self._may_ask = not self._asks_in_turn
            super()._try_put_index()
        else:
            self._to_ask += 1

    def _ask(self, left: int) -> None:
        """Asks the sampler until no more than `left` of the questions that were put off are left."""
        while self._to_ask > left:
            self._to_ask -= 1
            super()._try_put_index()

    def ask_if_nothing_comes(self) -> None:
        """Asks for a batch if none is under way: those that were skipped are not handed over."""
        if self._to_ask and self._rcvd_idx >= self._send_idx:
            self._ask(self._to_ask - 1)

    def _next_data(self) -> Any:
        if self._completing is None:
            while (data := super()._next_data()) is END:  # type: ignore[no-untyped-call]
                pass
            data = self._samples.noted(data)
            if not isinstance(data, UnfinishedBatch | MadeAgain):
                return data
            self._begin_completing(data)
        assert self._completing is not None
        if self._asks_in_turn:
            ahead = self.received - self._completed
            self._ask(max(0, ahead - 1))
            self._may_ask = ahead == 0
        try:
            number, batch, self._left_out = next(self._completing)
        except StopIteration:
            raise
        except Exception:
            self._completed += 1
            raise
        self._completed = number + 1
        return batch

    def _begin_completing(self, first: UnfinishedBatch | MadeAgain) -> None:
        completion = self._samples.completion(self._record, AskWorker(self))
        self._completed = self.received - 1
        receive = torch_dataloader._MultiProcessingDataLoaderIter._next_data
        jobs = WorkerJobs(self, receive, completion, first, self._completed)
        # Without an order the moment of a question depends on which worker is fast, with torch's class as well.
        self._asks_in_turn = bool(self._in_order)
        self._may_ask = not self._asks_in_turn
        self._completing = OrderedJobs(
            jobs,
            threads=self._samples.arguments.num_workers,
            depth=self._samples.depth,
            on_close=completion.close,
            may_take=jobs.may_take,
            begin=chosen_by_threads(self._samples.arguments.device) if completion.pin else None,
        )

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._completing is not None:
            self._completing.close()
            self._completing, self._completed = None, 0
        self._may_ask, self._asks_in_turn, self._to_ask = True, False, 0
        self._sent, self._sent_before, self._got = frozenset(), 0, -1
        super()._reset(loader, first_iter)

    def _taken(self) -> int:
        return self.received if self._completing is None else self._completed

    @property
    def received(self) -> int:
        """Number of batches that have come from the workers, whole or failed, and are handed over in that order."""
        arrived = self._record.arrived
        return int(self._rcvd_idx) if arrived is None else len(arrived)

    def _number_taken(self) -> int:
        """The number of the batch that torch's code has just taken; it may have given up a dead worker's as well."""
        sent = self._sent | set(range(self._sent_before, self._send_idx))
        self._sent, self._sent_before = sent & self._task_info.keys(), self._send_idx
        gone = sent - self._sent
        return self._got if self._got in gone else int(self._rcvd_idx) - 1

    def _get_data(self) -> Any:
        timeout = self._timeout
        if self._record.workers is not None and self._record.workers.passing_over:
            self._timeout = 0  # it is meant for one batch, and they make many; torch looks if they are alive
        try:
            number, data = super()._get_data()  # type: ignore[no-untyped-call]
        finally:
            self._timeout = timeout
        self._got = number
        return number, data


# torch names its profiler ranges after the class.
MultiProcessIterator.__name__ = "_MultiProcessingDataLoaderIter"
