"""A program that is watched trains on its own batches, in their order, whatever its loader is and however it ends."""

from __future__ import annotations

import copy
import gc
import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset
from watched_programs import dataset, model, step, watched

import fastdata
from fastdata.diagnosis import delivery
from fastdata.diagnosis.delivery import Delivery
from fastdata.diagnosis.experiments import Experiments
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.monitored_loader import MonitoredIterator, UsedLoader

STEPS = 60  # several epochs, of which some end while batches are preloaded
_CACHED = dataset(16 * 9)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(_CACHED)


class Endless(DataLoader[Any]):
    """Goes on with one iterator, whatever an epoch is."""

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self, "kept"):
            self.kept = super().__iter__()
        for _ in range(5):
            try:
                yield next(self.kept)
            except StopIteration:
                self.kept = super().__iter__()
                yield next(self.kept)


class Failing(TensorDataset):
    """One batch of an epoch cannot be made; the program goes on with the next one."""

    def __getitem__(self, index: Any) -> Any:
        if index == 50:
            raise ValueError("a damaged sample")
        return super().__getitem__(index)


class Noisy(TensorDataset):
    """Draws from the generator of the program, which draws in between."""

    def __getitem__(self, index: Any) -> Any:
        images, labels = super().__getitem__(index)
        return images + torch.randn(()), labels


class Reused(IterableDataset[Any]):
    """Yields the same tensor, filled anew."""

    def __init__(self) -> None:
        self.images = torch.empty(16, 3, 8, 8)

    def __iter__(self) -> Iterator[Any]:
        for number in range(9):
            yield self.images.copy_(_CACHED[16 * number : 16 * number + 16][0]), torch.arange(16) % 4


class InTheLoopsNumbers(Sampler[int]):
    """Draws each index from the generator that the loop uses, too."""

    def __iter__(self) -> Iterator[int]:
        return (int(torch.randint(len(_CACHED), ())) for _ in range(len(_CACHED)))

    def __len__(self) -> int:
        return len(_CACHED)


class OfAHub(InTheLoopsNumbers):
    """Such a sampler of a package whose samplers are taken to give a fixed order."""


OfAHub.__module__ = "timm.data.sampler"

LOADERS = {
    "torch's, shuffled": lambda: DataLoader(_CACHED, 16, shuffle=True),
    "random numbers in between": lambda: DataLoader(Noisy(*_CACHED.tensors), 16),
    "with worker processes": lambda: DataLoader(_CACHED, 16, shuffle=True, num_workers=1),
    "fastdata's": lambda: fastdata.DataLoader(_CACHED, 16, shuffle=True, num_workers=1),
    "a stream": lambda: DataLoader(Stream(), 16, num_workers=1),
    "one that goes on": lambda: Endless(_CACHED, 16, num_workers=1),
    "one that fails": lambda: DataLoader(Failing(*_CACHED.tensors), 16, num_workers=1),
    "one that makes all in the same memory": lambda: DataLoader(Reused(), None),
    "a sampler of its own": lambda: DataLoader(_CACHED, 16, sampler=InTheLoopsNumbers(), num_workers=1),
    "a sampler that draws": lambda: DataLoader(_CACHED, 16, sampler=OfAHub(), num_workers=1),
}


def trained(make: Any, watch: LoopMonitor | None) -> tuple[list[Any], list[torch.Tensor]]:
    """What the loop got in each step, and what it has trained in the end."""
    torch.manual_seed(3)
    network, loader, got = model(), make(), list[Any]()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01)

    def program() -> None:
        while True:
            batches = iter(loader)
            while True:
                try:
                    images, labels = next(batches)
                except StopIteration:
                    break
                except ValueError as error:
                    got.append(str(error).splitlines()[-1])
                    continue
                step(network, optimiser, images + torch.rand(()), labels)
                got.append(images.clone())
                images.mul_(100)  # in place, as some programs do
                if len(got) == STEPS:
                    return

    if watch is None:
        program()
    else:
        with suppress(Stopped), watch.watching():
            program()
    return got, list(network.state_dict().values())


@pytest.mark.parametrize("kind", LOADERS)
def test_what_is_trained_is_what_it_would_be_without(kind: str) -> None:
    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    alone, weights = trained(LOADERS[kind], None)
    got, watched_weights = trained(LOADERS[kind], watch)
    assert watch.script.compute is not None, watch.limitations
    assert len(got) > 2 * 9  # several epochs
    for number, (one, other) in enumerate(zip(got, alone[: len(got)], strict=True)):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, number
    if len(got) == STEPS:
        assert all(map(torch.equal, weights, watched_weights))


class Drawing(TensorDataset):
    """Draws in its worker process."""

    def __getitem__(self, index: Any) -> Any:
        images, labels = super().__getitem__(index)
        return images + torch.rand(()), labels


