"""Visits of samples are counted in little memory."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from fastdata.order.visits import Visits


@pytest.mark.parametrize("size", [-1, 0, 5, 1 << 40])
def test_visits_are_counted_whatever_an_index_is(size: int) -> None:
    indices: list[Any] = [0, 4, -1, 5, "a.jpg", (1, 2), True, np.int64(4), torch.tensor(4), 10**12, 0, "a.jpg", -1, 4]
    visits, expected = Visits(size), Counter[Any]()
    for index in indices:
        key = index if isinstance(index, str | tuple) else int(index)
        assert visits.add(index) == expected[key]
        expected[key] += 1


def test_visits_begin_again_after_two_bytes() -> None:
    for visits in (Visits(3), Visits(-1)):
        visits.update([2] * 65_535)
        assert [visits.add(2) for _ in range(3)] == [65_535, 0, 1]


def test_many_samples_take_two_bytes_each() -> None:
    count = 1_000_000
    tracemalloc.start()
    visits = Visits(count)
    visits.update(range(count))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 2.1 * count
    assert visits.add(7) == 1
