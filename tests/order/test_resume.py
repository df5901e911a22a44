"""State and resume: exactly the remaining samples, under any backend and worker count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from folders import numbered
from loader_states import saved
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, StateMismatch

RANDOM = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.PILToTensor()])


class EvenFirst:
    """A sampler nobody knows, drawing from torch's global generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Any:
        order = torch.randperm(self.size).tolist()
        return iter(sorted(order, key=lambda index: index % 2))


class Wrapped:
    """A batch sampler around another, as accelerate's and Lightning's are."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Any:
        return iter(self.batch_sampler)


SAMPLERS = {
    "sequential": lambda data: {"batch_size": 4},
    "shuffle": lambda data: {"batch_size": 4, "shuffle": True},
    "shuffle, drop last": lambda data: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "seed": lambda data: {"batch_size": 4, "shuffle": True, "seed": 17},
    "generator": lambda data: {"batch_size": 4, "shuffle": True, "generator": torch.Generator().manual_seed(1)},
    "replacement": lambda data: {"batch_size": 4, "sampler": RandomSampler(data, replacement=True, num_samples=30)},
    "weighted": lambda data: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * len(data), 30)},
    "subset": lambda data: {"batch_size": 4, "sampler": SubsetRandomSampler(range(5, 30))},
    "distributed": lambda data: {"batch_size": 4, "sampler": DistributedSampler(data, num_replicas=2, rank=1)},
    "unknown": lambda data: {"batch_size": 4, "sampler": EvenFirst(len(data))},
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(EvenFirst(len(data)), 5, drop_last=False)},
    "wrapped batch sampler with a generator": lambda data: {
        "batch_sampler": Wrapped(
            BatchSampler(RandomSampler(data, generator=torch.Generator().manual_seed(1)), 4, False)
        )
    },
    "batch sampler of a distributed one": lambda data: {
        "batch_sampler": BatchSampler(DistributedSampler(data, num_replicas=2, rank=1), 4, drop_last=False)
    },
    "list of batches": lambda data: {"batch_sampler": [[1, 2, 3], [7, 7], [30], [4, 5, 6, 0]]},
}


def check_resume(make: Any, *, stop_after: int, resumed: dict[str, Any] | None = None) -> None:
    """Runs two epochs, takes the state in one of them, and continues from it in a loader of its own."""
    torch.manual_seed(21)
    loader = make({})
    assert loader.batches_left() == len(loader)
    first = list(loader)
    whole = list(loader)
    torch.manual_seed(21)
    loader = make({})
    check_batches(list(loader), first)
    iterator = iter(loader)
    for _ in range(stop_after):
        next(iterator)
    state = saved(loader)
    del iterator
    torch.manual_seed(99)
    other = make(resumed or {})
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert other.batches_left() == len(whole) - stop_after
    check_batches(list(other), whole[stop_after:])


def check_batches(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        for our, their in zip(ours, theirs, strict=True):
            assert torch.equal(our, their)


@pytest.mark.parametrize("stop_after", [0, 1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_images_continue_under_another_backend_and_worker_count(folder: Path, sampler: str, stop_after: int) -> None:
    dataset = ImageFolder(folder, RANDOM)

    def make(options: dict[str, Any]) -> DataLoader:
        return DataLoader(dataset, **{"backend": "pil", **SAMPLERS[sampler](dataset), **options})

    check_resume(make, stop_after=stop_after, resumed={"backend": "turbojpeg", "num_workers": 3})


@pytest.mark.parametrize("stop_after", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_torchs_path_continues_too(sampler: str, stop_after: int) -> None:
    dataset = TensorDataset(torch.arange(40))
    check_resume(
        lambda options: DataLoader(dataset, **{**SAMPLERS[sampler](dataset), **options}),
        stop_after=stop_after,
        resumed={"num_workers": 2},
    )


def test_resume_with_persistent_workers() -> None:
    dataset = TensorDataset(torch.arange(40))
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "persistent_workers": True}
    check_resume(lambda extra: DataLoader(dataset, 4, **options, **extra), stop_after=2)


def test_the_batch_size_may_change(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, shuffle=True, seed=3)
    whole = torch.cat([labels for _, labels in loader])
    loader.set_epoch(0)
    iterator = iter(loader)
    next(iterator), next(iterator)
    other = DataLoader(ImageFolder(folder, RANDOM), 7, shuffle=True, seed=3)
    other.load_state_dict(loader.state_dict())
    assert torch.equal(torch.cat([labels for _, labels in other]), whole[8:])


def test_after_the_last_batch_nothing_remains_and_after_the_epoch_the_next_begins() -> None:
    loader = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, seed=5)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, seed=5)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == []
    assert next(iterator, None) is None
    resumed.load_state_dict(loader.state_dict())
    check_batches(list(resumed), list(loader))


def test_state_outlives_a_break(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, num_workers=2)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert loader.state_dict()["delivered"] == 12
    assert loader.state_dict()["batches"] == 3


def test_prefetched_batches_do_not_count(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, num_workers=3, prefetch_factor=5)
    next(iter(loader))
    assert loader.state_dict()["delivered"] == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_samplers_keep_a_small_state(folder: Path, workers: int) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, shuffle=True, num_workers=workers, seed=1)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 650


def test_without_a_seed_a_state_holds_the_global_generators_once(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, shuffle=True)
    assert len(json.dumps(loader.state_dict())) < 15_000
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 15_000


class Remembering(IterableDataset[int]):
    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Any:
        while self.position < 20:
            self.position += 1
            yield self.position

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Forgetting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(1, 21))


@pytest.mark.parametrize("dataset", [Remembering, Forgetting])
def test_iterable_datasets(dataset: Any) -> None:
    loader = DataLoader(dataset(), 4)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = saved(loader)
    resumed = DataLoader(dataset(), 4)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == [list(range(n, n + 4)) for n in (9, 13, 17)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset_size": 7}, "dataset_size = 7, this loader has dataset_size = 39"),
        ({"version": 9}, "format version 9, this fastdata reads 2"),
        (
            {"sampler": "RandomSampler"},
            "sampler = 'RandomSampler', this loader has sampler = 'SequentialSampler\\(39\\)'",
        ),
        ({"view_seed": 4}, "seed 4, this loader has seed 3"),
        ({"colour": 1}, r"unknown entries \['colour'\]"),
    ],
    ids=str,
)
def test_a_foreign_state_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, seed=3)
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})
    with pytest.raises(StateMismatch, match="not a loader state"):
        loader.load_state_dict({"model": 1})


@pytest.mark.parametrize(
    ("saved", "here"),
    [
        ({"sampler": "distributed"}, {"sampler": "distributed", "seed": 9}),
        ({"sampler": "distributed"}, {"sampler": "distributed", "num_replicas": 4}),
        ({"sampler": "random"}, {"sampler": "random", "generator": torch.Generator()}),
    ],
)
def test_a_sampler_of_another_kind_is_refused(saved: dict[str, Any], here: dict[str, Any]) -> None:
    data = TensorDataset(torch.arange(20))

    def loader(options: dict[str, Any]) -> DataLoader:
        options = dict(options)
        if options.pop("sampler") == "random":
            return DataLoader(data, 4, sampler=RandomSampler(data, **options))
        return DataLoader(data, 4, sampler=DistributedSampler(data, **{"num_replicas": 2, "rank": 0, **options}))

    with pytest.raises(StateMismatch, match="sampler = "):
        loader(here).load_state_dict(loader(saved).state_dict())


def test_set_epoch_reaches_a_sampler_inside_a_batch_sampler() -> None:
    inner = DistributedSampler(range(20), num_replicas=2, rank=0)  # type: ignore[arg-type]
    DataLoader(TensorDataset(torch.arange(20)), batch_sampler=Wrapped(BatchSampler(inner, 4, False))).set_epoch(5)
    assert inner.epoch == 5


def test_private_entries_of_a_state_are_ignored() -> None:
    loader = DataLoader(TensorDataset(torch.arange(20)), 4)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict() | {"_iterator_finished": False})
    assert next(iter(loader))[0].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("persistent", [False, True])
def test_the_orders_of_several_epochs_are_torchs(folder: Path, persistent: bool) -> None:
    orders = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        options = {"shuffle": True, "num_workers": 2, "persistent_workers": persistent}
        generator = torch.Generator().manual_seed(3)
        loader = cls(numbered(ImageFolder(folder, RANDOM)), 7, generator=generator, **options)
        orders.append([[labels.tolist() for _, labels in loader] for _ in range(3)])
    assert orders[0] == orders[1]


def test_epochs_differ_and_set_epoch_repeats_one(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4, shuffle=True, seed=3)
    first, second = list(loader), list(loader)
    assert not all(torch.equal(a[1], b[1]) for a, b in zip(first, second, strict=True))
    loader.set_epoch(0)
    check_batches(list(loader), first)


def test_set_epoch_reaches_the_distributed_sampler(folder: Path) -> None:
    dataset = ImageFolder(folder, RANDOM)
    sampler = DistributedSampler(dataset, num_replicas=3, rank=0)
    loader = DataLoader(dataset, 4, sampler=sampler)
    loader.set_epoch(6)
    assert sampler.epoch == 6


def test_ranks_share_no_sample_and_see_the_views_of_one_process(folder: Path) -> None:
    dataset = ImageFolder(folder, RANDOM)
    whole = {}
    for image, index in zip(*_all(DataLoader(numbered(dataset), 4, seed=8)), strict=True):
        whole[int(index)] = image
    seen = []
    for rank in range(3):
        sampler = DistributedSampler(dataset, num_replicas=3, rank=rank)
        images, indices = _all(DataLoader(numbered(dataset), 4, sampler=sampler, seed=8))
        seen += indices.tolist()
        assert all(torch.equal(image, whole[int(i)]) for image, i in zip(images, indices, strict=True))
    assert sorted(seen) == list(range(39))


def test_repeated_samples_get_different_views(folder: Path) -> None:
    dataset = Subset(ImageFolder(folder, RANDOM), [3])
    images, _ = next(iter(DataLoader(dataset, 6, sampler=[0] * 6, seed=1)))
    assert len({image.numpy().tobytes() for image in images}) == 6


def test_set_epoch_that_discards_a_state_warns(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, RANDOM), 4)
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(0)
    with pytest.warns(UserWarning, match=r"set_epoch\(5\) discards"):
        loader.set_epoch(5)


def _all(loader: DataLoader) -> tuple[torch.Tensor, torch.Tensor]:
    batches = list(loader)
    return torch.cat([batch[0] for batch in batches]), torch.cat([batch[1] for batch in batches])
