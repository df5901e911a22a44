"""A loader that is watched, and its iterator: neither lives longer than without."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fastdata.diagnosis.loader_facts import epoch_length, likeness
from fastdata.diagnosis.loading import settings_of
from fastdata.diagnosis.observation import Step

__all__ = ["MonitoredIterator", "Turn", "UsedLoader"]


@dataclass
class Turn:
    """One iteration of a loader.

    Attributes:
        length: batches that it has at most; infinite if that is not known.
        made_s: seconds that making its iterator took, until they are counted for its first batch.
        is_out: the program has a batch, and has not asked for the next one yet.
        is_left: nobody has its iterator any more.
        wait_s: seconds that this batch was waited for.
        asked_by: the thread that has it.
    """

    length: float = math.inf
    made_s: float = 0.0
    is_out: bool = False
    is_left: bool = False
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
        steps: steps of all iterations so far, until the plan begins.
        turn: the iteration that began last.
        turns: number of iterations.
        is_whole: an epoch of it has come to its end.
        waited_s: seconds waited for its batches, of which there was one in each step.
        feeds: steps of another loader in which there was one of its batches, as with zip().
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._kept: Any = None
        self.dataset, self.settings = type(loader.dataset).__name__, settings_of(loader)
        self.likeness = likeness(loader)
        self.batches = self.trained = self.led = self.turns = self.feeds = 0
        self.first_batch_s = math.nan
        self.steps: list[Step] = []
        self.began_at = self.waited_s = 0.0
        self.turn = Turn()
        self.is_whole = False

    @property
    def loader(self) -> Any:
        """The loader; None if the program has let go of it, and it was not kept."""
        return self._loader()

    def keep(self, keeps: bool) -> None:
        """Holds the loader strongly if `keeps`, else weakly."""
        self._kept = self._loader() if keeps else None

    def succeed(self, other: UsedLoader) -> None:
        """Takes over what is known of one like this, which the program made for the epoch before."""
        self.batches, self.trained = self.batches + other.batches, self.trained + other.trained
        self.turns, self.waited_s = self.turns + other.turns, self.waited_s + other.waited_s
        self.led, self.is_whole = other.led, other.is_whole
        self.first_batch_s, self.began_at, self.steps = other.first_batch_s, other.began_at, other.steps

    @property
    def restarts_in_each_step(self) -> bool:
        """True if the program makes an iterator for each batch, although an epoch has several."""
        return self.turns > 2 and self.batches <= self.turns and self.turn.length > 1


class MonitoredIterator:
    """Wraps an iterator of a loader; everything that is not iterating is the iterator's own.

    Args:
        ask: called for the next batch, in the iterator's place.
        leave: called when nobody has the iterator any more.
        seen: the loader of the iterator.
        inner: the iterator.
        made_s: seconds that making it took.
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
        self.turn = seen.turn = Turn(epoch_length(seen.loader, inner), made_s)
        seen.turns += 1

    def __iter__(self) -> MonitoredIterator:
        return self

    def __next__(self) -> Any:
        return self._ask(self._seen, self)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "turn", "_leave", "_seen"):  # while it is made or copied
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __del__(self) -> None:
        with suppress(Exception):  # of one that was not made, or in an interpreter that ends
            self._leave(self._seen, self.turn)
