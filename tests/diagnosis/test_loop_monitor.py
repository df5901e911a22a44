"""Programs that are watched: they get what they would get without, and what they do is found."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from watched_programs import dataset, model, step, train, watched

import fastdata
from fastdata.diagnosis.advice import advise
from fastdata.diagnosis.examine import examine_loader, examine_watched
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.observation import Facts, Observation, Step, Stretch
from fastdata.diagnosis.speedup_model import wait_share
from fastdata.diagnosis.step_plan import means_of
from fastdata.diagnosis.step_timer import Marks
from fastdata.errors import OptionError


class Slow(torch.utils.data.Dataset[Any]):
    """One that is there late in each worker process."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        if self.pid != os.getpid():
            self.pid = os.getpid()
            threading.Event().wait(0.3)
        return torch.zeros(3)


@pytest.mark.parametrize("persistent", [False, True])
def test_how_long_worker_processes_take_to_start_is_measured(persistent: bool) -> None:
    loader = DataLoader(Slow(), 4, num_workers=1, persistent_workers=persistent)
    seen = examine_loader(loader, seconds=1.0)
    assert seen.alone is not None
    assert seen.alone.first_s > 0.3
    assert seen.epoch_batches == 8
    assert seen.restarts_workers is not persistent


@pytest.mark.parametrize("kind", [DataLoader, fastdata.DataLoader])
def test_a_program_that_ends_before_the_measurements_has_its_own_result(kind: Any) -> None:
    def weights(watch: LoopMonitor | None) -> list[torch.Tensor]:
        network = model(bias=True)
        torch.manual_seed(2)
        loader = kind(dataset(), 16, shuffle=True)
        if watch is None:
            train(network, loader, 2)
        else:
            with watch.watching():
                train(network, loader, 2)
        return list(network.state_dict().values())

    watch = LoopMonitor(seconds=1e6)
    assert all(torch.equal(*pair) for pair in zip(weights(None), weights(watch), strict=True))
    assert [(each.batches, each.trained) for each in watch.seen] == [(12, 12)]


def test_no_epoch_gets_longer_or_shorter() -> None:
    epochs: list[int] = []

    def program() -> None:
        network, loader = model(), DataLoader(dataset(), 16)
        while True:
            epochs.append(0)
            optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
            for images, labels in loader:
                step(network, optimiser, images, labels)
                epochs[-1] += 1

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.real is not None
    assert set(epochs[:-1]) == {6}
    assert epochs[-1] <= 6


def test_everything_is_as_before_afterwards() -> None:
    before = [
        DataLoader.__iter__,
        torch.autograd.backward,
        torch.Tensor.item,
        torch.Tensor.to,
        torch.optim.Optimizer.zero_grad,
        torch.is_anomaly_enabled(),
    ]
    watched(lambda: train(model(), DataLoader(dataset(), 16), 1000))
    assert before == [
        DataLoader.__iter__,
        torch.autograd.backward,
        torch.Tensor.item,
        torch.Tensor.to,
        torch.optim.Optimizer.zero_grad,
        torch.is_anomaly_enabled(),
    ]
    assert "__bool__" not in vars(torch.Tensor)


def test_what_is_wrong_with_a_program_is_found() -> None:
    def program() -> None:
        torch.autograd.set_detect_anomaly(True)
        network, loader = model(bias=True).double(), DataLoader(dataset(dtype=torch.float64), 16)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        while True:
            for images, labels in loader:
                loss = step(network, optimiser, images, labels, set_to_none=False)
                for _ in range(3):
                    loss.item()

    try:
        _, seen = watched(program)
    finally:
        torch.autograd.set_detect_anomaly(False)
    facts = seen.facts
    assert facts.anomaly_mode
    assert facts.dtypes == ["float64"]
    assert facts.biases_before_norm == ["0 (Conv2d)"]
    assert facts.zeroes_gradients
    assert facts.batch_size == 16
    (place,) = facts.syncs
    assert place.calls == ".item()"
    assert place.per_step == 3
    assert "test_loop_monitor.py:" in place.place
    assert {"anomaly", "float64", "bias_before_norm"} <= {each.key for each in advise(seen)}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    _, seen = watched(lambda: train(model(), DataLoader(dataset(), 16), 1000))
    facts = seen.facts
    assert (facts.syncs, facts.biases_before_norm) == ([], [])
    switched_on = (facts.anomaly_mode, facts.zeroes_gradients, facts.data_parallel, facts.autocast)
    assert not any(switched_on)
    assert facts.dtypes == ["float32"]


