"""States of loaders whose batches are fetched some ahead of their delivery, as for a CUDA device."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from fastdata import DataLoader
from fastdata.dataloader.iterators import EpochIterator, Numbered
from fastdata.pipeline.stats import PipelineStats


class Drawing(Dataset[Any]):
    """Its samples depend on how much has been drawn before them."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        return index, float(torch.rand(())), random.random()


def ahead(batches: Iterator[Any], depth: int) -> Iterator[Any]:
    """What the device prefetcher does: asks for `depth` batches before it hands over the first."""
    waiting: deque[Any] = deque()
    while True:
        while len(waiting) < depth:
            try:
                waiting.append(next(batches))
            except StopIteration:
                yield from waiting
                return
        yield waiting.popleft()


def fetched_ahead(loader: DataLoader[Any], depth: int = 3) -> EpochIterator:
    """The loader's iterator as with a device."""
    inner = loader._get_iterator()
    numbered = Numbered(inner, ahead=True)
    return EpochIterator(ahead(numbered, depth), record=inner.record, stats=PipelineStats(), length=None)


def plain(batches: Any) -> list[Any]:
    return [[column.tolist() for column in batch] for batch in batches]


@pytest.mark.parametrize("delivered", [0, 1, 4, 7])
def test_a_state_is_that_of_the_batches_delivered_not_of_those_fetched(delivered: int) -> None:
    random.seed(5)
    loader = DataLoader(Drawing(), 2, shuffle=True)
    iterator = fetched_ahead(loader)
    for _ in range(delivered):
        next(iterator)
    state = loader.state_dict()
    assert state["delivered"] == 2 * delivered
    expected = plain(iterator)
    random.seed(99)
    torch.manual_seed(99)
    resumed = DataLoader(Drawing(), 2, shuffle=True)
    resumed.load_state_dict(state)
    assert plain(resumed) == expected
