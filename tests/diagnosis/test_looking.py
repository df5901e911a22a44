"""What is seen of a program while its steps are looked at, and the loaders that it is compared with."""

from __future__ import annotations

import itertools
import multiprocessing
import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from fastdata.dataloader.loader import DataLoader as OwnLoader
from fastdata.diagnosis.examine import examine_loader
from fastdata.diagnosis.loading import changed_loader, loaders_to_try, may_start_workers, torchs_with
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.model_inspector import Look


def batches(count: int = 40) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.rand(8 * count, 4), torch.arange(8 * count) % 3), 8)


def train(network: nn.Module, loader: Any, epochs: int = 100) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(images), labels).backward()
            optimiser.step()


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


@pytest.mark.parametrize(("change", "kind"), [(torchs_with, DataLoader), (changed_loader, OwnLoader)])
def test_a_changed_loader_has_the_same_batches(change: Any, kind: Any) -> None:
    loader = kind(list(range(8)), batch_size=2, num_workers=1)
    changed = change(loader, num_workers=2)
    assert changed.num_workers == 2
    assert [batch.tolist() for batch in changed] == [batch.tolist() for batch in loader]


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


def test_what_is_known_of_a_compiled_program() -> None:
    look, network = Look(), nn.Linear(4, 3).to(torch.bfloat16)
    look.note_compiled([torch.optim.SGD(network.parameters(), lr=0.1)])
    facts = look.facts()
    assert (facts.compiled, facts.dtypes, facts.parameters) == (True, ["bfloat16"], 15)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch has no such setting")
def test_settings_that_torch_refuses_to_tell() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert Look().facts().tf32
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
