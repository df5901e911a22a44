"""Progress of one epoch, and the states needed to resume it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fastdata.errors import StateMismatch
from fastdata.order.epoch_batches import EpochBatches
from fastdata.order.random_states import GlobalStates
from fastdata.order.state import LoaderState
from fastdata.pipeline.stats import EpochSkips

__all__ = ["EpochRecord", "keeps_state", "load_while_iterated", "pass_over", "same_state"]


class EpochRecord:
    """Progress of one epoch; outlives its iterator, so that a state can be taken after `break`.

    Attributes:
        start: the state the epoch began with.
        batches: its index batches; None for iterable datasets.
        worker_seed: base seed for the random numbers of worker processes; None lets torch draw it.
        delivered_batches: batches handed to the caller, counted from `start`.
        ended: the caller has seen StopIteration.
        by_torchs_code: torch's iterators make the batches, not decode threads.
        stateful: the dataset in this process, or its iterator, if it has a state of its own.
        workers: `WorkerStates`, where worker processes make the samples.
        first_state: state of `stateful` after the epoch's first batch.
        begun_state: its state before the epoch's first batch, for the next run; None begins with the dataset as made.
        snapshots: states by number of batches, where those are fetched ahead in this process.
        arrived: numbers of the batches in the order in which they are handed over; None for that of the sampler.
    """

    def __init__(
        self,
        start: LoaderState,
        batches: EpochBatches | None,
        *,
        worker_seed: int | None,
        skips: EpochSkips | None = None,
        after_break: bool = False,
        by_torchs_code: bool = True,
        in_order: bool = True,
    ) -> None:
        """Args, beside the attributes of these names:
        skips: counts what is skipped.
        after_break: this loader's epoch before this one was left before its end.
        in_order: batches are handed over in the sampler's order.
        """
        self._skips, self._after_break = skips, after_break
        self.start, self.batches, self.worker_seed = start, batches, worker_seed
        self.delivered_batches = 0
        self.by_torchs_code = by_torchs_code
        self.ended = False
        self.stateful: Any = None
        self.workers: Any = None
        self.first_state: Any = start.dataset_first
        self.begun_state: Any = start.dataset_state
        self.snapshots: dict[int, tuple[GlobalStates, Any]] = {}
        self.arrived: list[int] | None = None if in_order else []

    def has_begun(self, stateful: Any, *, lazily: bool) -> None:
        """Notes that the epoch's iterator was made, and the state with which the dataset begins the epoch.

        Args:
            stateful: the dataset or its iterator, if it has a state; else None.
            lazily: the iterator is a generator, which runs no line before its first sample.  So the state is still that
                of the last epoch, and fits the beginning of this one only if the last one came to its end.
        """
        self.stateful = stateful
        if self.begun_state is None and not (lazily and self._after_break):
            self.begun_state = self._dataset_state_now()

    def take_snapshot(self, batches: int) -> None:
        """Keeps the random states and the dataset's state after so many batches, if batches are fetched ahead."""
        if self.batches is not None:
            self.batches.settle()  # what the order is drawn from is drawn before, as in `state`
        self.snapshots[batches] = GlobalStates.now(), self._dataset_state_now()
        for old in [number for number in self.snapshots if number < self.delivered_batches]:
            del self.snapshots[old]

    def restore_globals(self) -> None:
        """Restores the global generators of the moment when the state was taken, once the resumed epoch has begun."""
        if self.start.dataset_random is not None:
            GlobalStates.from_json(self.start.dataset_random).put_back()

    def globals_then(self) -> GlobalStates:
        """The states of the global generators after the latest delivered batch."""
        found = self.snapshots.get(self.delivered_batches)
        return found[0] if found is not None else GlobalStates.now()

    def dataset_state_then(self) -> Any:
        """The dataset's own state after the latest delivered batch."""
        if self.ended:
            return self._dataset_state_now()
        if self.delivered_batches == 0:
            return self.begun_state
        found = self.snapshots.get(self.delivered_batches)
        return found[1] if found is not None else self._dataset_state_now()

    def worker_states_then(self) -> dict[str, Any] | None:
        """States of the worker processes after the latest delivered batch; None without worker processes."""
        if self.workers is None:
            return None
        states: dict[str, Any] = self.workers.at(self.delivered_batches, ended=self.ended, streams=self.batches is None)
        return states

    def _dataset_state_now(self) -> Any:
        return copy.deepcopy(self.stateful.state_dict()) if self.stateful is not None else None

    def end(self) -> None:
        """Notes that the iterator has come to its end; this ends the epoch, unless the sampler raised."""
        self.ended = self.batches is None or not self.batches.unfinished
        skips, self._skips = self._skips, None
        if skips is not None:
            skips.tell(self.start.epoch)

    def state(self) -> LoaderState:
        """State of the epoch after the latest delivered batch, with the seeds or random states that fix its order."""
        if self.batches is None:
            then = replace(self.start, batches=self.start.batches + self.delivered_batches)
        else:
            self.batches.settle()
            then = self.batches.state_after(self.delivered_batches, self.arrived)
        return replace(
            then,
            dataset_random=None,
            global_random=None,
            dataset_state=None,
            worker_states=self.worker_states_then(),
        )

    def size_of(self, turn: int) -> int | None:
        """Samples in the batch that was handed over as number `turn`; None where it is not known."""
        if self.batches is None:
            return None
        return self.batches.size_of(turn if self.arrived is None else self.arrived[turn])


def pass_over(count: int, take: Callable[[], object], *, whose: str = "") -> None:
    """Drops the batches of an iterable dataset that were delivered before the state was saved.

    Args:
        count: number of batches.
        take: makes the next batch; an error of it is passed over, since it counted when it was delivered, too.
        whose: for the message: in which process they are made.

    Raises:
        StateMismatch: the dataset ends before.
    """
    for number in range(count):
        try:
            take()
        except StopIteration:
            raise StateMismatch(
                f"the dataset ended after {number} of the {count} batches{whose} that were delivered before the state "
                "was saved; it gives other samples than it did"
            ) from None
        except Exception:  # noqa: BLE001 - see `take`
            pass


def keeps_state(thing: object) -> bool:
    """True if it has a state of its own, as torchdata's protocol Stateful says."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def load_while_iterated(dataset: Any, state: Any) -> None:
    """Loads a state into a dataset that is its own iterator and has been iterated already.

    Some such datasets begin anew whenever they are iterated; others go on then if a state was just loaded, and would do
    so in the next epoch.
    """
    dataset.load_state_dict(copy.deepcopy(state))
    iter(dataset)
    if not same_state(dataset.state_dict(), state):
        dataset.load_state_dict(copy.deepcopy(state))


def same_state(one: Any, other: Any) -> bool:
    """True for states of the same content, also if one has been through JSON."""
    return repr(_plain(one)) == repr(_plain(other))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in sorted(value.items(), key=lambda item: str(item[0]))}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
