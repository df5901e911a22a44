"""Random states and dataset states of worker processes, sent with every batch, so that a resumed run continues there.

Workers make batches ahead of their delivery, and each batch changes the worker's generators and its dataset's own
state.  So each batch carries these states.  A state of the loader holds, for each worker, the states of its latest
delivered batch, and the number of the worker whose turn is next.  A worker that has drawn nothing sends nothing.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from fastdata.dataloader.record import keeps_state, load_while_iterated, pass_over, same_state
from fastdata.errors import StateMismatch
from fastdata.lazy.batch_messages import MakeAgain
from fastdata.order.random_states import GlobalStates
from fastdata.patches.worker_process import FETCHERS, replace_fetcher

__all__ = [
    "END",
    "FromWorker",
    "KeepStates",
    "LoaderView",
    "WorkerStates",
    "all_known",
    "has_datasets",
    "passed_over",
]

END = object()  # in the place of a batch


@dataclass(frozen=True)
class FromWorker:
    """A batch on its way from a worker process.

    Attributes:
        batch: the batch that the fetcher made.
        worker: number of the worker process.
        state: state of the worker after the batch.
        began: state of the worker before the epoch, with the first batch of an epoch; else None.
        is_end: this is not a batch but the end of the worker's stream.
    """

    batch: Any
    worker: int
    state: dict[str, Any]
    began: dict[str, Any] | None
    is_end: bool = False

    def pin_memory(self) -> FromWorker:
        """Called by torch's thread that pins batches."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


# ---- in the worker process


class KeepStates:
    """A worker_init_fn: batches bring the worker's state along, and a resumed worker begins with the one it had.

    Args:
        before: the worker_init_fn that is called first; None for none.
        resumed: state of each worker from `WorkerStates.at`; None for a worker that begins anew.
    """

    def __init__(self, before: Callable[[int], None] | None, resumed: Sequence[dict[str, Any] | None] | None) -> None:
        self._before, self._resumed = before, resumed

    def __call__(self, worker: int) -> None:
        """Restores the states of worker process number `worker` and begins to note them; torch calls it there."""
        if self._before is not None:
            self._before(worker)
        info = get_worker_info()
        assert info is not None
        state = (self._resumed[worker] if self._resumed is not None else None) or {}
        if state.get("random") is not None:
            GlobalStates.from_json(state["random"]).put_back()
        is_iterated_first = hasattr(info.dataset, "__next__") and state.get("made")  # it is its own iterator
        if keeps_state(info.dataset) and state.get("dataset") is not None and not is_iterated_first:
            info.dataset.load_state_dict(state["dataset"])  # type: ignore[attr-defined]
        for name in FETCHERS:
            replace_fetcher(name, lambda inner: _Noting(info.dataset, worker, inner, state))


class _Noting:
    """Stands in for torch's fetcher classes in a worker: wraps the fetcher of the loader's own dataset."""

    def __init__(self, dataset: Any, worker: int, inner: Callable[..., Any], resumed: dict[str, Any]) -> None:
        self._dataset, self._worker, self._inner, self._resumed = dataset, worker, inner, resumed
        self._last: _NotingFetcher | None = None

    def __call__(self, dataset: Any, *arguments: Any) -> Any:
        if dataset is not self._dataset:
            return self._inner(dataset, *arguments)
        resumed, self._resumed = self._resumed, {}  # of the first epoch only
        is_first, is_new = self._last is None, self._last is None or self._last.has_ended
        self._last = _NotingFetcher(self._worker, self._inner, resumed, is_first, is_new, dataset, *arguments)
        return self._last


