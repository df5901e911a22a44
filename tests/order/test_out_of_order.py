"""States of loaders with in_order=False, whose batches come as they are ready: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler, get_worker_info

from fastdata import DataLoader, EpochSampler, StateMismatch

SIZE, BATCH = 26, 3
SLOW_S = 0.15


class Uneven(Dataset[int]):
    """Samples of which one holds its worker up while the other goes on."""

    def __init__(self, slow: int = 3, fails: int | None = None, slow_s: float = SLOW_S) -> None:
        self._slow, self._fails, self._slow_s = slow, fails, slow_s

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> int:
        if index == self._slow:
            time.sleep(self._slow_s)
        if index == self._fails:
            raise ValueError(f"sample {index}")
        return index


class OwnViews(Dataset[Any]):
    """Images that decode threads fill, by code of one's own, one of them slow."""

    def __init__(self, folder: Path) -> None:
        self._paths = sorted(folder.glob("*.jpg"))
        self._view = v1.Compose([v1.RandomResizedCrop(8, antialias=True), v1.ToTensor()])

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            time.sleep(SLOW_S)
        return self._view(Image.open(self._paths[index % len(self._paths)])), index


class Stream(IterableDataset[int]):
    """Numbers, divided among the workers, of which the first is slow."""

    def __init__(self, fails: int | None = None) -> None:
        self._fails = fails

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for number in range(info.id, SIZE, info.num_workers):
            if info.id == 0 and number == 6:
                time.sleep(SLOW_S)
            if number == self._fails:
                raise ValueError(f"sample {number}")
            yield number


class StatefulStream(IterableDataset[int]):
    """The same, which knows where it is."""

    def __init__(self) -> None:
        self._next = 0

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        begin, self._next = self._next, 0
        for number in range(begin * info.num_workers + info.id, SIZE, info.num_workers):
            if info.id == 0 and number == 6:
                time.sleep(SLOW_S)
            self._next = number // info.num_workers + 1
            yield number
        self._next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


def numbers_in(batch: Any) -> list[int]:
    return (batch[-1] if isinstance(batch, list) else batch).tolist()  # type: ignore[no-any-return]


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    torch.manual_seed(5)
    given = {"batch_size": BATCH, "num_workers": 2, "in_order": False, "prefetch_factor": 3, **options}
    return DataLoader(dataset, **given)


def resumed_at_every_place(dataset: Any, **options: Any) -> bool:
    """Checks that each state continues with exactly the rest; returns whether batches came out of order."""
    in_order = [numbers_in(batch) for batch in loader_of(dataset, **{**options, "in_order": True})]
    for place in range(-(-SIZE // BATCH) + 1):
        loader, given = loader_of(dataset, **options), list[list[int]]()
        iterator = iter(loader)
        for _ in range(place):
            given.append(numbers_in(next(iterator)))
        state = json.loads(json.dumps(loader.state_dict()))
        del iterator
        again = loader_of(dataset, **options)
        again.load_state_dict(state)
        rest = [numbers_in(batch) for batch in again]
        assert Counter(chain(*given, *rest)) == Counter(range(SIZE)), f"after {place} batches: {given}, then {rest}"
    return given != in_order  # at the last place all batches have come


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True}, {"sampler": EpochSampler(range(SIZE), num_replicas=1, rank=0)}]
)
def test_a_map_style_dataset_goes_on_with_what_was_not_handed_over(options: dict[str, Any]) -> None:
    assert resumed_at_every_place(Uneven(), **options)


def test_batches_of_a_sampler_that_nobody_knows() -> None:
    batches = [list(each) for each in BatchSampler(SequentialSampler(range(SIZE)), BATCH, False)]

    class Own:
        def __iter__(self) -> Iterator[list[int]]:
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    def loader() -> DataLoader[Any]:
        return DataLoader(Uneven(slow_s=1.0), batch_sampler=Own(), num_workers=2, in_order=False)  # type: ignore[arg-type]

    first = loader()
    iterator = iter(first)
    given = [numbers_in(next(iterator)) for _ in range(4)]
    state = first.state_dict()
    assert state["ahead"]
    again = loader()
    again.load_state_dict(state)
    assert again.batches_left() == len(batches) - 4
    rest = [numbers_in(batch) for batch in again]
    assert sorted(given + rest) == sorted(batches)


