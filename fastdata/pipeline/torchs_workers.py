"""The random generators of the worker processes that torch would have, for batches that are made in threads.

torch's worker number w makes the batches w, w + num_workers, …, one after the other, with generators of its own, seeded
with base seed + w.  Here a batch draws from those generators when the one before it of the same worker has drawn.

Life cycle: batches wait for their turn in decode threads, which take batches in order, so the one that a batch waits
for is never behind it.  A batch that fails, or that nobody will ask for, passes its turn on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fastdata.order.random_states import GlobalStates
from fastdata.patches.torch_internals import numpy_seed_of_worker
from fastdata.pipeline.jobs import stop_if_cancelled
from fastdata.views.generators import Generators

__all__ = ["TorchsWorkers"]

_LOOK_S = 0.05  # between two looks whether the pipeline is closing


class TorchsWorkers:
    """The generators of an epoch, and whose turn it is to draw from them.

    Args:
        workers: number of torch's worker processes.
        base_seed: torch's base seed of the epoch.
        first: the worker that makes the first batch.
        resumed: the state of each worker in a run that is resumed, as `at` gives it; None where it begins anew.
        delivered: returns how many batches of this epoch have been handed over.
    """

    def __init__(
        self,
        workers: int,
        base_seed: int,
        *,
        first: int,
        resumed: Sequence[dict[str, Any] | None] | None,
        delivered: Callable[[], int],
    ) -> None:
        self._generators = [
            Generators.seeded(base_seed + worker, numpy_seed_of_worker(base_seed, worker)) for worker in range(workers)
        ]
        for own, state in zip(self._generators, resumed or (), strict=resumed is not None):
            if state is not None and state.get("random") is not None:
                GlobalStates.from_json(state["random"]).give_to(own.torch, own.python, own.numpy)
        self._first, self._delivered = first, delivered
        self._drawn = [0] * workers  # batches
        self._states = [[(-1, self._state(worker))] for worker in range(workers)]  # after which batch, and what
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, number: int) -> Iterator[Generators]:
        """Waits until batch `number` may draw, and lends it the generators for the length of a `with` block."""
        workers = len(self._generators)
        worker, before = (self._first + number) % workers, number // workers
        with self._changed:
            while self._drawn[worker] != before:
                self._changed.wait(_LOOK_S)
                stop_if_cancelled()
        try:
            yield self._generators[worker]
        finally:
            with self._changed:
                self._note(worker, number)
                self._drawn[worker] += 1
                self._changed.notify_all()

    def _note(self, worker: int, number: int) -> None:
        """Keeps the state after a batch until a later one of the worker has been delivered."""
        own, delivered = self._states[worker], self._delivered()
        own.append((number, self._state(worker)))
        while len(own) > 1 and own[1][0] < delivered:
            del own[0]

    def _state(self, worker: int) -> GlobalStates:
        own = self._generators[worker]
        return GlobalStates.of(own.torch, own.python, own.numpy)

    def at(self, delivered: int, *, ended: bool, streams: bool) -> dict[str, Any]:
        """Returns the states after so many batches; see `fastdata.dataloader.worker_states.WorkerStates.at`."""
        with self._changed:
            standing: list[Sequence[tuple[int, GlobalStates]]] = [list(own) for own in self._states]
        latest = [[state for number, state in own if number < delivered][-1] for own in standing]
        following = 0 if ended else (self._first + delivered) % len(latest)
        return {"next": following, "workers": [{"random": state.to_json()} for state in latest]}
