"""An iterator with a state, from which datasets that are streams are made."""

from __future__ import annotations

from collections.abc import Iterator


class CountingIterator:
    """Counts from 1, and can be put back to any place."""

    def __init__(self, size: int = 20) -> None:
        self.size, self.place = size, 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.place >= self.size:
            raise StopIteration
        self.place += 1
        return self.place

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]