def test_images_that_are_filled_by_threads(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(images.jpeg(24, 20, seed=number))
    assert resumed_at_every_place(OwnViews(tmp_path))


@pytest.mark.parametrize("dataset", [Stream(), StatefulStream()], ids=["plain", "stateful"])
def test_a_stream_goes_on_where_each_worker_was(dataset: Any) -> None:
    assert resumed_at_every_place(dataset)


def test_a_second_resume_goes_on_from_the_first() -> None:
    for dataset in (Uneven(), Stream(), StatefulStream()):
        given: list[list[int]] = []
        state = None
        while sum(map(len, given)) < SIZE:
            loader = loader_of(dataset)
            if state is not None:
                loader.load_state_dict(state)
            for _, batch in zip(range(2), loader, strict=False):
                given.append(numbers_in(batch))
            state = loader.state_dict()
        assert Counter(chain(*given)) == Counter(range(SIZE))


@pytest.mark.parametrize(
    "then", [{"num_workers": 0, "prefetch_factor": None}, {"num_workers": 1, "prefetch_factor": 1}, {"in_order": True}]
)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.filterwarnings("ignore:the order continues exactly")
def test_early_batches_are_known_until_the_sampler_comes_to_them(then: dict[str, Any], shuffle: bool) -> None:
    loader = loader_of(Uneven(0), batch_size=2, shuffle=shuffle)
    given = [numbers_in(batch) for _, batch in zip(range(5), loader, strict=False)]
    state = loader.state_dict()
    assert state["ahead"] or shuffle
    while sum(map(len, given)) < SIZE:
        loader = loader_of(Uneven(-1), **{"batch_size": 2, "shuffle": shuffle, **then})
        loader.load_state_dict(json.loads(json.dumps(state)))
        given.append(numbers_in(next(iter(loader))))
        state = loader.state_dict()
    assert Counter(chain(*given)) == Counter(range(SIZE))


class FirstWorkerIsSlow(Uneven):
    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        if info is not None and info.id == 0:
            time.sleep(2 * SLOW_S)
        return index


def test_a_sampler_that_does_not_repeat_what_came_early_is_refused() -> None:
    class Never:
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.default_rng().permutation(SIZE).tolist())

        def __len__(self) -> int:
            return SIZE

    loader = loader_of(FirstWorkerIsSlow(), batch_size=2, sampler=Never())
    for _ in zip(range(4), loader, strict=False):
        pass
    state = loader.state_dict()
    assert state["ahead"]
    again = loader_of(Uneven(-1), batch_size=2, sampler=Never())
    again.load_state_dict({**state, "delivered": 0, "batches": 0, "checksum": 0})
    with pytest.raises(StateMismatch, match=r"in_order=False.* give the sampler a generator"):
        list(again)


def test_a_dataset_that_ends_before_what_came_early_is_refused() -> None:
    loader = loader_of(Uneven(slow_s=1.0), batch_size=2)
    for _ in zip(range(4), loader, strict=False):
        pass
    state = loader.state_dict()
    ahead = [[between + SIZE, *each] for between, *each in state["ahead"]]
    again = loader_of(Uneven(-1), batch_size=2)
    again.load_state_dict({**state, "ahead": ahead})
    with pytest.raises(StateMismatch, match=r"the sampler ended after \d+ samples than|ended after"):
        list(again)


class Deadly(Uneven):
    """One of the workers is killed, while the other goes on."""

    def __getitem__(self, index: int) -> int:
        if index == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        return index


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_batches_of_a_living_worker_come_after_the_end_of_another() -> None:
    iterator, given, errors = iter(loader_of(Deadly(), batch_size=2)), list[int](), []
    while True:
        try:
            given += numbers_in(next(iterator))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - each must be of the worker's end
            errors.append(str(error))
            if "iterate the loader anew" in errors[-1]:  # it was in the middle of a batch; every next() says so
                pytest.skip(f"the worker was killed while it sent a batch: {errors[-1]}")
    assert errors
    assert all("pid" in error for error in errors)
    assert len(given) == len(set(given)) >= 10


class SlowStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        assert info is not None
        for number in range(info.id, 40, info.num_workers):
            time.sleep(0.1)
            yield number


@pytest.mark.slow
def test_the_time_limit_of_a_batch_is_none_for_what_is_passed_over() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(SlowStream(), 2, num_workers=2, timeout=1)

    first = loader()
    given = [numbers_in(batch) for _, batch in zip(range(16), first, strict=False)]
    again = loader()
    again.load_state_dict(first.state_dict())
    assert sorted(chain(*given, *map(numbers_in, again))) == list(range(40))


def test_a_batch_that_failed_is_behind_whoever_goes_on() -> None:
    loader = loader_of(Uneven(fails=4), batch_size=None)
    iterator, given = iter(loader), list[int]()
    failed = False
    while len(given) < 8 or not failed:
        try:
            given.append(int(next(iterator)))
        except ValueError:
            failed = True
    given.append(int(next(iterator)))
    again = loader_of(Uneven(), batch_size=None)
    again.load_state_dict(loader.state_dict())
    assert Counter([*given, 4, *map(int, again)]) == Counter(range(SIZE))


def test_the_state_continues_in_order_as_well() -> None:
    loader = loader_of(Uneven(slow_s=1.0))
    iterator = iter(loader)
    given = [numbers_in(next(iterator)) for _ in range(4)]
    state = loader.state_dict()
    assert state["ahead"]
    again = loader_of(Uneven(), in_order=True)
    again.load_state_dict(state)
    left = again.batches_left()
    with pytest.warns(UserWarning, match="random numbers that the dataset draws differ"):
        rest = [numbers_in(batch) for batch in again]
    assert len(rest) == left == -(-SIZE // BATCH) - 4
    assert sorted(chain(*given, *rest)) == list(range(SIZE))
    assert rest == sorted(rest)


def test_another_batch_size_is_refused() -> None:
    loader = loader_of(Uneven(slow_s=1.0))
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    assert state["ahead"]
    again = DataLoader(Uneven(), 5, num_workers=2, in_order=False)
    again.load_state_dict(state)
    with pytest.raises(
        StateMismatch, match=r"gives other samples than the loader with in_order=False.* that batch size"
    ):
        list(again)


def test_another_number_of_ranks_is_refused() -> None:
    sampler = EpochSampler(range(SIZE), num_replicas=1, rank=0, order="sequential")
    loader = loader_of(Uneven(slow_s=1.0), sampler=sampler)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    assert state["ahead"]
    again = loader_of(Uneven(), sampler=EpochSampler(range(SIZE), num_replicas=2, rank=0, order="sequential"))
    with pytest.raises(StateMismatch, match=r"this run has 2 ranks.*: resume with 1 rank, or"):
        again.load_state_dict(state)
    with pytest.raises(StateMismatch, match="resume with 1 rank, or"):  # of this rank nothing came early, but of others
        again.load_state_dict({**state, "ahead": [], "delivered": 3, "batches": 1})


@pytest.mark.parametrize("ahead", [[[1, 2]], [["a", 1, 0]], [3], [[-1, 2, 0]], [[1, True, 0]]])
def test_what_cannot_be_ahead_is_refused(ahead: Any) -> None:
    loader = loader_of(Uneven())
    state = {**loader.state_dict(), "ahead": ahead}
    with pytest.raises(StateMismatch, match="ahead"):
        loader.load_state_dict(state)


def test_edited_counts_of_a_stream_are_refused() -> None:
    loader = loader_of(Stream())
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    workers = state["worker_states"]["workers"]
    assert sum(each["pass_over"] for each in workers if each) == 4
    for change in (-1, "one", 2**70, 3):
        edited = json.loads(json.dumps(state))
        next(each for each in edited["worker_states"]["workers"] if each)["pass_over"] = change
        with pytest.raises(StateMismatch, match="was it edited"):
            loader_of(Stream()).load_state_dict(edited)