def test_epochs_left_early_leave_worker_processes_as_they_would_be() -> None:
    def program(watch: LoopMonitor | None) -> list[torch.Tensor]:
        torch.manual_seed(3)
        loader = DataLoader(Drawing(*_CACHED.tensors), 16, num_workers=1, persistent_workers=True)
        network, got = model(), list[torch.Tensor]()
        optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
        with suppress(Stopped), watch.watching() if watch is not None else nullcontext():
            for _ in range(12):
                for images, labels in itertools.islice(loader, 5):
                    step(network, optimiser, images, labels)
                    got.append(images)
        return got

    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    alone, got = program(None), program(watch)
    assert len(got) > 20
    assert all(map(torch.equal, alone, got))
    assert any("leaves epochs early" in each for each in watch.limitations)
    del watch
    gc.collect()  # worker processes that persist end with their loader


def test_batches_are_there_at_once_and_in_order() -> None:
    loader = DataLoader(TensorDataset(torch.arange(20)), 2)
    seen = UsedLoader(loader)
    iterator = MonitoredIterator(lambda *_: None, lambda *_: None, seen, iter(loader), made_s=0.0)
    source = Delivery(threading.local(), [], seconds=0.2)
    source.preload(4)
    ready = []
    for _ in range(10):
        ready.append((source.next(iterator)[0].tolist(), source.is_ready))
    assert ready == [([2 * at, 2 * at + 1], at < 4) for at in range(10)]
    with pytest.raises(StopIteration):
        source.next(iterator)


def test_no_more_is_read_ahead_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_MOST_BYTES", 1)
    loader = DataLoader(TensorDataset(torch.arange(20)), 2)
    iterator = MonitoredIterator(lambda *_: None, lambda *_: None, UsedLoader(loader), iter(loader), made_s=0.0)
    source = Delivery(threading.local(), [], seconds=0.2)
    source.preload(8)
    ahead = []
    for _ in range(8):
        source.next(iterator)
        ahead.append(len(iterator.ahead))
    assert ahead == [2, 1, 0, 2, 1, 0, 1, 0]


def test_a_slow_loader_is_not_waited_for_long() -> None:
    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 16 * 10_000

        def __getitem__(self, index: int) -> Any:
            threading.Event().wait(0.001)
            return torch.zeros(3, 8, 8), index % 4

    def program() -> None:
        network = model()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        for images, labels in DataLoader(Slow(), 16, num_workers=1):
            step(network, optimiser, images, labels)

    watch, seen = watched(program, seconds=1.0)
    assert watch.is_done
    assert seen.real is not None
    assert seen.compute is not None
    assert seen.real.wait_s > seen.compute.wait_s == 0.0


def test_the_device_finishes_its_work_before_batches_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it still had to do belongs to the steps before, and counts for them."""
    now = [0.0]

    def finish() -> None:
        now[0] += 5.0

    monkeypatch.setattr(delivery, "finish_device_work", finish)
    loader = DataLoader(TensorDataset(torch.arange(6)), 2)
    iterator = MonitoredIterator(lambda *_: None, lambda *_: None, UsedLoader(loader), iter(loader), made_s=0.0)
    source = Delivery(threading.local(), [], seconds=0.0, clock=lambda: now[0])
    experiments = Experiments(source, seconds=0.0, limitations=[], clock=lambda: now[0])
    steps = experiments.timed(share=1.0, preloads=True)
    next(steps)
    source.next(iterator)
    assert source.late_s == 5.0


def test_a_loaders_state_is_that_of_the_batches_that_were_delivered() -> None:
    def states(watch: LoopMonitor | None) -> list[Any]:
        torch.manual_seed(4)
        loader, found = fastdata.DataLoader(_CACHED, 16, num_workers=1), list[Any]()
        network = model()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        with suppress(Stopped), watch.watching() if watch is not None else nullcontext():
            for _ in range(4):
                for images, labels in loader:
                    step(network, optimiser, images, labels)
                    state = copy.deepcopy(loader.state_dict())
                    state["view_seed"] = None  # that of the workers is taken where there is none
                    found.append(state)
        assert "state_dict" not in vars(loader)
        return found

    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    ours, alone = states(watch), states(None)
    assert watch.script.compute is not None
    assert len(ours) > 18
    assert str(ours) == str(alone[: len(ours)])


@pytest.mark.parametrize(("name", "value"), [("_MOST_OF_FILES", 0.0), ("_SHARED", "/proc")])  # which has no room
def test_open_files_and_shared_memory_are_left_for_the_program(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    loader = DataLoader(TensorDataset(torch.arange(40)), 2, num_workers=1)
    monkeypatch.setattr(delivery, name, value)
    iterator = MonitoredIterator(lambda *_: None, lambda *_: None, UsedLoader(loader), iter(loader), made_s=0.0)
    source = Delivery(threading.local(), [], seconds=0.2)
    source.preload(8)
    source.next(iterator)
    assert len(iterator.ahead) == 0


def test_a_stream_that_the_loop_itself_feeds_is_not_read_ahead() -> None:
    waiting: queue.Queue[Any] = queue.Queue()

    class Fed(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield waiting.get(timeout=20)

    def program() -> None:
        network = model()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        waiting.put(_CACHED[:16])
        for images, labels in DataLoader(Fed(), batch_size=None):
            step(network, optimiser, images, labels)
            waiting.put((images, labels))

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.compute is not None
    assert "the loader alone: a stream in the program's own thread may wait for the program" in seen.limitations
