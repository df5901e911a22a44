"""Batches that are handed over before those in front of them, as worker processes with in_order=False do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastdata.errors import StateMismatch
from fastdata.order.index_checksum import checksum_of

__all__ = ["EarlyBatches", "HandOver"]

_REMEDY = (
    " than the loader with in_order=False had made whose state this is: batches that it handed over before those in "
    "front of them are not among these. Create the loader with that batch size and sampler, and give the sampler a "
    "generator or a seed, or start the epoch from the beginning"
)


class EarlyBatches:
    """The batches that a loaded state lists as handed over early; a sampler must give them again.

    Args:
        ahead: see `LoaderState.ahead`.
    """

    def __init__(self, ahead: Sequence[Sequence[int]]) -> None:
        self._at = {begin: (size, checksum) for begin, size, checksum in ahead}

    def has(self, begin: int, indices: Sequence[Any]) -> bool:
        """True for a batch that was handed over early.

        Args:
            begin: samples of the epoch in front of it, without those delivered in the order of the sampler.
            indices: its sample indices.

        Raises:
            StateMismatch: another batch was.
        """
        if not self._at:
            return False
        size = len(indices)
        if begin in self._at and self._at[begin] == (size, checksum_of(indices, 0)):
            return True
        if any(begin < other + count and other < begin + size for other, (count, _) in self._at.items()):
            raise StateMismatch(f"the sampler gives other samples{_REMEDY}")
        return False

    def check_end(self, samples: int) -> None:
        """Raises StateMismatch if the sampler has ended, after so many samples, before it came to all of them."""
        if any(begin >= samples for begin in self._at):
            raise StateMismatch(f"the sampler ended after {samples} samples{_REMEDY}")

    def behind(self, samples: int) -> list[list[int]]:
        """Returns the early batches behind `samples`, not reached by the sampler; see `LoaderState.ahead`."""
        return [[begin, *each] for begin, each in self._at.items() if begin >= samples]


class HandOver:
    """Tells which batches of an epoch have been handed over, in any order.

    Attributes:
        first: place of the first that has not been.
        early: places of those behind it that have.
    """

    def __init__(self) -> None:
        self.first, self.early = 0, set[int]()

    def add(self, place: int) -> None:
        """One more has been, by its place in the order of the sampler."""
        self.early.add(place)
        while self.first in self.early:
            self.early.remove(self.first)
            self.first += 1
