"""A loader that is watched, and its iterator: neither lives longer than without."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastdata.diagnosis.loader_facts import epoch_length, likeness
from fastdata.diagnosis.loading import settings_of
from fastdata.diagnosis.observation import Step

__all__ = ["UsedLoader", "Turn", "MonitoredIterator"]

# Packages whose samplers give an order that is fixed when an epoch begins.
_ORDERS = (
    "accelerate",
    "builtins",
    "fastdata",
    "lightning",
    "pytorch_lightning",
    "timm",
    "torch",
    "torchvision",
    "transformers",
)


@dataclass
class Turn:
    """One iteration of a loader.

    Attributes:
        length: batches that it has at most; infinite if that is not known.
        made_s: seconds that making its iterator took, until they are counted for its first batch.
        delivered: batches so far.
        is_out: the program has a batch, and has not asked for the next one yet.
        is_left: nobody has its iterator any more.
        is_fed: some of its batches came from another loader.
        wait_s: seconds that this batch was waited for.
        asked_by: the thread that has it.
    """

    length: float = math.inf
    made_s: float = 0.0
    delivered: int = 0
    is_out: bool = False
    is_left: bool = False
    is_fed: bool = False
    wait_s: float = 0.0
    asked_by: int = 0


class UsedLoader:
    """A loader that was iterated.

    Attributes:
        dataset: name of the dataset's class.
        settings: the loader's arguments that decide the speed.
        likeness: properties that the loader keeps when it is made anew; see `loader_facts.likeness`.
        batches: delivered.
        trained: batches that were followed by a backward pass or an update.
        led: steps that have ended while it was the main loader.
        first_batch_s: seconds until the first one.
        steps: steps of all iterations so far, until the script begins.
        turn: the iteration that began last.
        turns: number of iterations.
        epoch: batches of the latest epoch that came to its end; infinite before.
        waited_s: seconds waited for its batches, of which there was one in each step.
        feeds: steps of another loader in which there was one of its batches, as with zip().
        is_left_early: the program has begun another iteration before the end of one.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._kept: Any = None
        self.dataset, self.settings, self.likeness = (
            type(loader.dataset).__name__,
            settings_of(loader),
            likeness(loader),
        )
        self.batches = self.trained = self.led = self.turns = self.feeds = 0
        self.first_batch_s = math.nan
        self.steps: list[Step] = []
        self.began_at = self.waited_s = 0.0
        self.turn = Turn()
        self.epoch = math.inf
        self.is_left_early = False

    @property
    def loader(self) -> Any:
        """The loader; None if the program has let go of it, and it was not kept."""
        return self._loader()

    def keep(self, keeps: bool) -> None:
        """Holds the loader strongly if `keeps`, else weakly."""
        self._kept = self._loader() if keeps else None

    @property
    def is_iterated(self) -> bool:
        """True between the first batch of an epoch and its end."""
        return self.turn.is_out

    @property
    def why_not_ahead(self) -> str:
        """The reason why reading ahead might change what the program trains on; "" for none."""
        loader = self.loader
        batches = loader.batch_sampler
        for sampler in (loader.sampler, batches, getattr(batches, "sampler", None)):
            if sampler is not None and type(sampler).__module__.partition(".")[0] not in _ORDERS:
                return f"{type(sampler).__name__}, the program's own code, may look at how the training goes"
        if self.is_left_early and getattr(loader, "persistent_workers", False):
            return "the program leaves epochs early, and worker processes that stay would have drawn more numbers"
        return ""

    @property
    def restarts_in_each_step(self) -> bool:
        """True if the program makes an iterator for each batch, although an epoch has several."""
        return self.turns > 2 and self.batches <= self.turns and self.turn.length > 1


class _StateAsDelivered:
    """Stands for a loader's `state_dict` while batches are read ahead: tells the state before the first of these."""

    def __init__(self, loader: Any) -> None:
        self._loader, self._own, self._states = loader, getattr(type(loader), "state_dict", None), deque[Any]()

    def note(self) -> None:
        """Notes the state before one more batch is read ahead."""
        if self._own is not None:
            self._states.append(self._own(self._loader))
            vars(self._loader)["state_dict"] = self

    def forget(self, count: int = 1) -> None:
        """Forgets the states before so many batches, which the program has now, or will not get."""
        for _ in range(min(count, len(self._states))):
            self._states.popleft()
        if not self._states and vars(self._loader).get("state_dict") is self:
            del vars(self._loader)["state_dict"]

    def __call__(self) -> Any:
        return self._states[0]


class MonitoredIterator:
    """Wraps an iterator of a loader; everything that is not iterating is the iterator's own.

    Args:
        ask: called for the next batch, in the iterator's place.
        leave: called when nobody has the iterator any more.
        seen: the loader of the iterator.
        inner: the iterator.
        made_s: seconds that making it took.

    Attributes:
        ahead: batches that were read ahead, and are delivered before the next one is read.
        failure: exception, as StopIteration, that reading ahead met behind them.
    """

    def __init__(
        self,
        ask: Callable[[UsedLoader, MonitoredIterator], Any],
        leave: Callable[[UsedLoader, Turn], None],
        seen: UsedLoader,
        inner: Any,
        *,
        made_s: float,
    ) -> None:
        self._ask, self._leave, self._seen, self.inner = ask, leave, seen, inner
        self._loader = seen.loader  # of which the program may have nothing but the iterator
        self.ahead: deque[Any] = deque()
        self.failure: Exception | None = None
        self._state = _StateAsDelivered(self._loader)
        seen.is_left_early |= seen.turns > 0 and seen.turn.delivered < min(seen.turn.length, seen.epoch)
        self.turn = seen.turn = Turn(epoch_length(seen.loader, inner), made_s)
        seen.turns += 1

    def read_ahead(self) -> bool:
        """Reads one more batch ahead; False if there is none, or an exception in its place."""
        if self.failure is None:
            self._state.note()
            try:
                self.ahead.append(next(self.inner))
                return True
            except StopIteration:  # whose frames would hold this iterator, and its loader, longer than without
                self.failure = StopIteration()
            except Exception as error:  # noqa: BLE001 - raised where the program asks for this batch
                self.failure = error
        return False

    def following(self) -> Any:
        """The next batch in the loader's order.

        Raises:
            Exception: the loader's own, StopIteration included.
        """
        if self.ahead:
            self._state.forget()
            return self.ahead.popleft()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            self._state.forget()
            raise failure
        return next(self.inner)

    def __iter__(self) -> MonitoredIterator:
        return self

    def __next__(self) -> Any:
        return self._ask(self._seen, self)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "turn", "ahead", "failure", "_leave", "_seen", "_state"):  # while it is made or copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __del__(self) -> None:
        try:
            self._state.forget(len(self.ahead) + 1)
            self._leave(self._seen, self.turn)
        except Exception:  # noqa: BLE001 - one that was not made, or in an interpreter that ends
            pass
