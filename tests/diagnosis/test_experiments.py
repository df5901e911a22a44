"""Steps that are timed, what is delivered for them, and what is seen of the program meanwhile."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import weakref
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from fastdata.dataloader.loader import DataLoader as OwnLoader
from fastdata.diagnosis.delivery import Delivery
from fastdata.diagnosis.examine import examine_loader
from fastdata.diagnosis.experiments import Experiments
from fastdata.diagnosis.loading import loaders_to_try, may_start_workers, torchs_with
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.model_inspector import Look
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.trials import trials_for


def delivery() -> Delivery:
    return Delivery(threading.local(), [])


def batches(count: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.rand(8 * count, 4), torch.arange(8 * count) % 3), 8)


def train(network: nn.Module, loader: Any, epochs: int = 100) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimiser.step()


def test_where_gradients_are_added_up_whole_periods_are_compared() -> None:
    clock = map(float, itertools.count()).__next__
    experiments = Experiments(delivery(), seconds=100.0, limitations=[], clock=clock)
    ticks = itertools.cycle([Step(0.0, 0.01), Step(0.0, 0.01), Step(0.0, 0.01), Step(0.0, 0.01, update_s=0.08)])

    def timed(share: float, *, preloads: bool) -> Stretch:
        steps = experiments.timed(share=share, preloads=preloads)
        next(steps)
        try:
            while True:
                steps.send(next(ticks))
        except StopIteration as ended:
            stretch: Stretch = ended.value
            return stretch

    timed(0.5, preloads=False)
    for _ in range(5):  # wherever they begin
        next(ticks)
        short = timed(0.01, preloads=True)
        assert short.steps == 4
        assert short.update_s == pytest.approx(0.02)


def test_what_goes_wrong_while_measuring_does_not_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(*_: object) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Look, "facts", facts)
    watch = LoopMonitor(seconds=0.2)
    with pytest.raises(Stopped), watch.watching():
        train(nn.Linear(4, 3), batches())
    assert watch.limitations == ["measuring ended early: out of luck"]


@pytest.mark.parametrize("kind", [DataLoader, OwnLoader])
def test_worker_processes_never_run_a_program_anew(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which has no guard, since it has no workers."""
    spawn = multiprocessing.get_context("spawn")
    loader = kind(TensorDataset(torch.rand(64, 4)), 8)
    assert may_start_workers(loader) is (multiprocessing.get_start_method() == "fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda *_: spawn)
    assert not may_start_workers(loader)
    assert "workers" not in loaders_to_try(loader)
    seen = examine_loader(loader, seconds=0.5)
    assert "workers" not in seen.changed
    assert may_start_workers(kind(TensorDataset(torch.rand(64, 4)), 8, num_workers=1))


def test_samplers_of_whole_batches_are_kept() -> None:
    data = TensorDataset(torch.arange(20))
    sampler = BatchSampler(SequentialSampler(data), 4, drop_last=False)
    changed = torchs_with(DataLoader(data, sampler=sampler, batch_size=None), num_workers=1)
    assert [batch[0].tolist() for batch in changed] == [list(range(at, at + 4)) for at in range(0, 20, 4)]


def test_anomaly_mode_of_a_single_step_is_taken_away_and_not_left_on() -> None:
    (trial,) = trials_for(Facts(anomaly_mode=True), [], tries=False)
    with ExitStack() as stack:
        trial.enter(stack)
        with torch.autograd.set_detect_anomaly(True):
            assert not torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled()
    with torch.autograd.set_detect_anomaly(True):
        with ExitStack() as stack:
            trial.enter(stack)
            assert not torch.is_anomaly_enabled()
        assert torch.is_anomaly_enabled()


def test_looking_keeps_no_activations_alive() -> None:
    """Checkpointing is there to let go of them."""
    alive: list[Any] = []
    counts: list[int] = []

    def note(_: nn.Module, __: Any, made: torch.Tensor) -> None:
        counts.append(sum(each() is not None for each in alive))
        alive.append(weakref.ref(made))

    network = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    for layer in network:
        layer.register_forward_hook(note)
    look = Look()
    with look.looking(), torch.no_grad():
        network(torch.rand(4, 8))
    assert max(counts) <= 1


def test_layers_are_measured_without_what_they_were_given() -> None:
    look, network = Look(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with look.looking():
        network(torch.rand(2, 3, 8, 8)).sum().backward()
        look.steps += 1
    assert look.facts(None).biases_before_norm == ["0 (Conv2d)"]
    look.measure_layers()
    assert look.facts(None).bias_cost_s >= 0


def test_what_is_known_of_a_compiled_program() -> None:
    look, network = Look(), nn.Linear(4, 3).to(torch.bfloat16)
    look.note_compiled([torch.optim.SGD(network.parameters(), lr=0.1)])
    facts = look.facts(torch.zeros(8, 4))
    assert (facts.compiled, facts.dtypes, facts.parameters, facts.batch_size) == (True, ["bfloat16"], 15, 8)
    assert {"amp", "compile", "larger_batches"}.isdisjoint(each.key for each in trials_for(facts, [], tries=True))


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has no such setting")
def test_settings_that_torch_refuses_to_tell() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert Look().facts(None).tf32
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_a_first_pass_over_the_data_is_given_time() -> None:
    """Statistics of a dataset, or a validation, before the training."""
    watch, network = LoopMonitor(seconds=10.0, clock=map(float, itertools.count()).__next__), nn.Linear(4, 3)
    with suppress(Stopped), watch.watching():
        for _ in batches():
            pass
        train(network, batches(8))
    assert watch.main is not None
    assert watch.main.trained