def test_what_follows_each_line_is_found() -> None:
    followed: list[object] = []

    def follow(*_: object) -> None:
        followed.append(sys.getprofile())

    def program() -> None:
        sys.setprofile(follow)
        train(model(), DataLoader(dataset(), 16), 10_000)

    before = sys.getprofile()
    try:
        _, seen = watched(program)
        assert sys.getprofile() is follow
    finally:
        sys.setprofile(before)
    assert __name__ in seen.facts.tracers
    assert "tracing" in {each.key for each in advise(seen)}


class Event:
    """Stands for a CUDA event, of a device that has done its work so many milliseconds after the host gave it."""

    def __init__(self, at_ms: float) -> None:
        self.at_ms = at_ms

    def elapsed_time(self, other: Event) -> float:
        return other.at_ms - self.at_ms


def test_on_a_device_its_own_time_is_what_computing_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host gives work in no time: waiting is what the device was idle."""
    reached = iter([0.0, 30.0, 100.0, 132.0])
    monkeypatch.setattr("fastdata.diagnosis.step_timer._recorded", lambda: Event(next(reached)))
    now = [0.0]
    marks = Marks(clock=lambda: now[0])
    steps = []
    for _ in range(2):
        marks.begin(now[0])
        now[0] += 0.001
        steps.append(marks.end(now[0], 0.099))
    stretch = Stretch.of(steps)
    assert stretch.device_s == stretch.compute_s == pytest.approx(0.031)
    seen = Observation(real=stretch, num_workers=2, facts=Facts(device="cuda"))
    assert wait_share(seen) == pytest.approx(0.69)


def test_a_device_that_is_lost_hides_no_failure_of_the_program() -> None:
    class Lost(Event):
        def elapsed_time(self, other: Event) -> float:
            raise RuntimeError("CUDA error: device-side assert triggered")

    stretch = means_of([Step(0.1, 0.2, events=(Lost(0.0), Lost(1.0)))] * 2)
    assert (stretch.wait_s, stretch.compute_s) == (pytest.approx(0.1), pytest.approx(0.2))


def test_the_loader_that_is_trained_on_is_judged() -> None:
    def program() -> None:
        network, training, validation = model(), DataLoader(dataset(), 16), DataLoader(dataset(32), 8)
        while True:
            with torch.no_grad():
                for images, _ in validation:
                    network(images)
            train(network, training)

    watch, seen = watched(program)
    assert watch.main is not None
    assert watch.main.loader.batch_size == 16
    assert [each["settings"] for each in seen.loaders] == [
        "batch_size=8, num_workers=0",
        "batch_size=16, num_workers=0",
    ]
    assert seen.real is not None
    assert seen.real.backward_s > 0


def test_a_loader_that_is_made_anew_for_each_epoch() -> None:
    def program() -> None:
        network = model()
        while True:
            train(network, DataLoader(dataset(), 16))

    watch, seen = watched(program)
    assert watch.is_done
    assert len(seen.loaders) == 1


def test_a_closure_that_computes_inside_of_the_update_is_no_part_of_it() -> None:
    now = [10.0]
    network, marks = nn.Linear(2, 1), Marks(clock=lambda: now[0])
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
            now[0] += 3
            return values.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            now[0] += 5
            return gradients[0]

    def compute() -> torch.Tensor:
        loss = Slow.apply(network(torch.ones(1, 2))).sum()
        loss.backward()
        now[0] += 1
        return torch.as_tensor(loss)

    with marks.installed():
        marks.begin(now[0])
        optimiser.step(compute)
        now[0] += 2
        step = marks.end(now[0], 7.0)
    assert (step.wait_s, step.forward_s, step.backward_s, step.update_s, step.rest_s) == (7, 3, 5, 1, 2)


def test_a_program_without_training() -> None:
    def program() -> None:
        network = model()
        with torch.no_grad():
            for _ in range(2):
                for images, _ in DataLoader(dataset(), 16):
                    network(images)

    _, seen = watched(program)
    assert seen.real is not None
    assert any("no backward pass" in each for each in seen.limitations)


def test_a_program_that_iterates_nothing() -> None:
    _, seen = watched(lambda: None)
    assert seen.real is None
    assert seen.alone is None


def test_an_iterable_dataset_of_unknown_length() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(dataset())

    _, seen = watched(lambda: train(model(), DataLoader(Stream(), 16), 1000))
    assert seen.real is not None
    assert any("iterable" in each for each in seen.limitations)


def test_a_loader_that_is_iterated_in_another_thread_is_stopped_there() -> None:
    ended: list[type[BaseException]] = []

    def feed() -> None:
        try:
            train(model(), DataLoader(dataset(), 16), 10_000)
        except BaseException as error:  # noqa: BLE001
            ended.append(type(error))

    def program() -> None:
        thread = threading.Thread(target=feed)
        thread.start()
        thread.join(60)

    _, seen = watched(program)
    assert ended == [Stopped]
    assert seen.real is not None


def test_one_batch_for_each_iterator() -> None:
    def program() -> None:
        network, loader = model(), DataLoader(dataset(), 16)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        while True:
            images, labels = next(iter(loader))
            step(network, optimiser, images, labels)

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.restarts_in_each_step
    assert seen.real is not None


def test_two_loaders_in_one_loop_get_their_own_batches() -> None:
    def program() -> None:
        network = model()
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        both = DataLoader(dataset(), 16), DataLoader(TensorDataset(torch.zeros(96, 5)), 16)
        while True:
            for (images, labels), (more,) in zip(*both, strict=True):
                assert more.shape == (16, 5)
                step(network, optimiser, images, labels)

    watch, seen = watched(program)
    assert watch.is_done
    assert len(seen.loaders) == 2


def test_validation_gets_its_own_batches() -> None:
    def program() -> None:
        negative = TensorDataset(-dataset()[:][0], dataset()[:][1])
        network, training, validation = model(), DataLoader(dataset(), 16), DataLoader(negative, 16)
        while True:
            train(network, training)
            for images, _ in validation:
                assert images.max() <= 0

    watch, _ = watched(program)
    assert watch.is_done


class Holder:
    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels


def held(samples: list[Any]) -> Holder:
    images, labels = torch.utils.data.default_collate(samples)
    return Holder(images, labels)


def test_batches_of_any_class() -> None:
    def program() -> None:
        network, loader = model(), DataLoader(dataset(), 16, collate_fn=held)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
        while True:
            for batch in loader:
                assert batch.images.max() <= 1
                batch.images += 5
                step(network, optimiser, batch.images, batch.labels)

    watch, seen = watched(program)
    assert watch.is_done
    assert seen.real is not None


def test_a_pass_over_the_data_before_training_gets_its_own_batches() -> None:
    passes: list[float] = []

    def program() -> None:
        loader = DataLoader(dataset(1600), 16)
        for _ in range(3):
            passes.append(sum(float(images.sum()) for images, _ in loader))
        train(model(), loader, 10_000)

    watch, _ = watched(program)
    assert watch.is_done
    assert passes[0] == passes[1] == passes[2]


def test_processes_that_the_program_forks_are_left_alone() -> None:
    ended: list[int] = []

    def program() -> None:
        loader = DataLoader(dataset(), 16)
        child = os.fork()
        if child == 0:
            os._exit(0 if sum(1 for _ in loader) == 6 and type(iter(loader)).__module__.startswith("torch") else 1)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    watched(program)
    assert ended == [0]


def test_what_the_program_closes_at_its_end_is_measured_before() -> None:
    opened = [True]

    class Closing(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            assert opened, "it is closed"
            return super().__getitem__(index)

    def program() -> None:
        try:
            train(model(), DataLoader(Closing(*dataset().tensors), 16), 10_000)
        finally:
            opened.clear()

    watch, found = LoopMonitor(seconds=0.3), list[Observation]()
    watch.when_done = lambda: found.append(examine_watched(watch, "a program"))
    with pytest.raises(Stopped), watch.watching():
        program()
    assert found[0].alone is not None


def test_a_compiled_program_is_not_hooked() -> None:
    def program() -> None:
        network = torch.compile(model(), backend="eager", fullgraph=True)
        train(network, DataLoader(dataset(), 16), 10_000)

    watch, seen = watched(program)
    assert watch.is_done
    assert any("compiles" in each for each in seen.limitations)


# ---- in code


def test_in_code_the_model_and_the_generators_stay_as_they_are() -> None:
    network, loader = model(), fastdata.DataLoader(dataset(), 16, shuffle=True)
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.get_rng_state()
    told = fastdata.doctor(network, loader, seconds=0.3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not network.training
    assert told.verdict
    assert str(told).startswith("Verdict: ")
    assert told.seen.real is not None


def test_in_code_any_loss_and_optimiser() -> None:
    told = fastdata.doctor(
        model(),
        DataLoader(dataset(), 16),
        loss=lambda scores, labels: scores.square().sum() + labels.sum(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        seconds=0.2,
    )
    assert told.seen.real is not None


@pytest.mark.parametrize(
    ("loader", "options", "message"),
    [
        ([1, 2], {}, "list is no DataLoader"),
        (DataLoader(dataset(), 16), {"seconds": 0}, "seconds=0 is not positive"),
        (DataLoader(TensorDataset(torch.zeros(0, 3, 8, 8))), {}, "the loader has no batches"),
    ],
)
def test_mistakes_in_code(loader: Any, options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.doctor(model(), loader, **options)
