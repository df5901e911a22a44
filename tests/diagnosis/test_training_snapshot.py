"""What repeated batches train is put back, however the program's loop ends and whatever it trains."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fastdata.diagnosis import training_snapshot
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.training_snapshot import Undo

BATCHES, STEPS = 60, 20  # of an epoch; and after which the loop is left, in the middle of repeating


def images(batches: int = BATCHES) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    data = torch.rand((4 * batches, 3, 4, 4), generator=generator)
    return DataLoader(TensorDataset(data, torch.arange(4 * batches) % 4), 4)


class Net(nn.Module):
    """Batch statistics, and a buffer that is replaced in each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 4))
        self.register_buffer("center", torch.zeros(4))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(given)
        if self.training:
            self.center = 0.9 * self.center + 0.1 * made.detach().mean(0)
        return made - self.center


class Counts(nn.Module):
    """A loss without parameters, with a buffer that cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(4, 1).expand(4, 4))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(scores, labels)


class Training:
    """Everything that a program trains; `own` is its state after each batch that was new."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.network, self.loss = Net(), Counts()
        self.average = torch.optim.swa_utils.AveragedModel(self.network)
        self.optimiser, self.scaler = (
            make(self.network.parameters(), lr=0.01),
            torch.amp.GradScaler("cpu", growth_interval=1),
        )
        self.own: list[list[torch.Tensor]] = []
        self.steps = self.checks = 0
        self._known = set[float]()

    def step(self, given: torch.Tensor, labels: torch.Tensor) -> None:
        def closure() -> torch.Tensor:
            self.optimiser.zero_grad()
            loss: torch.Tensor = self.loss(self.network(given), labels)
            self.scaler.scale(loss).backward()
            return loss

        closure()
        if isinstance(self.optimiser, torch.optim.LBFGS):
            self.optimiser.step(closure)
        else:
            self.scaler.step(self.optimiser)
            self.scaler.update()
        self.average.update_parameters(self.network)
        self.steps += 1
        if given.sum().item() not in self._known:
            self._known.add(given.sum().item())
            self.own.append(self.state())

    def state(self) -> list[torch.Tensor]:
        modules = [*self.network.state_dict().values(), *self.average.state_dict().values(), self.loss.calls]
        states = self.optimiser.state_dict()["state"].values()
        kept = torch.utils._pytree.tree_leaves([*states, self.scaler.state_dict()])
        return [torch.as_tensor(each).clone() for each in (*modules, *(each for each in kept if each is not None))]

    def check(self) -> None:
        """Everything is as the program's own batches have made it, though there were others."""
        self.checks += 1
        assert len(self.own) < self.steps - 2
        found = self.state()
        assert len(found) == len(self.own[-1])
        assert all(torch.equal(*pair) for pair in zip(found, self.own[-1], strict=True))


def break_and_validate(training: Training) -> None:
    for given, labels in images():
        training.step(given, labels)
        if training.steps == STEPS:
            break
    for _ in images(2):
        training.check()


def beside_a_shorter_loader(training: Training) -> None:
    for (given, labels), _ in zip(images(), images(STEPS), strict=False):
        training.step(given, labels)
    training.check()


def validate_in_between(training: Training) -> None:
    for given, labels in images():
        training.step(given, labels)
        if training.steps % STEPS == 0:
            for _ in images(2):
                training.check()


def save_and_go_on(training: Training) -> None:
    for given, labels in images():
        training.step(given, labels)
        if training.steps == STEPS:
            state, file = training.network.state_dict(), io.BytesIO()
            torch.save(state, file)
            training.check()
            saved = torch.load(io.BytesIO(file.getvalue()))
            assert all(torch.equal(saved[name], value) for name, value in training.network.state_dict().items())


def crash(training: Training) -> None:
    for given, labels in images():
        training.step(given, labels)
        if training.steps == STEPS:
            raise ZeroDivisionError


@pytest.mark.parametrize("make", [torch.optim.Adam, partial(torch.optim.LBFGS, max_iter=1)])
@pytest.mark.parametrize(
    "program", [break_and_validate, beside_a_shorter_loader, validate_in_between, save_and_go_on, crash]
)
def test_however_a_loop_ends(program: Callable[[Training], None], make: Callable[..., Any]) -> None:
    training = Training(make)
    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    with suppress(Stopped, ZeroDivisionError), watch.watching():
        program(training)
    assert training.checks or program is crash
    training.check()
    assert not [each for each in watch.limitations if "put back" in each], watch.limitations


def test_a_program_that_asks_for_a_batch_before_its_backward_pass() -> None:
    network = nn.Linear(48, 4)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)

    def program() -> Iterator[int]:
        for epoch in range(3):
            batches = iter(images(STEPS))
            batch = next(batches)
            while batch is not None:
                loss = nn.functional.cross_entropy(network(batch[0].flatten(1)), batch[1])
                batch = next(batches, None)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            yield epoch

    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    with suppress(Stopped), watch.watching():
        assert list(program()) == [0, 1, 2]
    assert watch.repeats


def test_a_program_that_ends_by_itself_is_told_that_it_has_trained_less() -> None:
    training = Training(torch.optim.Adam)
    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    with watch.watching():
        beside_a_shorter_loader(training)
    assert watch.main is not None
    watch.take_what_there_is(watch.main)
    assert watch.script.repeated is not None
    assert any(f"{watch.repeats} of its {STEPS + 1} batches were repeated" in each for each in watch.limitations), (
        watch.limitations
    )


def test_models_that_are_too_large_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_snapshot, "_MOST_OF_MEMORY", 0.0)
    training = Training(torch.optim.Adam)
    watch = LoopMonitor(seconds=230.0, clock=map(float, itertools.count()).__next__)
    with suppress(Stopped), watch.watching():
        for given, labels in images():
            training.step(given, labels)
    assert len(training.own) == training.steps
    assert any("no batch was repeated: a copy of the models takes" in each for each in watch.limitations), (
        watch.limitations
    )


def test_one_tensor_that_cannot_be_put_back_does_not_keep_others() -> None:
    network, counts, limitations = Net(), Counts(), list[str]()
    undo = Undo(limitations)
    assert undo.why_not() is None
    before = network.layers[0].weight.clone()
    with torch.no_grad():
        network.layers[0].weight.add_(1)
    counts.mask = counts.mask + 1
    undo.put_back()
    assert torch.equal(network.layers[0].weight, before)
    assert torch.equal(counts.mask, torch.ones(4, 4))
    assert limitations == []
