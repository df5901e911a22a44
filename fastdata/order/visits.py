"""How often the samples of an epoch were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from fastdata.order.index_checksum import plain

__all__ = ["Visits"]

_MOST_SAMPLES = 1 << 28  # of a dataset whose visits lie in one array


class Visits:
    """Counts visits modulo 65,536, in two bytes for each sample that is visited.

    Args:
        dataset_size: samples in the dataset, or -1 if that is not known; what is no index below it takes a dictionary.
    """

    def __init__(self, dataset_size: int) -> None:
        self._known = max(0, dataset_size) if dataset_size <= _MOST_SAMPLES else 0
        counts: Any = np.zeros(self._known, np.uint16)  # pages that nobody writes to take no memory
        self._counts = memoryview(counts)  # whose items are read faster one by one
        self._others: Counter[Any] = Counter()

    def add(self, index: Any) -> int:
        """Counts a visit; returns the number of those before it."""
        index = plain(index)
        is_known = type(index) is int and 0 <= index < self._known
        counts: Any = self._counts if is_known else self._others
        before: int = counts[index] & 0xFFFF
        counts[index] = before + 1 & 0xFFFF
        return before

    def update(self, indices: Iterable[Any]) -> None:
        """Counts a visit of each."""
        for index in indices:
            self.add(index)
