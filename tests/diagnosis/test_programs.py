"""Programs of many shapes: what is measured, and that the doctor holds nothing and disturbs nothing."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset
from watched_programs import dataset, model, step, train, watched

from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped

SLOW_S = 0.003  # per sample


class Slow(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        time.sleep(SLOW_S)
        return super().__getitem__(index)


class Slower(Slow):
    """Slower than a step, also where other programs use the machine."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(9 * SLOW_S)
        return super().__getitem__(index)


def optimiser_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1)


def test_loaders_and_their_workers_live_no_longer_than_without() -> None:
    network = model()
    optimiser = optimiser_of(network)
    gone: list[weakref.ref[Any]] = []
    with LoopMonitor(seconds=1e6).watching():
        for epoch in range(4):
            loader = DataLoader(Subset(dataset(), range(64 + 16 * (epoch % 2))), 16, num_workers=1)
            for images, labels in loader:
                step(network, optimiser, images, labels)
                break
            assert multiprocessing.active_children() == []
            for _ in DataLoader(dataset(), 48, num_workers=1):
                break
            assert multiprocessing.active_children() == []
            gone.append(weakref.ref(loader))
            del loader
    assert [each() for each in gone[:-1]] == [None] * 3


def test_new_loaders_for_each_epoch_of_other_lengths_are_one() -> None:
    def program() -> None:
        network = model()
        for epoch in range(100_000):
            train(network, DataLoader(Subset(dataset(), range(64 + 16 * (epoch % 3))), 16))

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.real is not None
    assert seen.loaders == [
        {"dataset": "Subset", "settings": "batch_size=16, num_workers=0"}
        | {name: seen.loaders[0][name] for name in ("batches", "trained")}
    ]


def test_a_programs_next_stage_is_measured() -> None:
    def program() -> None:
        network = model()
        train(network, DataLoader(dataset(), 32))
        train(network, DataLoader(dataset(), 8), 100_000)

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.loader == "batch_size=8, num_workers=0"
    assert seen.facts.batch_size == 8
    assert seen.real is not None
    assert any(
        "(batch_size=32, num_workers=0): the program went on to another loader" in each for each in seen.limitations
    )


def test_another_loader_now_and_then_is_no_next_stage() -> None:
    def program() -> None:
        network, main, other = model(), DataLoader(dataset(), 8), DataLoader(Subset(dataset(), range(64)), 32)
        while True:
            train(network, main)
            train(network, other)  # two steps

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.loader == "batch_size=8, num_workers=0"


def test_batches_that_another_thread_asks_for_are_not_taken_for_steps() -> None:
    def fill(loader: Any, filled: queue.Queue[Any]) -> None:
        with suppress(Stopped):
            for batch in loader:
                filled.put(batch)

    def program() -> None:
        network, filled = model(), queue.Queue[Any](2)
        optimiser = optimiser_of(network)
        thread = threading.Thread(target=fill, args=(DataLoader(dataset(4096), 16), filled), daemon=True)
        thread.start()
        while thread.is_alive():
            with suppress(queue.Empty):
                step(network, optimiser, *filled.get(timeout=1))

    watch, told = LoopMonitor(seconds=0.3), threading.Event()
    ended: list[bool] = []

    def stop() -> None:
        ended.append(watch.is_done)
        told.set()

    watch.when_ignored = stop
    with watch.watching():
        thread = threading.Thread(target=program, daemon=True)
        thread.start()
        assert told.wait(60)
        thread.join(60)
    assert ended == [True]
    assert watch.real is None
    assert any(
        each.startswith("steps: the loader's batches are asked for in another thread") for each in watch.limitations
    )


def test_of_two_loaders_that_feed_each_step_the_slow_one_is_examined() -> None:
    def program() -> None:
        network = model()
        optimiser = optimiser_of(network)
        slow = DataLoader(Slower(*dataset().tensors), 16)
        while True:
            for (images, labels), _ in zip(DataLoader(dataset(), 8), slow, strict=False):
                step(network, optimiser, images, labels)

    _, seen = watched(program, seconds=1.5)
    assert seen.dataset == "Slower"
    assert seen.alone is not None
    assert seen.alone.batch_s > 16 * 10 * SLOW_S
    assert seen.real is not None
    assert seen.real.compute_s < seen.alone.batch_s / 2  # without the waits for the other loader


def test_a_validation_that_is_waited_for_is_no_second_loader_of_the_steps() -> None:
    def program() -> None:
        network = model()
        optimiser = optimiser_of(network)
        while True:
            for number, (images, labels) in enumerate(DataLoader(dataset(), 16)):
                step(network, optimiser, images, labels)
                if number == 2:
                    for images, _ in DataLoader(Slow(*dataset().tensors), 48):
                        with torch.no_grad():
                            network(images)

    _, seen = watched(program)
    assert seen.dataset == "TensorDataset"


def test_an_iterator_for_each_batch_is_told() -> None:
    def program() -> None:
        network, loader = model(), DataLoader(dataset(), 16, num_workers=1)
        optimiser = optimiser_of(network)
        while True:
            step(network, optimiser, *next(iter(loader)))

    _, seen = watched(program, seconds=2.0)
    assert seen.restarts_in_each_step  # what that gains is in test_verdict: on a busy machine it may be nothing


def test_a_bias_is_needed_where_something_else_takes_the_output_too() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.alone, self.after = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            made = self.stem(images)
            made = made + self.norm(made)
            return self.after(self.alone(made)).mean((2, 3))

    _, seen = watched(lambda: train(Residual(), DataLoader(dataset(), 16), 100_000))
    assert seen.facts.biases_before_norm == ["alone (Conv2d)"]
