"""EpochSampler: every sample once, by as few ranks as the order allows, also when the number of ranks changes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.transforms as v1
from folders import numbered
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_states import saved

from fastdata import DataLoader, EpochSampler, ImageFolder, OptionError, StateMismatch

ORDERS = ["random", "windowed", "sequential"]


class Shards:
    """A dataset of shards as the sampler sees one."""

    def __init__(self, lengths: list[int]) -> None:
        self.shard_ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return int(self.shard_ends[-1])


def parts(dataset: Any, ranks: int, **options: Any) -> list[list[int]]:
    return [list(EpochSampler(dataset, num_replicas=ranks, rank=rank, **options)) for rank in range(ranks)]


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(1, 8),
    st.sampled_from(ORDERS),
    st.sampled_from(["keep", "pad", "drop"]),
)
def test_ranks_share_an_epoch(lengths: list[int], ranks: int, order: str, uneven: str) -> None:
    dataset = Shards(lengths)
    found = parts(dataset, ranks, order=order, uneven=uneven, window=2)
    sizes = [len(part) for part in found]
    seen = [index for part in found for index in part]
    samplers = [EpochSampler(dataset, num_replicas=ranks, rank=r, order=order, uneven=uneven) for r in range(ranks)]
    assert [len(sampler) for sampler in samplers] == sizes
    if uneven == "keep":
        assert sorted(seen) == list(range(len(dataset)))
        assert max(sizes) - min(sizes) <= 1
    elif uneven == "pad":
        assert set(seen) == set(range(len(dataset)))
        assert set(sizes) == {-(-len(dataset) // ranks)}
    else:
        assert len(set(seen)) == len(seen)
        assert set(sizes) == {len(dataset) // ranks}


def test_orders_depend_on_seed_and_epoch_alone() -> None:
    dataset = Shards([40] * 6)
    for order in ("random", "windowed"):
        sampler = EpochSampler(dataset, order=order, seed=1)
        first = list(sampler)
        assert list(EpochSampler(dataset, order=order, seed=1)) == first
        sampler.set_epoch(1)
        assert list(sampler) != first
        assert list(EpochSampler(dataset, order=order, seed=2)) != first
    assert list(EpochSampler(dataset, order="sequential")) == list(range(240))


def test_a_window_holds_so_many_shards_and_a_rank_reads_few() -> None:
    dataset = Shards([50] * 32)
    shard_of = np.searchsorted(dataset.shard_ends, np.arange(len(dataset)), side="right")
    seen: list[set[int]] = []
    for part in parts(dataset, 8, order="windowed", window=2):
        shards = shard_of[part]
        seen.append(set(shards.tolist()))
        for begin in range(0, len(part), 100):
            assert len(set(shards[begin : begin + 100].tolist())) == 2
        assert sorted(part[:100]) != part[:100]
    assert sum(map(len, seen)) == 32  # no shard is read by two ranks


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 25), min_size=1, max_size=10),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 20)), min_size=1, max_size=3),
    st.integers(1, 8),
    st.sampled_from(ORDERS),
)
def test_any_change_of_ranks_leaves_nothing_out_and_repeats_nothing(
    lengths: list[int], changes: list[tuple[int, int]], last: int, order: str
) -> None:
    dataset, history, seen = Shards(lengths), [], []
    for ranks, delivered in [*changes, (last, len(Shards(lengths)))]:
        for rank in range(ranks):
            sampler = EpochSampler(dataset, num_replicas=ranks, rank=rank, order=order, window=2, seed=5)
            sampler.resume(3, history)
            assert len(sampler) == len(list(sampler))
            seen += list(sampler)[:delivered]
        history.append((ranks, delivered))
    assert sorted(seen) == list(range(len(dataset)))


def test_the_next_epoch_is_whole_again() -> None:
    sampler = EpochSampler(Shards([20]), num_replicas=1, rank=0)
    sampler.resume(0, [(2, 5)])
    assert len(list(sampler)) == 10
    sampler.set_epoch(1)
    assert len(list(sampler)) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "shuffled"}, "order='shuffled' is not accepted; use one of random, windowed, sequential"),
        ({"uneven": "no"}, "uneven='no' is not accepted"),
        ({"window": 0, "order": "windowed"}, "window=0 must be above 0"),
        ({"rank": 2, "num_replicas": 2}, "rank=2 is not between 0 and 1"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        EpochSampler(Shards([4]), **options)


def test_windows_need_shards() -> None:
    with pytest.raises(OptionError, match="needs a ShardDataset, not list"):
        EpochSampler([1, 2], order="windowed")


# ---- in a loader

CROP = v1.Compose([v1.RandomResizedCrop(8), v1.ToTensor()])


def loader_for(folder: Path, ranks: int, rank: int, *, batch_size: int = 2, order: str = "random") -> Any:
    dataset = numbered(ImageFolder(folder, CROP))
    dataset.shard_ends = np.array([5, 16, 30, len(dataset)])
    sampler = EpochSampler(dataset, num_replicas=ranks, rank=rank, order=order, seed=9)
    return DataLoader(dataset, batch_size, sampler=sampler, seed=2, backend="native")


def epoch_of(loader: Any) -> list[tuple[int, float]]:
    return [
        (int(label), float(image.sum()))
        for images, labels in loader
        for image, label in zip(images, labels, strict=True)
    ]


@pytest.mark.parametrize("order", ["random", "windowed"])
@pytest.mark.parametrize(("before", "after"), list(itertools.product(range(1, 9), range(1, 9))))
def test_a_loader_goes_on_with_another_number_of_ranks(folder: Path, before: int, after: int, order: str) -> None:
    whole = sorted(epoch_of(loader_for(folder, 1, 0, order=order)))
    seen: list[tuple[int, float]] = []
    for rank in range(before):
        loader = loader_for(folder, before, rank, order=order)
        for _, (images, labels) in zip(range(2), loader, strict=False):
            seen += [(int(label), float(image.sum())) for image, label in zip(images, labels, strict=True)]
        if rank == 0:
            state = saved(loader)
    for rank in range(after):
        loader = loader_for(folder, after, rank, order=order)
        loader.load_state_dict(state)
        seen += epoch_of(loader)
    assert sorted(seen) == whole


def test_the_same_ranks_go_on_with_the_same_batches(folder: Path) -> None:
    whole = epoch_of(loader_for(folder, 3, 1))
    loader = loader_for(folder, 3, 1)
    seen = []
    for images, labels in loader:
        seen += [(int(label), float(image.sum())) for image, label in zip(images, labels, strict=True)]
        break
    again = loader_for(folder, 3, 1)
    again.load_state_dict(loader.state_dict())
    assert seen + epoch_of(again) == whole
    assert epoch_of(again) == epoch_of_second(folder)


def epoch_of_second(folder: Path) -> list[tuple[int, float]]:
    loader = loader_for(folder, 3, 1)
    epoch_of(loader)
    return epoch_of(loader)


def test_two_changes_in_one_epoch(folder: Path) -> None:
    seen: list[tuple[int, float]] = []
    state = None
    for ranks in (4, 3, 2):
        saved = None
        for rank in range(ranks):
            loader = loader_for(folder, ranks, rank)
            if state is not None:
                loader.load_state_dict(state)
            if ranks == 2:
                seen += epoch_of(loader)
                continue
            for images, labels in loader:
                seen += [(int(label), float(image.sum())) for image, label in zip(images, labels, strict=True)]
                break
            saved = saved or loader.state_dict()
        state = saved
    assert sorted(seen) == sorted(epoch_of(loader_for(folder, 1, 0)))


def test_a_state_of_another_order_is_refused(folder: Path) -> None:
    state = loader_for(folder, 2, 0).state_dict()
    with pytest.raises(StateMismatch, match=r"order='random'.*order='windowed'"):
        loader_for(folder, 2, 0, order="windowed").load_state_dict(state)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 4))
def test_repeated_samples_come_in_a_row_and_go_to_different_ranks(count: int, repetitions: int, ranks: int) -> None:
    dataset = Shards([count])
    whole = list(EpochSampler(dataset, repetitions=repetitions))
    plain = list(EpochSampler(dataset))
    assert whole == [index for index in plain for _ in range(repetitions)][:count]
    found = parts(dataset, ranks, repetitions=repetitions)
    assert [found[place % ranks][place // ranks] for place in range(count)] == whole


def test_repeated_samples_have_views_of_their_own(folder: Path) -> None:
    dataset = numbered(ImageFolder(folder, v1.Compose([v1.RandomResizedCrop(8), v1.PILToTensor()])))
    loader = DataLoader(dataset, 39, sampler=EpochSampler(dataset, repetitions=3), seed=1)
    images, labels = next(iter(loader))
    assert labels[0] == labels[1] == labels[2] != labels[3]
    assert not (images[0] == images[1]).all()


@pytest.mark.parametrize("options", [{"repetitions": 0}, {"repetitions": 2, "order": "sequential"}])
def test_repetitions_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="repetitions="):
        EpochSampler(Shards([4]), **options)
