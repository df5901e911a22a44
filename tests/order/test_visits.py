"""Visits of samples are counted in little memory."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset, RandomSampler, Sampler, TensorDataset

from fastdata import DataLoader
from fastdata.order.visits import Visits


@pytest.mark.parametrize("size", [-1, 0, 5, 1 << 40])
def test_visits_are_counted_whatever_an_index_is(size: int) -> None:
    indices: list[Any] = [
        0,
        4,
        -1,
        5,
        "a.jpg",
        (1, 2),
        True,
        np.int64(4),
        torch.tensor(4),
        10**12,
        0,
        "a.jpg",
        -1,
        4,
        [1, 2],
        [1, 2],
    ]
    visits, expected = Visits(size), Counter[Any]()
    for index in indices:
        key = repr(index) if isinstance(index, list) else index if isinstance(index, str | tuple) else int(index)
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


def test_loaders_whose_sampler_repeats_samples_are_copied_and_pickled() -> None:
    dataset = TensorDataset(torch.arange(6))
    loader = DataLoader(dataset, 2, sampler=RandomSampler(dataset, replacement=True, num_samples=8))
    list(loader)
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert sum(len(batch) for (batch,) in copied) == 8


class Lists(Sampler[Any]):
    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[Any]:
        return iter([[0, 1], [2, 3], [0, 1], [4, 5]])


class OfLists(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = v1.Compose([v1.RandomHorizontalFlip(), v1.PILToTensor()])

    def __getitem__(self, indices: Any) -> Any:
        images = [Image.new("RGB", (4, 4), (number, 0, 0)) for number in indices]
        return torch.stack([self.transform(image) for image in images])


def test_indices_may_be_lists() -> None:
    ours, torchs = (list(kind(OfLists(), 2, sampler=Lists())) for kind in (DataLoader, torch.utils.data.DataLoader))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


class Names(Sampler[str]):
    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Iterator[str]:
        return iter("abacabda")


class OfNames(Dataset[Any]):
    def __init__(self) -> None:
        self.transform = v1.Compose([v1.RandomResizedCrop(8), v1.PILToTensor()])
        values = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
        self.images = {name: Image.fromarray(values) for name in "abcd"}

    def __getitem__(self, name: str) -> Any:
        return self.transform(self.images[name])


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_resumed_epoch_draws_on_for_samples_that_are_named(done: int) -> None:
    whole = list(DataLoader(OfNames(), 2, sampler=Names(), seed=3))
    loader = DataLoader(OfNames(), 2, sampler=Names(), seed=3)
    batches = iter(loader)
    for _ in range(done):
        next(batches)
    resumed = DataLoader(OfNames(), 2, sampler=Names(), seed=3)
    resumed.load_state_dict(loader.state_dict())
    assert all(torch.equal(*pair) for pair in zip(resumed, whole[done:], strict=True))
    first, second = whole[0][0], whole[1][0]  # of the same sample
    assert not torch.equal(first, second)