class _NotingFetcher:
    """Fetches with another fetcher, and adds to each batch the worker's state after it.

    Args:
        worker: number of the worker process.
        make: makes the other fetcher.
        resumed: state of the worker in a resumed epoch; else {}.
        is_first: it is the first epoch of this process.
        is_new: no epoch was left before its end, so the dataset's state is meant for the one that begins.
        dataset: the dataset.
        arguments: more for `make`.
    """

    def __init__(
        self,
        worker: int,
        make: Callable[..., Any],
        resumed: dict[str, Any],
        is_first: bool,
        is_new: bool,
        dataset: Any,
        *arguments: Any,
    ) -> None:
        self._worker, self._last = worker, GlobalStates.now()
        # By its state after the first batch of an epoch a dataset is found out that begins anew when it is iterated.
        self._first, self._made, self._is_settled = resumed.get("first"), resumed.get("made", 0), False
        self._random = resumed.get("random")
        self._to_pass_over = resumed.get("pass_over", 0)  # of a stream without a state, delivered before
        self._stateful: Any = None
        self._began: dict[str, Any] | None = None
        self.has_ended = bool(resumed.get("ended"))
        if self.has_ended:  # iterating the dataset would begin its next epoch
            return
        self._inner = make(dataset, *arguments)
        iterator = getattr(self._inner, "dataset_iter", None)
        self._stateful = next(filter(keeps_state, (dataset, iterator)), None)
        self._of_iterator = self._stateful is not None and self._stateful is not dataset
        loaded = resumed.get("dataset")
        if loaded is not None and self._of_iterator:
            self._stateful.load_state_dict(loaded)
        elif loaded is not None and iterator is dataset and resumed.get("made"):
            load_while_iterated(dataset, loaded)
        if is_first and iterator is None and self._stateful is None:  # it began as another such process would
            return
        knows = self._stateful is not None and (is_new or not isinstance(iterator, Generator))
        self._began = {"random": self._last.to_json(), "dataset": self._state() if knows else None}

    def fetch(self, possibly_batched_index: Any) -> Any:
        """Fetches one batch; gives the stream's end once, before StopIteration.

        A batch that is made again comes without a state: the worker has made later batches since.
        """
        if isinstance(possibly_batched_index, MakeAgain):
            return self._inner.fetch(possibly_batched_index)
        if self.has_ended:
            raise StopIteration
        count, self._to_pass_over = self._to_pass_over, 0
        take = partial(self._inner.fetch, possibly_batched_index)
        pass_over(count, take, whose=f" of worker process {self._worker}")
        try:
            batch, is_end = self._fetch_next(possibly_batched_index), False
        except StopIteration:
            batch, is_end = None, True
        self._made += 1
        now, began = GlobalStates.now(), self._began
        state: dict[str, Any] = {}
        if now != self._last:
            state["random"], self._last = now.to_json(), now
        if self._stateful is not None:
            state |= {"dataset": self._state(), "made": self._made, "first": self._first}
        if self._of_iterator:
            state["of_iterator"] = True  # the next epoch has another one
        self.has_ended = is_end
        if is_end or getattr(self._inner, "ended", False):
            state["ended"] = True
        self._began = None
        return FromWorker(batch, self._worker, state, began, is_end)

    def _fetch_next(self, index: Any) -> Any:
        """The next batch, also of a dataset that was given its state back and begins anew all the same."""
        batch = self._inner.fetch(index)
        if self._stateful is None or self._is_settled:
            return batch
        self._is_settled = True
        if self._first is None:
            self._first = self._state()
        elif same_state(self._state(), self._first) and hasattr(self._inner, "dataset_iter"):
            for _ in range(self._made - 1):
                self._inner.fetch(index)
            if self._random is not None:
                GlobalStates.from_json(self._random).put_back()
            batch = self._inner.fetch(index)
        return batch

    def _state(self) -> Any:
        return copy.deepcopy(self._stateful.state_dict())


# ---- in the training process


