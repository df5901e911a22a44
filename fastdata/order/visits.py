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
    """Counts visits modulo 65,536, in two bytes for each sample of the dataset.

    Args:
        dataset_size: samples in the dataset, or -1 if that is not known.  Anything but its indices from 0 on is counted
            in a dictionary.
    """

    def __init__(self, dataset_size: int) -> None:
        known = max(0, dataset_size) if dataset_size <= _MOST_SAMPLES else 0
        self._counts = np.zeros(known, np.uint16)  # pages that nobody writes to take no memory
        self._others: Counter[Any] = Counter()

    def add(self, index: Any) -> int:
        """Counts a visit; returns the number of those before it."""
        index = plain(index)
        is_known = type(index) is int and 0 <= index < len(self._counts)
        counts: Any = self._counts if is_known else self._others
        key = index if is_known else _hashable(index)
        before = int(counts[key])
        counts[key] = (before + 1) & 0xFFFF
        return before

    def update(self, indices: Iterable[Any]) -> None:
        """Counts a visit of each."""
        for index in indices:
            self.add(index)


def _hashable(index: Any) -> Any:
    """The index, or its text: samplers may give lists."""
    try:
        hash(index)
    except TypeError:
        return repr(index)
    return index
