"""Which epoch comes next, whoever says so, and states at odd moments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from loader_states import labels, saved
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from fastdata import DataLoader, EpochSampler, StateMismatch
from fastdata.device.prefetch import map_tensors


def distributed(**options: Any) -> tuple[DataLoader, DistributedSampler[Any]]:
    data = TensorDataset(torch.arange(24))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    return DataLoader(data, 3, sampler=sampler, **options), sampler


@pytest.mark.parametrize("resumed_between", [False, True])
def test_an_epoch_set_on_the_sampler_counts_for_states_too(resumed_between: bool) -> None:
    loader, sampler = distributed()
    sampler.set_epoch(0)
    list(loader)
    state = saved(loader)
    if resumed_between:
        loader, sampler = distributed()
        loader.load_state_dict(state)
    sampler.set_epoch(1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = saved(loader)
    rest = labels(iterator)
    resumed, _ = distributed()
    resumed.load_state_dict(state)
    assert state["sampler_epoch"] == 1
    assert labels(resumed) == rest


def test_an_epoch_set_on_the_sampler_in_the_middle_discards_the_state_and_warns() -> None:
    loader, _ = distributed()
    next(iter(loader))
    resumed, sampler = distributed()
    resumed.load_state_dict(saved(loader))
    sampler.set_epoch(7)
    with pytest.warns(UserWarning, match=r"set_epoch\(7\) discards the loaded state, which is in its epoch 0"):
        assert len(list(resumed)) == 4


def test_an_epoch_set_on_an_epoch_sampler_is_kept_to() -> None:
    data = TensorDataset(torch.arange(24))
    sampler = EpochSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, 24, sampler=sampler)
    for epoch in (5, 6, 2):
        sampler.set_epoch(epoch)
        expected = list(sampler)
        assert labels(loader) == [expected]
    assert labels(loader) != [expected]  # left alone it goes on with the next
    assert sampler.epoch == 3


def test_states_after_another_number_of_ranks_can_be_loaded() -> None:
    data = TensorDataset(torch.arange(40))

    def make(ranks: int) -> DataLoader:
        return DataLoader(data, 2, sampler=EpochSampler(data, num_replicas=ranks, rank=0))

    loader = make(1)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    second = make(2)
    second.load_state_dict(saved(loader))
    iterator = iter(second)
    next(iterator)
    state = saved(second)
    rest = labels(iterator)
    third = make(2)
    third.load_state_dict(state)
    assert labels(third) == rest


class OfBatches(Dataset[Any]):
    """Takes lists of indices, as torch's documentation recommends for reading in bulk; has a length or none."""

    def __getitem__(self, indices: Any) -> Any:
        return torch.tensor(indices)


@pytest.mark.parametrize(
    "make",
    [
        lambda: BatchSampler(SequentialSampler(range(24)), 4, False),
        lambda: BatchSampler(RandomSampler(range(24), generator=torch.Generator().manual_seed(1)), 4, False),
        lambda: [[0, 1], [2, 3], [4], [5, 6], [7, 8]],
    ],
)
def test_a_sampler_of_batches_for_a_dataset_that_takes_them(make: Any) -> None:
    loader = DataLoader(OfBatches(), batch_size=None, sampler=make())
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = saved(loader)
    rest = [batch.tolist() for batch in iterator]
    resumed = DataLoader(OfBatches(), batch_size=None, sampler=make())
    resumed.load_state_dict(state)
    assert resumed.batches_left() == len(rest)
    with pytest.warns(UserWarning, match="order continues") if state["dataset_random"] is None else _nothing():
        assert [batch.tolist() for batch in resumed] == rest


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


class LengthLater:
    def __iter__(self) -> Iterator[int]:
        self.found = [2, 0, 1]
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)


def test_datasets_and_samplers_without_a_length_are_as_good_as_with_torch() -> None:
    assert [batch.tolist() for batch in DataLoader(OfBatches(), batch_sampler=[[0, 1], [2]])] == [[0, 1], [2]]
    data = TensorDataset(torch.arange(3))
    assert labels(DataLoader(data, sampler=LengthLater())) == [[2], [0], [1]]


class Anew(IterableDataset[int]):
    """Begins anew; its state is of a kind that JSON changes."""

    place = 0

    def __iter__(self) -> Iterator[int]:
        for self.place in range(1, 13):
            yield self.place

    def state_dict(self) -> dict[Any, Any]:
        return {"place": (self.place, 0), 3: torch.tensor([self.place]).tolist()}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.place = state["place"][0]


@pytest.mark.parametrize("through_json", [False, True])
def test_beginning_anew_is_found_out_whatever_json_makes_of_a_state(through_json: bool) -> None:
    loader = DataLoader(Anew(), 2)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    resumed = DataLoader(Anew(), 2)
    resumed.load_state_dict(saved(loader) if through_json else loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[7, 8], [9, 10], [11, 12]]


def test_a_stream_that_is_shorter_now_is_refused() -> None:
    class Stream(IterableDataset[int]):
        size = 12

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.size))

    loader = DataLoader(Stream(), 2)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    shorter = Stream()
    shorter.size = 4
    resumed = DataLoader(shorter, 2)
    resumed.load_state_dict(saved(loader))
    with pytest.raises(StateMismatch, match="ended after 2 of the 4 batches"):
        iter(resumed)


def test_persistent_workers_keep_torchs_orders_though_states_are_taken() -> None:
    def run(*, states: bool) -> list[Any]:
        torch.manual_seed(2)
        loader = DataLoader(TensorDataset(torch.arange(12)), 4, shuffle=True, num_workers=1, persistent_workers=True)
        found = []
        for _ in range(3):
            if states:
                loader.state_dict()
            found.append(labels(loader))
        return found

    assert run(states=True) == run(states=False)


def test_an_epoch_whose_sampler_raised_is_not_over() -> None:
    class Breaks:
        broken = True

        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Iterator[int]:
            yield from range(6)
            if self.broken:
                raise OSError("the list of samples cannot be read")
            yield from range(6, 12)

    loader = DataLoader(TensorDataset(torch.arange(12)), 2, sampler=Breaks())
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    with pytest.raises(OSError, match="cannot be read"):
        next(iterator)
    assert next(iterator, None) is None
    state = saved(loader)
    assert (state["epoch"], state["delivered"]) == (0, 6)
    whole = Breaks()
    whole.broken = False
    resumed = DataLoader(TensorDataset(torch.arange(12)), 2, sampler=whole)
    resumed.load_state_dict(state)
    assert labels(resumed) == [[6, 7], [8, 9], [10, 11]]


def test_mappings_of_any_kind_are_moved() -> None:
    batch = defaultdict(list, {"image": torch.ones(2)})
    moved = map_tensors(batch, torch.neg)
    assert type(moved) is defaultdict
    assert torch.equal(moved["image"], -torch.ones(2))
    assert torch.equal(batch["image"], torch.ones(2))
