"""A loader that is watched, and its iterator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fastdata.diagnosis.observation import Step
from fastdata.diagnosis.repeating import epoch_length

__all__ = ["Seen", "WatchedIterator"]


@dataclass
class Seen:
    """A loader that was iterated.

    Attributes:
        loader: itself.
        batches: delivered.
        trained: batches that were followed by a backward pass or an update.
        first_batch_s: seconds until the first one.
        steps: of all iterations so far, until the script begins.
        latest: the iterator that was made last.
        epoch: batches of the latest epoch that came to its end; infinite before.
    """

    loader: Any
    batches: int = 0
    trained: int = 0
    first_batch_s: float = math.nan
    steps: list[Step] = field(default_factory=list)
    began_at: float = 0.0
    latest: WatchedIterator | None = None
    epoch: float = math.inf

    @property
    def is_iterated(self) -> bool:
        """True between the first batch of an epoch and its end."""
        return self.latest is not None and self.latest.is_out


class WatchedIterator:
    """Wraps an iterator of a loader; everything that is not iterating is the iterator's own.

    Args:
        ask: called for the next batch, in the iterator's place.
        seen: whose iterator it is.
        inner: the iterator.
        made_s: seconds that making it took.
    """

    def __init__(self, ask: Callable[[Seen, WatchedIterator], Any], seen: Seen, inner: Any, *, made_s: float) -> None:
        self._ask, self._seen, self.inner = ask, seen, inner
        self.is_out = False  # the program has a batch
        self.delivered = 0
        self.wait_s, self.made_s = 0.0, made_s
        self.length = epoch_length(seen.loader, inner)

    def __iter__(self) -> WatchedIterator:
        return self

    def __next__(self) -> Any:
        return self._ask(self._seen, self)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is made or copied
            raise AttributeError(name)
        return getattr(self.inner, name)
