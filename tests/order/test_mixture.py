"""Mixtures: the shares of an epoch, every sample equally often, the same for any number of ranks, exact resume."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from folders import numbered
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset
from torch.utils.data import DataLoader as TorchLoader

from fastdata import DataLoader, DatasetError, EpochSampler, ImageFolder, MixedDataset, OptionError, StateMismatch
from fastdata.shards.conversion.convert import ConvertOptions, convert

ORDERS = ["random", "windowed", "sequential"]
VIEWS = v1.Compose([v1.RandomResizedCrop(8), v1.PILToTensor()])


class Numbers(Dataset[int]):
    """Samples that say where they come from; shards of 5 where it has some."""

    def __init__(self, length: int, first: int, *, shards: bool = True) -> None:
        self.length, self.first = length, first
        if shards:
            self.shard_ends = np.minimum(np.arange(5, length + 5, 5), length)
        self.expected: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return self.first + index

    def expect(self, indices: np.ndarray) -> None:
        self.expected = indices.tolist()


def mixed(lengths: list[int], weights: list[float], **options: Any) -> MixedDataset:
    parts = [Numbers(length, 1000 * number) for number, length in enumerate(lengths)]
    return MixedDataset(list(zip(parts, weights, strict=True)), **options)


def epochs(dataset: MixedDataset, count: int, **options: Any) -> list[list[int]]:
    sampler, found = EpochSampler(dataset, **options), []
    for epoch in range(count):
        sampler.set_epoch(epoch)
        found.append([dataset[index] for index in sampler])
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.01, 100)), min_size=1, max_size=5),
    st.integers(1, 200),
    st.sampled_from(ORDERS),
    st.integers(0, 50),
)
def test_an_epoch_has_what_the_weights_say(
    sources: list[tuple[int, float]], epoch_samples: int, order: str, epoch: int
) -> None:
    try:
        lengths, weights = zip(*sources, strict=True)
        dataset = mixed(list(lengths), list(weights), epoch_samples=epoch_samples)
    except OptionError:  # a source would have no sample
        reject()
    sampler = EpochSampler(dataset, order=order)
    sampler.set_epoch(epoch)
    found = Counter(dataset[index] // 1000 for index in sampler)
    total = math.fsum(weight for _, weight in sources)
    assert len(sampler) == sum(found.values()) == epoch_samples
    for number, (_, weight) in enumerate(sources):
        assert abs(found[number] - epoch_samples * weight / total) < 1 + 1e-9 * epoch_samples


@pytest.mark.parametrize("order", ORDERS)
def test_every_sample_comes_equally_often_over_epochs(order: str) -> None:
    found = epochs(mixed([30, 7], [0.5, 0.5], epoch_samples=20), 21, order=order, window=2)
    seen = Counter(number for epoch in found for number in epoch)
    assert {seen[number] for number in range(30)} == {7}  # 21 epochs of 10 samples from 30
    assert {seen[1000 + number] for number in range(7)} == {30}


def test_shares_drawn_for_each_sample_vary_around_the_weights() -> None:
    found = epochs(mixed([50, 50], [3, 1], epoch_samples=1000, weights_per="sample"), 20)
    shares = [sum(number < 1000 for number in epoch) for epoch in found]
    assert len(set(shares)) > 5
    assert abs(np.mean(shares) - 750) < 15  # five deviations of the mean
    seen = Counter(number for epoch in found for number in epoch)
    assert max(seen[number] for number in range(50)) - min(seen[number] for number in range(50)) < 30


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("weights_per", ["epoch", "sample"])
def test_the_order_is_a_function_of_seed_and_epoch(order: str, weights_per: str) -> None:
    one, same, other = (
        epochs(mixed([30, 9], [1, 2], weights_per=weights_per), 3, order=order, seed=seed) for seed in (1, 1, 2)
    )
    assert one == same
    assert one[0] != one[1]
    assert one != other


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.sampled_from(ORDERS), st.integers(20, 60))
def test_ranks_divide_an_epoch(ranks: int, order: str, epoch_samples: int) -> None:
    dataset = mixed([30, 9], [1, 2], epoch_samples=epoch_samples)
    whole = sorted(EpochSampler(dataset, order=order))
    parts = [list(EpochSampler(dataset, order=order, num_replicas=ranks, rank=rank)) for rank in range(ranks)]
    assert sorted(index for part in parts for index in part) == whole


def test_a_rank_reads_few_shards_of_each_source() -> None:
    dataset = mixed([200, 100], [2, 1], epoch_samples=300)
    for rank in range(4):
        sampler = EpochSampler(dataset, order="windowed", window=2, num_replicas=4, rank=rank)
        shards = {(dataset[index] // 1000, dataset[index] % 1000 // 5) for index in sampler}
        assert len(shards) < 25  # of sixty


def test_sources_are_told_what_will_be_read() -> None:
    dataset = mixed([20, 10], [1, 1], epoch_samples=12)
    order = [dataset[index] for index in EpochSampler(dataset, order="windowed")]
    for number, part in enumerate(dataset.datasets):
        assert part.expected == [value % 1000 for value in order if value // 1000 == number]  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ORDERS)
def test_a_run_goes_on_with_other_ranks_at_every_position(first: int, order: str) -> None:
    def loader(rank: int, ranks: int) -> Any:
        dataset = mixed([17, 6], [2, 1], epoch_samples=26)
        return DataLoader(dataset, 2, sampler=EpochSampler(dataset, order=order, num_replicas=ranks, rank=rank))

    whole = Counter(mixed([17, 6], [2, 1], epoch_samples=26)[index] for index in loader(0, 1).sampler)
    for taken in range(min(len(loader(rank, first)) for rank in range(first))):
        states, seen = [], Counter()  # type: ignore[var-annotated]
        for rank in range(first):
            made = loader(rank, first)
            batches = iter(made)
            for _ in range(taken):
                seen.update(next(batches).tolist())
            states.append(json.loads(json.dumps(made.state_dict())))
        own = {name: value for name, value in states[0].items() if name != "dataset_random"}  # of any dataset's code
        assert len(json.dumps(own)) < 1000
        for ranks in (1, 2, 3, 4):
            rest = Counter(seen)
            for rank in range(ranks):
                again = loader(rank, ranks)
                again.load_state_dict(states[0])
                for batch in again:
                    rest.update(batch.tolist())
            assert rest == whole, (taken, ranks)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_a_sample_that_comes_again_differ_and_repeat_after_resuming(folder: Path, workers: int) -> None:
    def loader() -> Any:
        part = numbered(ImageFolder(folder, VIEWS))
        part.samples = part.samples[:4]
        dataset = MixedDataset([(part, 1)], epoch_samples=12)
        return DataLoader(dataset, 3, sampler=EpochSampler(dataset), seed=5, num_workers=workers)

    whole = list(loader())
    pixels = [image for images, _ in whole for image in images]
    labels = torch.cat([labels for _, labels in whole])
    assert Counter(labels.tolist()) == {0: 3, 1: 3, 2: 3, 3: 3}
    again = [pixels[place] for place in torch.nonzero(labels == 2).flatten()]
    assert not torch.equal(again[0], again[1])
    made = loader()
    batches = iter(made)
    next(batches), next(batches)
    resumed = loader()
    resumed.load_state_dict(made.state_dict())
    for batch, wanted in zip(resumed, whole[2:], strict=True):
        assert torch.equal(batch[0], wanted[0])


def test_shards_and_folders_are_opened_and_loaded_by_the_image_pipeline(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "shards", ConvertOptions(shard_bytes=60_000))
    dataset = MixedDataset({tmp_path / "shards": 0.25, folder: 0.75}, VIEWS, epoch_samples=40)
    loader = DataLoader(dataset, 8, sampler=EpochSampler(dataset, order="windowed"))
    assert loader._route().is_image_pipeline
    assert [len(labels) for _, labels in loader] == [8] * 5
    assert "0.25 of 39" in repr(dataset)
    theirs = TorchLoader(dataset, 8, sampler=EpochSampler(dataset))
    assert sum(len(labels) for _, labels in theirs) == 40


def test_a_state_of_another_mixture_is_refused() -> None:
    def loader(weights: list[float]) -> Any:
        dataset = mixed([17, 6], weights)
        return DataLoader(dataset, 2, sampler=EpochSampler(dataset))

    made = loader([2, 1])
    next(iter(made))
    loader([4, 2]).load_state_dict(made.state_dict())  # the same shares
    with pytest.raises(StateMismatch, match="mixture"):
        loader([1, 1]).load_state_dict(made.state_dict())


@pytest.mark.parametrize("weight", [-1, 0, float("nan"), float("inf"), True, "much", None])
def test_weights_that_cannot_be_are_refused(weight: Any) -> None:
    with pytest.raises(OptionError, match="the weight of Numbers 1 is"):
        mixed([3, 4], [1, weight])


def test_sources_that_cannot_be_mixed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="at least one dataset"):
        MixedDataset({})
    with pytest.raises(DatasetError, match="Numbers 1 is empty"):
        mixed([3, 0], [1, 1])
    with pytest.raises(DatasetError, match="missing is neither a folder of images nor shards"):
        MixedDataset({tmp_path / "missing": 1})
    with pytest.raises(DatasetError, match="object has no length"):
        MixedDataset([(object(), 1)])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="epoch_samples=0 is not a positive integer"):
        mixed([3], [1], epoch_samples=0)
    with pytest.raises(OptionError, match="weights_per='batch' is not accepted"):
        mixed([3], [1], weights_per="batch")
    with pytest.raises(OptionError, match="order='windowed' needs a ShardDataset"):
        EpochSampler(MixedDataset([(Numbers(4, 0, shards=False), 1)]), order="windowed")


def test_a_loader_without_a_sampler_says_what_to_pass() -> None:
    dataset = mixed([3, 4], [1, 1])
    with pytest.raises(OptionError, match=r"pass sampler=EpochSampler\(dataset\)"):
        DataLoader(dataset, 2, shuffle=True)
    assert len(DataLoader(ConcatDataset(dataset.datasets))) == 7


def test_different_classes_are_told() -> None:
    parts = [Numbers(3, 0), Numbers(4, 1000)]
    parts[0].classes, parts[1].classes = ["a"], ["b"]  # type: ignore[attr-defined]
    with pytest.warns(match="Numbers 0 and Numbers 1 have different classes"):
        MixedDataset([(part, 1) for part in parts])


def test_a_source_that_would_never_come_is_refused() -> None:
    with pytest.raises(OptionError, match="the weight of Numbers 0 gives it no sample in an epoch of 20"):
        mixed([5, 5], [1, 1e5], epoch_samples=20)
    assert len(EpochSampler(mixed([5, 5], [1, 1e5], epoch_samples=20, weights_per="sample"))) == 20


def test_a_state_knows_no_paths(folder: Path, tmp_path: Path) -> None:
    def loader(place: Path) -> Any:
        dataset = MixedDataset({place: 1.0}, VIEWS)
        return DataLoader(dataset, 4, sampler=EpochSampler(dataset))

    (tmp_path / "elsewhere").symlink_to(folder)
    made = loader(folder)
    next(iter(made))
    again = loader(tmp_path / "elsewhere")
    again.load_state_dict(made.state_dict())
    assert sum(len(labels) for _, labels in again) == 39 - 4


def test_numbers_of_numpy_are_weights() -> None:
    shares = [source.weight for source in mixed([3, 4], [np.float32(1), np.int64(3)]).mixture.sources]  # type: ignore[list-item]
    assert shares == [0.25, 0.75]