class LoaderView:
    """A loader as torch's iterators read it: with other values of some attributes."""

    def __init__(self, loader: Any, **changes: Any) -> None:
        self._loader = loader
        vars(self).update(changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class WorkerStates:
    """States of all worker processes after the batches delivered so far.

    Args:
        workers: number of worker processes.
        start: result of `at`, in a run that is resumed; else None.

    Raises:
        StateMismatch: `start` is no result of `at`.
    """

    def __init__(self, workers: int, start: dict[str, Any] | None) -> None:
        self._latest: list[dict[str, Any] | None] = [None] * workers
        self._next = 0
        if start is not None:
            self._latest, self._next = _checked(start, workers)
        # Behind what was delivered: number of the batch, worker, and what it has sent, if that is no error.
        self._ahead: deque[tuple[int, int, FromWorker | None]] = deque()
        self._count, self._heard = 0, [False] * workers
        self._knows_begin = True  # also of workers that have sent nothing yet
        # Workers that have not sent anything since they were to make, and drop, what was delivered before.
        self.passing_over = {worker for worker, each in enumerate(self._latest) if (each or {}).get("pass_over")}
        self.wait_for_all: Callable[[list[bool]], list[Any]] = lambda heard: []  # see `at`

    @property
    def first(self) -> int:
        """The worker that makes the first batch."""
        return self._next

    def resumed(self) -> list[dict[str, Any] | None] | None:
        """State with which each worker begins; None if all begin anew."""
        return self._latest if any(each is not None for each in self._latest) else None

    def begin_epoch(self, delivered: int) -> None:
        """Notes that persistent workers begin another epoch; after a `break` they are ahead of what was delivered."""
        self._advance(delivered)
        self._ahead.clear()
        self._next, self._count, self._heard = 0, 0, [False] * len(self._heard)
        begins = {"ended": False, "made": 0, "first": None, "pass_over": 0}
        self._latest = [{**(each or {}), **begins} for each in self._latest]
        self._knows_begin = False

    def received(self, data: Any, *, delivered: int, worker: int) -> Any:
        """Counts a message from a worker and returns its batch; END for the end of the worker's stream.

        Args:
            data: the message that the worker has sent.
            delivered: batches of this epoch before it that were delivered.
            worker: number of the worker that has sent it.
        """
        self._advance(delivered)
        self.passing_over.discard(worker)
        is_end = isinstance(data, FromWorker) and data.is_end
        self._count += not is_end
        if not isinstance(data, FromWorker):  # an error
            self._ahead.append((self._count - 1, worker, None))
            return data
        self._ahead.append((self._count - 1, worker, replace(data, batch=None)))
        return END if is_end else data.batch

    def at(self, delivered: int, *, ended: bool, streams: bool) -> dict[str, Any]:
        """Returns plain values: the number of the worker whose turn is next, and the state of each worker.

        The states with which persistent workers began an epoch come with their first batches, for which
        `wait_for_all` waits.

        Args:
            delivered: batches of this epoch.
            ended: the next epoch is meant.
            streams: the dataset is iterable: where it has no state, an epoch is read again from its beginning.
        """
        self._advance(delivered)
        ahead = [sent for _, _, sent in self._ahead if sent is not None]
        began = {sent.worker: sent.began for sent in reversed(ahead) if sent.began is not None}
        if not (ended or self._knows_begin or all(self._heard)):
            sent = [each for each in self.wait_for_all(self._heard) if isinstance(each, FromWorker)]
            began |= {each.worker: each.began for each in sent if each.began is not None}
        workers = [
            self._standing(worker, began.get(worker), ended=ended, streams=streams)
            for worker in range(len(self._latest))
        ]
        return {"next": 0 if ended else self._next, "workers": workers}

    def _standing(
        self, worker: int, began: dict[str, Any] | None, *, ended: bool, streams: bool
    ) -> dict[str, Any] | None:
        """State of one worker, as in `at`; `began` is its state when the epoch began, for one not heard of yet."""
        latest = dict(self._latest[worker] or {})
        passed, before = latest.pop("pass_over", 0), latest.pop("began", None)
        if ended:
            goes_on = ("random",) if latest.get("of_iterator") else ("random", "dataset")
            return {name: each for name, each in latest.items() if name in goes_on} or None
        if not self._heard[worker]:
            state = began or {**latest, **({} if self._knows_begin else {"unknown": True})}
        else:
            state = {"random": before} if streams and latest.get("dataset") is None else latest
        if passed and streams and state.get("dataset") is None:
            state = {**state, "pass_over": passed}
        return state or None

    def _advance(self, delivered: int) -> None:
        while self._ahead and self._ahead[0][0] < delivered:
            _, worker, sent = self._ahead.popleft()
            latest = dict(self._latest[worker] or {})
            if sent is None or not sent.is_end:
                latest["pass_over"] = latest.get("pass_over", 0) + 1
            if sent is not None:
                if sent.began is not None:
                    latest |= {**({} if self._knows_begin else sent.began), "began": sent.began["random"]}
                latest |= sent.state
                self._heard[worker] = True
            self._latest[worker] = latest
            self._next = (worker + 1) % len(self._latest)


def all_known(states: dict[str, Any] | None, workers: int) -> bool:
    """True if a state says where each of so many workers stood."""
    given = states["workers"] if states is not None else []
    return len(given) == workers and not any(each is not None and each.get("unknown") for each in given)


def has_datasets(states: dict[str, Any] | None) -> bool:
    """True if a state holds those of datasets in worker processes, so that nothing is read again."""
    given = states["workers"] if states is not None else []
    return any(each is not None and each.get("dataset") is not None for each in given)


def passed_over(states: dict[str, Any] | None) -> int:
    """Batches of streams without a state that workers make and drop again, all of them together."""
    given = states["workers"] if states is not None else []
    return sum(each.get("pass_over", 0) for each in given if each is not None)


def _checked(start: Any, workers: int) -> tuple[list[dict[str, Any] | None], int]:
    if not isinstance(start, dict) or not isinstance(start.get("workers"), list):
        raise StateMismatch(f"state has worker_states = {start!r:.100}; expected what state_dict() gave")
    given, turn = start["workers"], start.get("next")
    if not all(each is None or isinstance(each, dict) for each in given) or not isinstance(turn, int):
        raise StateMismatch("state has worker_states that were edited; expected what state_dict() gave")
    passed = [each.get("pass_over", 0) for each in given if each is not None]
    if not all(isinstance(each, int) and 0 <= each < 2**63 for each in passed):
        raise StateMismatch(f"state has worker_states in which {passed} batches are to be passed over; was it edited?")
    if len(given) != workers:
        return [None] * workers, 0
    return list(given), turn % workers
