"""Changes that are tried: what they train is taken back before the program is stopped."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from watched_programs import dataset, model, step

from fastdata.diagnosis import training_snapshot
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.measurement_plan import TrainingSnapshot

BATCHES = 4096


def state_of(network: nn.Module, optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    states = [each for one in optimiser.state_dict()["state"].values() for each in one.values() if each is not None]
    return [torch.as_tensor(each).clone() for each in (*network.state_dict().values(), *states)]


def watched_state(program: Callable[[LoopMonitor, Any, Any], None], make: Any) -> tuple[LoopMonitor, Any, Any]:
    """The monitor, and the program's state before the first change and when it was stopped."""
    network = model()
    optimiser = make(network.parameters(), lr=0.01)
    watch, found = LoopMonitor(seconds=230.0, tries=True, clock=map(float, itertools.count()).__next__), list[Any]()
    original = TrainingSnapshot.__init__

    def noting(self: TrainingSnapshot, *given: Any) -> None:
        original(self, *given)
        found.append(state_of(network, optimiser))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingSnapshot, "__init__", noting)
        with suppress(Stopped, ZeroDivisionError), watch.watching():
            program(watch, network, optimiser)
    return watch, found[0] if found else None, state_of(network, optimiser)


def stopped(watch: LoopMonitor, network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    for images, labels in DataLoader(dataset(16 * BATCHES), 16):
        step(network, optimiser, images, labels)


def ends_while_a_change_is_tried(watch: LoopMonitor, network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    for images, labels in DataLoader(dataset(16 * BATCHES), 16):
        step(network, optimiser, images, labels)
        if watch.script.experiments.now is not None and watch.script.experiments.times:
            return


def crashes_by_a_change(watch: LoopMonitor, network: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    for images, labels in DataLoader(dataset(16 * BATCHES), 16):
        step(network, optimiser, images, labels)
        if len(images) != 16:
            raise ZeroDivisionError


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, momentum=0.9), torch.optim.Adam])
@pytest.mark.parametrize("program", [stopped, ends_while_a_change_is_tried, crashes_by_a_change])
def test_what_changes_train_is_taken_back(program: Any, make: Any) -> None:
    watch, before, after = watched_state(program, make)
    assert watch.script.experiments.times, watch.limitations
    assert len(before) == len(after)
    assert all(map(torch.equal, before, after))
    assert watch.is_done is (program is stopped)


def test_nothing_is_tried_on_models_that_are_too_large_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_snapshot, "_MOST_OF_MEMORY", 0.0)
    watch, before, _ = watched_state(stopped, torch.optim.Adam)
    assert before is None
    assert watch.is_done
    assert watch.script.compute is not None
    assert watch.script.experiments.times == {}
    assert any("no change was tried: a copy of the models takes" in each for each in watch.limitations)


def test_buffers_that_were_replaced_and_parameters_of_no_model_are_restored() -> None:
    network, apart = nn.BatchNorm1d(3), nn.Parameter(torch.ones(2))
    optimiser = torch.optim.Adam([*network.parameters(), apart], lr=0.1)
    before = [each.clone() for each in (*network.state_dict().values(), apart)]
    snapshot, kept = TrainingSnapshot([network], [optimiser]), network.weight
    (network(torch.rand(4, 3)).square().sum() + apart.sum()).backward()
    optimiser.step()
    network.running_mean = torch.full((3,), 7.0)
    snapshot.restore()
    assert network.weight is kept
    assert all(map(torch.equal, (*network.state_dict().values(), apart), before))
    assert optimiser.state_dict()["state"] == {}
