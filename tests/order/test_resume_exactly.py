"""States that go on exactly, or say that they do not: samplers and datasets that keep or draw their own."""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from folders import numbered
from loader_states import labels, saved
from names import name_of
from streams import CountingIterator
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, EpochSampler, PipelineError, StateMismatch

SMALL = v1.Compose([v1.Resize((8, 8)), v1.PILToTensor()])
SIZE = 60


def numbers(size: int = SIZE) -> TensorDataset:
    return TensorDataset(torch.arange(size))


def flat(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch]


def disturb() -> None:
    """What another process would have drawn before it resumes."""
    torch.manual_seed(99), random.seed(98), np.random.seed(97)


class Shuffles:
    """A sampler that draws in one of the usual ways."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.python, self.numpy = random.Random(3), np.random.default_rng(4)
        self.old_numpy, self.torch = np.random.RandomState(5), torch.Generator().manual_seed(6)

    def __len__(self) -> int:
        return SIZE

    def __iter__(self) -> Iterator[int]:
        order = list(range(SIZE))
        if self.how == "random":
            random.shuffle(order)
        elif self.how == "numpy":
            np.random.shuffle(order)
        elif self.how == "own Random":
            self.python.shuffle(order)
        elif self.how == "own Generator":
            self.numpy.shuffle(order)
        elif self.how == "own RandomState":
            self.old_numpy.shuffle(order)
        elif self.how == "own torch.Generator":
            order = torch.randperm(SIZE, generator=self.torch).tolist()
        elif self.how == "one by one":
            return (order.pop(random.randrange(len(order))) for _ in range(SIZE))
        elif self.how == "at once":
            order = torch.randperm(SIZE).tolist()
        return iter(order)


WAYS = (
    "random",
    "numpy",
    "own Random",
    "own Generator",
    "own RandomState",
    "own torch.Generator",
    "one by one",
    "at once",
)


@pytest.mark.parametrize("stop_after", [0, 3])
@pytest.mark.parametrize("epochs_before", [0, 2])
@pytest.mark.parametrize("how", WAYS)
def test_samplers_that_draw_in_any_way(how: str, epochs_before: int, stop_after: int) -> None:
    loader = DataLoader(numbers(), 7, sampler=Shuffles(how))
    for _ in range(epochs_before):
        list(loader)
    iterator = iter(loader)
    given = [next(iterator)[0].tolist() for _ in range(stop_after)]
    state = saved(loader)
    rest = labels(iterator)
    disturb()
    resumed = DataLoader(numbers(), 7, sampler=Shuffles(how))
    resumed.load_state_dict(state)
    assert labels(resumed) == rest
    assert sorted(flat(given + rest)) == list(range(SIZE))
    following = labels(resumed)
    if how.startswith("own"):
        assert following == labels(loader)  # generators of its own go on where they were


def test_a_sampler_that_cannot_repeat_itself_is_found_out() -> None:
    class Forgetful:
        """Its order follows from something that no state holds."""

        epochs = 0

        def __len__(self) -> int:
            return SIZE

        def __iter__(self) -> Iterator[int]:
            type(self).epochs += 1
            return iter(torch.randperm(SIZE, generator=torch.Generator().manual_seed(self.epochs)).tolist())

    loader = DataLoader(numbers(), 7, sampler=Forgetful())
    next(iter(loader))
    resumed = DataLoader(numbers(), 7, sampler=Forgetful())
    resumed.load_state_dict(saved(loader))
    with pytest.raises(StateMismatch, match=r"does not repeat the 7 samples .*Forgetful.*set_epoch"):
        next(iter(resumed))


# ---- at the end of an epoch

SHUFFLED = {
    "shuffle": lambda: {"batch_size": 7, "shuffle": True},
    "generator": lambda: {"batch_size": 7, "shuffle": True, "generator": torch.Generator().manual_seed(1)},
    "weighted": lambda: {"batch_size": 7, "sampler": WeightedRandomSampler([1.0] * SIZE, SIZE)},
    "weighted, generator": lambda: {
        "batch_size": 7,
        "sampler": WeightedRandomSampler([1.0] * SIZE, SIZE, generator=torch.Generator().manual_seed(2)),
    },
    "random": lambda: {"batch_size": 7, "sampler": Shuffles("random")},
    "seed": lambda: {"batch_size": 7, "shuffle": True, "seed": 5},
}


@pytest.mark.parametrize("drawn_between", [False, True])
@pytest.mark.parametrize("name", SHUFFLED)
def test_a_state_at_the_end_of_an_epoch_holds_the_next_ones_order(name: str, drawn_between: bool) -> None:
    loader = DataLoader(numbers(), **SHUFFLED[name]())
    list(loader)
    state = saved(loader)
    if drawn_between:
        torch.rand(5), random.random()  # a validation, say
    following = [labels(loader), labels(loader)]
    disturb()
    resumed = DataLoader(numbers(), **SHUFFLED[name]())
    resumed.load_state_dict(state)
    assert labels(resumed) == following[0]
    if name in ("seed", "weighted, generator"):
        assert labels(resumed) == following[1]


@pytest.mark.parametrize("name", ["shuffle", "generator", "weighted", "random"])
def test_taking_states_leaves_torchs_order_as_it_is(name: str) -> None:
    def run(cls: Any, *, states: bool) -> list[Any]:
        torch.manual_seed(3), random.seed(3)
        loader, found = cls(numbers(), **SHUFFLED[name]()), []
        for _ in range(3):
            if states:
                loader.state_dict()
            found.append(labels(loader))
        return [*found, torch.rand(3).tolist(), random.random()]

    assert run(DataLoader, states=True) == run(torch.utils.data.DataLoader, states=False)


def test_views_of_the_next_epoch_follow_from_its_state_too(folder: Path) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(8), v1.PILToTensor()])

    def make() -> DataLoader:
        return DataLoader(ImageFolder(folder, transform), 5, shuffle=True)

    loader = make()
    list(loader)
    state = saved(loader)
    torch.rand(7)
    following = [batch[0] for batch in loader]
    disturb()
    resumed = make()
    resumed.load_state_dict(state)
    assert all(torch.equal(*pair) for pair in zip([batch[0] for batch in resumed], following, strict=True))


# ---- another batch size


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", SHUFFLED)
def test_under_another_batch_size_batches_are_whole(name: str, drop_last: bool) -> None:
    options = SHUFFLED[name]()
    loader = DataLoader(numbers(), drop_last=drop_last, **options)
    iterator = iter(loader)
    given = flat(next(iterator)[0].tolist() for _ in range(3))
    resumed = DataLoader(numbers(), drop_last=drop_last, **SHUFFLED[name]() | {"batch_size": 10})
    resumed.load_state_dict(saved(loader))
    left = resumed.batches_left()
    found = labels(resumed)
    assert [len(batch) for batch in found] == ([10] * 3 if drop_last else [10] * 3 + [9])
    assert left == len(found)
    if not name.startswith("weighted"):
        assert len({*given, *flat(found)}) == 21 + len(flat(found))


# ---- datasets


class Draws(torch.utils.data.Dataset[Any]):
    """Draws in the training process, and from a generator that its state holds."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        own = torch.rand((), generator=self.generator).item()
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand(), own])

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state().tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(torch.tensor(state["generator"], dtype=torch.uint8))


