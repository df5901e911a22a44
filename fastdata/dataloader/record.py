"""How far an epoch has come."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from fastdata.order.epoch_batches import EpochBatches
from fastdata.order.random_states import GlobalStates
from fastdata.order.state import LoaderState
from fastdata.pipeline.stats import EpochSkips

__all__ = ["EpochRecord"]


class EpochRecord:
    """How far one epoch has come; outlives its iterator, so that a state can be taken after `break`.

    Attributes:
        start: the state the epoch began with.
        batches: its index batches; None for iterable datasets.
        worker_seed: what random numbers of worker processes are to follow from; None lets torch draw it.
        delivered_batches: batches handed to the caller, counted from `start`.
        ended: the caller has seen StopIteration.
        stateful: the dataset in this process, or its iterator, if it has a state of its own.
        first_state: that state after the epoch's first batch.
        snapshots: states by number of batches, where those are fetched ahead in this process.
    """

    def __init__(
        self,
        start: LoaderState,
        batches: EpochBatches | None,
        *,
        worker_seed: int | None,
        skips: EpochSkips | None = None,
    ) -> None:
        self._skips = skips
        self.start, self.batches, self.worker_seed = start, batches, worker_seed
        self.delivered_batches = 0
        self.ended = False
        self.stateful: Any = None
        self.first_state: Any = start.dataset_first
        self.snapshots: dict[int, tuple[GlobalStates, Any]] = {}

    def take_snapshot(self, batches: int) -> None:
        """Keeps what a state after so many batches needs, where batches are fetched before they are delivered."""
        self.snapshots[batches] = GlobalStates.now(), self._dataset_state_now()
        for old in [number for number in self.snapshots if number < self.delivered_batches]:
            del self.snapshots[old]

    def globals_then(self) -> GlobalStates:
        """The states of the global generators after the latest delivered batch."""
        found = self.snapshots.get(self.delivered_batches)
        return found[0] if found is not None else GlobalStates.now()

    def dataset_state_then(self) -> Any:
        """The dataset's own state likewise."""
        found = self.snapshots.get(self.delivered_batches)
        return found[1] if found is not None else self._dataset_state_now()

    def _dataset_state_now(self) -> Any:
        return copy.deepcopy(self.stateful.state_dict()) if self.stateful is not None else None

    def end(self) -> None:
        """The iterator has come to its end, which is the epoch's unless the sampler raised."""
        self.ended = self.batches is None or not self.batches.broken
        skips, self._skips = self._skips, None
        if skips is not None:
            skips.tell(self.start.epoch)

    def state(self) -> LoaderState:
        """Where the epoch stands, with what its order follows from."""
        batches = self.start.batches + self.delivered_batches
        if self.batches is None:
            return replace(self.start, batches=batches, dataset_random=None, dataset_state=None)
        self.batches.settle()
        return replace(
            self.batches.state,
            delivered=self.delivered(),
            batches=batches,
            checksum=self.batches.checksum_after(self.delivered_batches),
            dataset_random=None,
            dataset_state=None,
        )

    def delivered(self) -> int:
        """Samples of the epoch handed to the caller, including those before `start`."""
        if self.batches is None:
            return self.start.delivered
        return self.batches.delivered_after(self.delivered_batches)
