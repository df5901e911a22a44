"""A diagnosis keeps to its time, and says what it does meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from watched_programs import dataset, model, train, watched

from fastdata.diagnosis.budget import Alarm, Budget, OverBudget, budget_for, progress_told
from fastdata.diagnosis.examine import examine_loader
from fastdata.diagnosis.in_code import doctor
from fastdata.errors import OptionError


def used_up(seconds: float = 100.0) -> Budget:
    """A budget that is over as soon as it has begun."""
    readings = itertools.chain([0.0], itertools.repeat(seconds + 1))
    return Budget(seconds, clock=lambda: next(readings))


def test_a_budget_begins_once_and_ends() -> None:
    readings = iter([5.0, 15.0, 15.0, 200.0, 200.0])
    budget = Budget(100.0, clock=lambda: next(readings))
    assert budget.left_s == 100.0
    assert budget.begin()
    assert not budget.begin()
    assert budget.taken_s == 10.0
    assert not budget.is_past(0.2)
    assert budget.is_past()
    assert budget.left_s == 0.0


@pytest.mark.parametrize(
    ("seconds", "chosen", "expected"),
    [(20.0, None, 120.0), (1.0, None, 120.0), (100.0, None, 600.0), (20.0, 30.0, 30.0)],
)
def test_more_steps_have_a_larger_budget(seconds: float, chosen: float | None, expected: float) -> None:
    assert budget_for(seconds, chosen) == expected


def _take_for_ever() -> None:
    for _ in range(600):
        time.sleep(0.1)


def test_an_alarm_ends_what_takes_too_long() -> None:
    alarm = Alarm(0.2, OverBudget)
    try:
        with pytest.raises(OverBudget):
            _take_for_ever()
    finally:
        alarm.stop()


def test_an_alarm_that_was_stopped_is_silent() -> None:
    rung = list[str]()

    def ring(name: str) -> bool:
        rung.append(name)
        return False

    stopped = Alarm(0.3, OverBudget, before=lambda: ring("stopped"))
    stopped.stop()
    other = Alarm(0.0, OverBudget, before=lambda: ring("other"))  # held back by its `before`, so nothing is raised
    time.sleep(0.8)
    other.stop()
    assert "other" in rung
    assert "stopped" not in rung


class Crawling(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        for _ in range(600):
            time.sleep(0.1)
        return super().__getitem__(index)


def test_a_loader_that_takes_for_ever_is_not_waited_for() -> None:
    began = time.monotonic()
    seen = examine_loader(DataLoader(Crawling(torch.zeros(8)), 4), seconds=0.5, budget=Budget(1.5))
    assert time.monotonic() - began < 30  # a sample takes 60 s
    assert seen.alone is None
    said = "the time budget of 1.5 s was used up; a larger one gives more"
    assert seen.limitations == [f"the loader alone: {said}", f"single samples: {said}"]


def test_what_does_not_fit_is_named_and_the_rest_is_told() -> None:
    _, seen = watched(lambda: train(model(), DataLoader(dataset(), 16), 100_000), budget=used_up())
    assert any(each.startswith("timed steps: the time budget of 100 s was used up") for each in seen.limitations)
    assert seen.real is not None
    assert any(each.startswith("the loader alone: the time budget of 100 s") for each in seen.limitations)


def test_progress_is_told_again_and_again(capfd: pytest.CaptureFixture[str]) -> None:
    budget = Budget(120.0)
    with progress_told(budget, every_s=0.05):
        time.sleep(0.3)
        budget.begin()
        budget.phase = "timing steps as they are"
        time.sleep(0.3)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "fastdata: measuring takes up to 120 s from the first batch on (--budget SECONDS)"
    assert "fastdata: 0 s: waiting for the program's first batch" in lines
    assert "fastdata: 0 of up to 120 s: timing steps as they are" in lines
    time.sleep(0.2)
    assert not any(each.name == "fastdata-doctor-progress" for each in threading.enumerate())


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(OptionError, match=r"budget=0 is not positive"):
        doctor(model(), DataLoader(dataset(), 16), budget=0)