def test_draws_in_the_training_process_go_on() -> None:
    loader = DataLoader(Draws(), 4, shuffle=True)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = saved(loader)
    rest = list(iterator)
    disturb()
    resumed = DataLoader(Draws(), 4, shuffle=True)
    resumed.load_state_dict(state)
    assert all(torch.equal(*pair) for pair in zip(list(resumed), rest, strict=True))


@pytest.mark.parametrize("persistent", [False, True])
def test_draws_in_worker_processes_go_on(persistent: bool) -> None:
    options: Any = {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": persistent}
    loader = DataLoader(Draws(), **options)
    list(loader)  # persistent workers go on drawing in the next epoch
    iterator = iter(loader)
    next(iterator), next(iterator), next(iterator)
    state = saved(loader)
    rest = list(iterator)
    disturb()
    resumed = DataLoader(Draws(), **options)
    resumed.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(resumed)
    assert all(torch.equal(*pair) for pair in zip(found, rest, strict=True))


def test_draws_of_other_worker_processes_differ_and_the_loader_says_so() -> None:
    loader = DataLoader(Draws(), 4, shuffle=True, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = saved(loader)
    rest = [batch[:, 0] for batch in iterator]
    resumed = DataLoader(Draws(), 4, shuffle=True, num_workers=2)
    resumed.load_state_dict(state)
    with pytest.warns(UserWarning, match="order continues exactly, but random numbers .* another number of worker"):
        found = [batch[:, 0] for batch in resumed]
    assert all(torch.equal(*pair) for pair in zip(found, rest, strict=True))


class Counts(IterableDataset[int]):
    """Keeps its place, and begins anew or goes on when it is iterated."""

    def __init__(self, *, anew: bool, lazily: bool = True) -> None:
        self.anew, self.lazily, self.place = anew, lazily, 0

    def __iter__(self) -> Iterator[int]:
        if self.lazily:
            return self._numbers()
        self.place = 0 if self.anew else self.place
        return iter(self._rest())

    def _numbers(self) -> Iterator[int]:
        if self.anew:
            self.place = 0
        yield from self._rest()

    def _rest(self) -> Iterator[int]:
        while self.place < 20:
            self.place += 1
            yield self.place

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize("stop_after", [1, 2, 4])
@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_an_iterable_dataset_that_begins_anew_is_passed_over_to_its_place(
    anew: bool, lazily: bool, stop_after: int
) -> None:
    loader = DataLoader(Counts(anew=anew, lazily=lazily), 4)
    iterator = iter(loader)
    for _ in range(stop_after):
        next(iterator)
    resumed = DataLoader(Counts(anew=anew, lazily=lazily), 4)
    resumed.load_state_dict(saved(loader))
    expected = [list(range(n, n + 4)) for n in range(1, 20, 4)][stop_after:]
    assert [batch.tolist() for batch in resumed] == expected


class OfIterators(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return CountingIterator()


class ShuffledStream(IterableDataset[int]):
    """Keeps no state, and draws its order from the global generator."""

    def __iter__(self) -> Iterator[int]:
        return iter((torch.randperm(20) + 1).tolist())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dataset", [OfIterators, ShuffledStream])
def test_streams_continue(dataset: Any, workers: int) -> None:
    loader = DataLoader(dataset(), 4, num_workers=workers)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = saved(loader)
    rest = [batch.tolist() for batch in iterator]
    disturb()
    resumed = DataLoader(dataset(), 4, num_workers=workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


def test_a_stream_with_a_generator_and_no_state_is_warned_of() -> None:
    class OwnGenerator(IterableDataset[int]):
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)

        def __iter__(self) -> Iterator[int]:
            return iter(self.rng.permutation(20).tolist())

    loader = DataLoader(OwnGenerator(), 4)
    next(iter(loader))
    resumed = DataLoader(OwnGenerator(), 4)
    resumed.load_state_dict(saved(loader))
    with pytest.warns(UserWarning, match="OwnGenerator has its own random generator but no state_dict"):
        next(iter(resumed))


# ---- states that cannot be


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delivered": -1}, "delivered = -1; expected an integer of at least 0"),
        ({"delivered": 61}, "61 delivered samples, an epoch of this loader's sampler has 60"),
        ({"delivered": 7.0}, "delivered = 7.0; expected an integer"),
        ({"delivered": "7"}, "delivered = '7'; expected an integer"),
        ({"delivered": True}, "delivered = True; expected an integer"),
        ({"batches": None}, "batches = None; expected an integer"),
        ({"batches": 9}, "9 batches of 7 samples, which is impossible"),
        ({"epoch": -2}, "epoch = -2; expected an integer"),
        ({"dataset_size": "60"}, "dataset_size = '60'"),
        ({"delivered": 2**63}, "delivered = 9223372036854775808; expected an integer"),
        ({"order_seed": "x"}, "order_seed = 'x'; expected an integer or None"),
        ({"order_seed": 2**64}, "order_seed = 18446744073709551616; expected at most 64 bits"),
        ({"view_seed": [1]}, "view_seed = .* expected an integer or None"),
        ({"sampler_random": "abc"}, "sampler_random = 'abc'; expected a list or None"),
        ({"sampler": 3}, "sampler = 3"),
    ],
    ids=str,
)
def test_a_state_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    loader = DataLoader(numbers(), 7, shuffle=True)
    next(iter(loader))
    with pytest.raises(StateMismatch, match=message):
        loader.load_state_dict({**loader.state_dict(), **change})


ODD: list[list[Any]] = [[1, 2, 3], [{"tensor": "%"}, None, None], [{"tensor": "A"}, None, None], [], [{}, {}, {}]]


@pytest.mark.parametrize("name", ["sampler_random", "dataset_random"])
@pytest.mark.parametrize("broken", ODD, ids=str)
def test_recorded_generators_that_cannot_be_are_refused(name: str, broken: list[Any]) -> None:
    loader = DataLoader(numbers(), 7, sampler=Shuffles("random"))
    next(iter(loader))
    with pytest.raises(StateMismatch, match="recorded generators cannot be read"):
        loader.load_state_dict({**loader.state_dict(), name: broken})


def test_a_place_outside_of_numpys_words_is_refused() -> None:
    """NumPy itself would read there."""
    loader = DataLoader(numbers(), 7, sampler=Shuffles("random"))
    next(iter(loader))
    state = saved(loader)
    state["dataset_random"] = state["sampler_random"]
    state["dataset_random"][2]["dict"]["state"]["dict"]["pos"] = 1 << 20
    with pytest.raises(StateMismatch, match="place 1048576 among 624 words"):
        loader.load_state_dict(state)


def test_ranks_that_nobody_has_are_refused() -> None:
    """The samples of each of them would be computed."""
    loader = DataLoader(numbers(), 7, sampler=EpochSampler(numbers()))
    next(iter(loader))
    with pytest.raises(StateMismatch, match=r"history is .*1073741824, 7"):
        loader.load_state_dict({**saved(loader), "ranks": 1 << 30})


KINDS = {
    "sequential": lambda data: {"batch_size": 7},
    "shuffle": lambda data: {"batch_size": 7, "shuffle": True},
    "replacement": lambda data: {"batch_size": 7, "sampler": RandomSampler(data, replacement=True)},
    "fewer": lambda data: {"batch_size": 7, "sampler": RandomSampler(data, replacement=True, num_samples=20)},
    "subset": lambda data: {"batch_size": 7, "sampler": SubsetRandomSampler(range(SIZE))},
    "smaller subset": lambda data: {"batch_size": 7, "sampler": SubsetRandomSampler(range(30))},
    "a list": lambda data: {"batch_size": 7, "sampler": list(range(SIZE))},
    "distributed": lambda data: {"batch_size": 7, "sampler": DistributedSampler(data, num_replicas=1, rank=0)},
    "unbatched": lambda data: {"batch_size": None, "sampler": SequentialSampler(range(50))},
}


@pytest.mark.parametrize("here", KINDS)
@pytest.mark.parametrize("there", KINDS)
def test_a_state_of_another_kind_of_sampler_is_refused(there: str, here: str) -> None:
    if there == here:
        return
    state = DataLoader(numbers(), **KINDS[there](numbers())).state_dict()
    with pytest.raises(StateMismatch, match="was saved with sampler ="):
        DataLoader(numbers(), **KINDS[here](numbers())).load_state_dict(state)


# ---- seeds


@pytest.mark.parametrize("name", [*KINDS, "random", "numpy", "one by one"])
def test_with_a_seed_the_order_follows_from_it_and_the_epoch(name: str) -> None:
    def epochs(seed: int) -> list[Any]:
        disturb()
        torch.rand(seed)
        options = {"batch_size": 7, "sampler": Shuffles(name)} if name not in KINDS else KINDS[name](numbers())
        loader = DataLoader(numbers(), seed=seed, **options)
        found = [labels(loader) if name != "unbatched" else [int(item[0]) for item in loader] for _ in range(2)]
        loader.set_epoch(0)
        again = labels(loader) if name != "unbatched" else [int(item[0]) for item in loader]
        return [*found, again == found[0]]

    runs = [epochs(seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0][2]
    if name not in ("sequential", "a list", "distributed", "unbatched"):
        assert runs[0][0] != runs[0][1]
        assert runs[0] != runs[2]


def test_with_a_seed_worker_processes_draw_what_follows_from_it() -> None:
    def epoch() -> list[torch.Tensor]:
        disturb()
        return [batch[:, :4] for batch in DataLoader(Draws(), 4, seed=3, num_workers=2)]

    first, second = epoch(), epoch()
    torch.rand(3)
    assert all(torch.equal(a[:, :2], b[:, :2]) for a, b in zip(first, second, strict=True))


# ---- batches of indices


def _iterators() -> Iterator[Iterator[int]]:
    for begin in range(0, 12, 4):
        yield iter(range(begin, begin + 4))


class OfAnyKind:
    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        return map(self.kind, _iterators())


@pytest.mark.parametrize(
    "kind",
    [iter, list, tuple, set, np.fromiter, torch.tensor, dict.fromkeys],
    ids=name_of,
)
def test_batches_may_be_anything_that_can_be_iterated(folder: Path, kind: Any) -> None:
    made = {np.fromiter: lambda each: np.fromiter(each, int), torch.tensor: lambda each: torch.tensor(list(each))}
    sampler = OfAnyKind(made.get(kind, kind))
    for dataset in (ImageFolder(folder, SMALL), numbers()):
        loader = DataLoader(dataset, batch_sampler=sampler)
        assert [len(batch[0]) for batch in loader] == [4, 4, 4]
        iterator = iter(loader)
        next(iterator)
        assert loader.state_dict()["delivered"] == 4
        resumed = DataLoader(dataset, batch_sampler=sampler)
        resumed.load_state_dict(saved(loader))
        assert len(list(resumed)) == 2


@pytest.mark.parametrize("index", [1.5, 2.0, "3", None])
def test_indices_that_are_no_integers_are_refused_as_by_torch(folder: Path, index: Any) -> None:
    dataset = ImageFolder(folder, SMALL)
    for cls in (torch.utils.data.DataLoader, DataLoader):
        with pytest.raises(TypeError, match="integer"):
            list(cls(dataset, batch_sampler=[[0, index]]))


def test_numpys_and_torchs_integers_are_indices(folder: Path) -> None:
    dataset = ImageFolder(folder, SMALL)
    for batch in ([np.int64(3), torch.tensor(4)], np.array([3, 4]), torch.tensor([3, 4])):
        images, _ = next(iter(DataLoader(dataset, batch_sampler=[batch])))
        assert torch.equal(images[1], dataset[4][0])


# ---- substitutes

SUBSTITUTED = {
    "subset": lambda data: {"batch_size": 4, "sampler": SubsetRandomSampler(range(13))},
    "one by one": lambda data: {"batch_size": 1, "sampler": list(range(13))},
    "distributed": lambda data: {
        "batch_size": 4,
        "sampler": DistributedSampler(data, num_replicas=3, rank=2, shuffle=False),
    },
    "epoch sampler": lambda data: {
        "batch_size": 4,
        "sampler": EpochSampler(data, num_replicas=3, rank=0, order="sequential"),
    },
    "batches": lambda data: {"batch_sampler": [[0, 1, 2], [3, 4, 5], [6, 7]]},
    "shuffle": lambda data: {"batch_size": 4, "shuffle": True},
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(SequentialSampler(range(10)), 4, False)},
}


@pytest.mark.parametrize("name", SUBSTITUTED)
def test_substitutes_come_from_what_the_sampler_gives(folder: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    dataset = numbered(ImageFolder(tmp_path / "copy", SMALL))
    bad = (2, 5, 8)
    for index in bad:
        Path(dataset.samples[index][0]).write_bytes(b"damaged")

    def epoch(**options: Any) -> list[list[int]]:
        made = DataLoader(dataset, on_error="replace", seed=1, **SUBSTITUTED[name](dataset), **options)
        return [batch[1].tolist() for batch in made]

    allowed = set(range(len(dataset)))  # what comes in place of a sample does not depend on its rank
    if name not in ("distributed", "epoch sampler"):
        batches = DataLoader(dataset, seed=1, **SUBSTITUTED[name](dataset))._index_sampler
        allowed = {int(index) for batch in batches for index in batch}
    found = epoch()
    assert flat(found) != []
    assert set(flat(found)) <= allowed - set(bad)
    assert epoch(num_workers=3, prefetch_factor=5) == found
    stopped = DataLoader(dataset, on_error="replace", seed=1, **SUBSTITUTED[name](dataset))
    iterator = iter(stopped)
    next(iterator)
    resumed = DataLoader(dataset, on_error="replace", seed=1, **SUBSTITUTED[name](dataset))
    resumed.load_state_dict(saved(stopped))
    assert [batch[1].tolist() for batch in resumed] == found[1:]


class Odd:
    """A sampler that nobody knows: odd numbers first."""

    def __init__(self, size: int) -> None:
        self.order = [*range(1, size, 2), *range(0, size, 2)]

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_substitute_depends_on_its_sample_not_on_batches_or_ranks(
    folder: Path, tmp_path: Path, num_workers: int
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    dataset = numbered(ImageFolder(tmp_path / "copy", SMALL))
    size = len(dataset)
    for index in (1, 3, 20, 22):
        Path(dataset.samples[index][0]).write_bytes(b"damaged")

    def loader(batch_size: int, sampler: Any) -> DataLoader[Any]:
        options: Any = {"on_error": "replace", "seed": 4, "num_workers": num_workers}
        return DataLoader(dataset, batch_size, sampler=sampler, **options)

    def given(batches: Any) -> list[int]:
        return flat(batch[1].tolist() for batch in batches)

    undisturbed = loader(5, Odd(size))
    whole = given(undisturbed)
    told = [index for index, *_ in undisturbed.stats()["quarantine"]]
    assert sorted(told) == sorted({1, 3, 20, 22} & set(Odd(size).order)), "one that failed as a substitute is not told"
    assert given(loader(13, Odd(size))) == whole
    stopped = loader(5, Odd(size))
    iterator = iter(stopped)
    begun = flat([next(iterator)[1].tolist() for _ in range(2)])
    resumed = loader(13, Odd(size))
    resumed.load_state_dict(saved(stopped))
    assert begun + given(resumed) == whole
    in_place_of = dict(zip(Odd(size).order, whole, strict=True))
    ranks = [loader(4, EpochSampler(dataset, num_replicas=3, rank=rank, order="sequential")) for rank in range(3)]
    for rank, made in enumerate(ranks):
        asked = EpochSampler(dataset, num_replicas=3, rank=rank, order="sequential").indices()
        assert given(made) == [in_place_of[int(index)] for index in asked]


def test_without_a_length_there_is_no_substitute(folder: Path, tmp_path: Path) -> None:
    class Endless(ImageFolder):
        def __len__(self) -> int:
            raise TypeError("endless")

    shutil.copytree(folder, tmp_path / "copy")
    dataset = Endless(tmp_path / "copy", SMALL)
    Path(dataset.samples[1][0]).write_bytes(b"damaged")
    with pytest.raises(PipelineError, match="this one has no length; give it __len__"):
        list(DataLoader(dataset, 4, sampler=Odd(8), on_error="replace"))


# ---- what torchdata's public tests of stateful loaders ask


class OwnIterator(CountingIterator, IterableDataset[int]):
    """A dataset that is its own iterator, and can be given a state only once it is iterated."""

    size = 20

    def __init__(self) -> None: ...  # it has no place yet

    def __iter__(self) -> Iterator[int]:
        self.place = 0
        return self

    def load_state_dict(self, state: dict[str, int]) -> None:
        if not hasattr(self, "place"):
            raise RuntimeError("not iterated yet")
        super().load_state_dict(state)


def test_a_dataset_that_is_its_own_iterator_gets_its_state_when_it_is_iterated() -> None:
    loader = DataLoader(OwnIterator(), 4)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = DataLoader(OwnIterator(), 4)
    resumed.load_state_dict(saved(loader))
    assert [batch.tolist() for batch in resumed] == [list(range(n, n + 4)) for n in (9, 13, 17)]


def test_streams_need_as_many_workers_as_before() -> None:
    loader = DataLoader(ShuffledStream(), 4, num_workers=1)
    next(iter(loader))
    with pytest.raises(StateMismatch, match="saved with num_workers=1, this loader has 0"):
        DataLoader(ShuffledStream(), 4).load_state_dict(saved(loader))


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_streams_in_worker_processes_go_on(anew: bool, lazily: bool) -> None:
    loader = DataLoader(Counts(anew=anew, lazily=lazily), 4, num_workers=1)
    iterator = iter(loader)
    next(iterator), next(iterator)
    resumed = DataLoader(Counts(anew=anew, lazily=lazily), 4, num_workers=1)
    resumed.load_state_dict(saved(loader))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [batch[0].item() for batch in resumed] == [9, 13, 17]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_before_the_first_batch_repeats_what_workers_draw(persistent: bool) -> None:
    loader = DataLoader(Draws(), 4, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    state = saved(loader)
    whole = [batch[:, :2] for batch in iterator]
    loader.load_state_dict(state)
    assert all(torch.equal(batch[:, :2], then) for batch, then in zip(loader, whole, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_go_on_over_a_state_as_without_it(workers: int) -> None:
    torch.manual_seed(0)
    loader = DataLoader(numbers(), 7, shuffle=True, num_workers=workers)
    found = [labels(loader), labels(loader)]
    resumed = DataLoader(numbers(), 7, shuffle=True, num_workers=workers)
    resumed.load_state_dict(saved(loader))
    found += [labels(resumed), labels(resumed)]
    torch.manual_seed(0)
    loader = DataLoader(numbers(), 7, shuffle=True, num_workers=workers)
    assert [labels(loader) for _ in range(4)] == found
