"""Aspect-ratio buckets: batches of one size, every sample at most once, the same for all ranks, exact resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader

from fastdata import (
    AspectBuckets,
    BucketBatchSampler,
    DataLoader,
    OptionError,
    ShardDataset,
    ShardWriter,
    StateMismatch,
)

SIZES = [(40, 40), (60, 40), (40, 60), (81, 40)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buckets") / "shards"
    with ShardWriter(folder) as writer:
        for number in range(37):
            width, height = SIZES[number * number % 4]
            writer.write(
                {"__key__": f"{number:02}", "jpg": jpeg(width + number % 3, height, seed=number), "cls": number}
            )
    return folder


BUCKETS = AspectBuckets([(16, 16), (24, 16), (16, 24)])


def batches_of(dataset: Any, **options: Any) -> list[list[int]]:
    return list(BucketBatchSampler(dataset, BUCKETS, 4, **options))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=8, unique_by=lambda s: s[0] / s[1]
    ),
    st.integers(1, 500),
    st.integers(1, 500),
)
def test_an_image_takes_the_nearest_ratio(sizes: list[tuple[int, int]], width: int, height: int) -> None:
    buckets = AspectBuckets(sizes)
    chosen = buckets.sizes_px[int(buckets.of([(width, height)])[0])]
    distances = {size: abs(np.log(size[0] / size[1]) - np.log(width / height)) for size in sizes}
    assert distances[chosen] <= min(distances.values()) + 1e-12


@given(st.integers(2, 8), st.floats(1, 4))
def test_buckets_around_a_square_have_its_area(steps: int, widest: float) -> None:
    buckets = AspectBuckets.around(64 * steps, step=64, widest=widest)
    assert (64 * steps, 64 * steps) in buckets.sizes_px
    for width, height in buckets.sizes_px:
        assert width * height <= (64 * steps) ** 2
        assert width % 64 == height % 64 == 0
        assert max(width, height) <= widest * min(width, height)


@pytest.mark.parametrize("size", [(100, 50), (50, 100), (77, 77), (16, 300), (9, 9)])
def test_as_a_transform_it_takes_the_middle(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), np.uint8)
    image = Image.fromarray(pixels)
    made = BUCKETS(image)
    assert made.size == BUCKETS.sizes_px[int(BUCKETS.of([size])[0])]
    scale = min(size[0] / made.size[0], size[1] / made.size[1])
    wide, high = round(made.size[0] * scale), round(made.size[1] * scale)
    left, top = (size[0] - wide) // 2, (size[1] - high) // 2
    assert np.array_equal(
        np.asarray(made), np.asarray(image.crop((left, top, left + wide, top + high)).resize(made.size, 3))
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_one_size_and_torchs_pixels(shards: Path, workers: int) -> None:
    dataset = ShardDataset(shards, v1.Compose([BUCKETS, v1.ToTensor()]), fields=("image", "cls"))
    batches = BucketBatchSampler(dataset, BUCKETS, 4, drop_last=False)
    ours, theirs = (
        DataLoader(dataset, batch_sampler=batches, num_workers=workers),
        TorchLoader(dataset, batch_sampler=batches),
    )
    for (images, labels), (wanted, known) in zip(ours, theirs, strict=True):
        assert torch.equal(images, wanted)
        assert torch.equal(labels, known)
    assert ours.verdict().kind in ("accelerated", "partly accelerated")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_ranks_have_as_many_batches_of_different_samples(shards: Path, ranks: int, drop_last: bool) -> None:
    dataset = ShardDataset(shards)
    parts = [batches_of(dataset, num_replicas=ranks, rank=rank, drop_last=drop_last) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    assert len(parts[0]) == len(
        BucketBatchSampler(dataset, BUCKETS, 4, num_replicas=ranks, rank=0, drop_last=drop_last)
    )
    seen = Counter(index for part in parts for batch in part for index in batch)
    bucket_of = BUCKETS.of(dataset.sizes_px)
    for batch in (batch for part in parts for batch in part):
        assert len(set(bucket_of[batch])) == 1
        assert len(batch) == 4 or not drop_last
    if drop_last:
        assert set(seen.values()) == {1}
    else:
        assert len(seen) == len(dataset)


def test_more_ranks_than_batches_repeat_them() -> None:
    class Three:
        sizes_px = np.array([[16, 16]] * 3)

        def __len__(self) -> int:
            return 3

    parts = [batches_of(Three(), num_replicas=4, rank=rank, drop_last=False) for rank in range(4)]
    assert all(sorted(part[0]) == [0, 1, 2] for part in parts)


def test_the_order_is_a_function_of_seed_and_epoch(shards: Path) -> None:
    dataset = ShardDataset(shards)
    assert batches_of(dataset, seed=1) == batches_of(dataset, seed=1) != batches_of(dataset, seed=2)
    sampler = BucketBatchSampler(dataset, BUCKETS, 4)
    first = list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_a_loader_goes_on_after_any_batch(shards: Path) -> None:
    def loader() -> Any:
        dataset = ShardDataset(shards, v1.Compose([BUCKETS, v1.ToTensor()]), fields=("image", "cls"))
        return DataLoader(dataset, batch_sampler=BucketBatchSampler(dataset, BUCKETS, 4, drop_last=False))

    whole = loader()
    epochs = [[labels.tolist() for _, labels in whole] for _ in range(2)]
    assert epochs[0] != epochs[1]
    for taken in range(len(epochs[0])):
        made = loader()
        batches = iter(made)
        for _ in range(taken):
            next(batches)
        again = loader()
        again.load_state_dict(json.loads(json.dumps(made.state_dict())))
        assert [labels.tolist() for _, labels in again] == epochs[0][taken:]
        assert [labels.tolist() for _, labels in again] == epochs[1]


def test_a_state_of_other_buckets_is_refused(shards: Path) -> None:
    dataset = ShardDataset(shards)
    made = DataLoader(dataset, batch_sampler=BucketBatchSampler(dataset, BUCKETS, 4), collate_fn=list)
    next(iter(made))
    other = DataLoader(dataset, batch_sampler=BucketBatchSampler(dataset, AspectBuckets([(9, 9)]), 4), collate_fn=list)
    with pytest.raises(StateMismatch, match="BucketBatchSampler"):
        other.load_state_dict(made.state_dict())


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ([], "is not a list of"),
        ([(0, 4)], "is not a list of"),
        ([(4, 4, 4)], "is not a list of"),
        ([(8, 4), (16, 8)], "two buckets of one aspect ratio"),
    ],
)
def test_buckets_that_cannot_be_are_refused(sizes: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        AspectBuckets(sizes)


def test_samplers_that_cannot_be_are_refused(shards: Path) -> None:
    dataset = ShardDataset(shards)
    with pytest.raises(OptionError, match="is no multiple of step"):
        AspectBuckets.around(100)
    with pytest.raises(OptionError, match="does not know the sizes of its images; pass sizes_px"):
        BucketBatchSampler([1, 2], BUCKETS, 1)
    with pytest.raises(OptionError, match=r"sizes_px has shape \(3, 2\), but the dataset has 37 samples"):
        BucketBatchSampler(dataset, BUCKETS, 1, sizes_px=np.ones((3, 2)))
    with pytest.raises(OptionError, match="no bucket fills a batch of 64 on each of 1 ranks"):
        BucketBatchSampler(dataset, BUCKETS, 64)
    with pytest.raises(OptionError, match="rank=2 is not between"):
        BucketBatchSampler(dataset, BUCKETS, 4, num_replicas=2, rank=2)
    with pytest.raises(OptionError, match="batch_size=0"):
        BucketBatchSampler(dataset, BUCKETS, 0)


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_state_of_one_rank_serves_the_others(shards: Path, drop_last: bool) -> None:
    """A checkpoint holds that of rank 0."""

    def loader(rank: int) -> Any:
        dataset = ShardDataset(shards, fields=("cls",))
        batches = BucketBatchSampler(dataset, BUCKETS, 4, num_replicas=2, rank=rank, drop_last=drop_last)
        return DataLoader(dataset, batch_sampler=batches)

    whole = [[labels.tolist() for (labels,) in loader(rank)] for rank in range(2)]
    for taken in range(len(whole[0])):
        first = loader(0)
        batches = iter(first)
        for _ in range(taken):
            next(batches)
        for rank in range(2):
            again = loader(rank)
            again.load_state_dict(first.state_dict())
            assert [labels.tolist() for (labels,) in again] == whole[rank][taken:]
