"""Progress for people, on a terminal and in a log."""

from __future__ import annotations

import sys

import pytest
from drawn_clock import DrawnClock

from fastdata.terminal import progress as module
from fastdata.terminal.progress import Progress, clock_time, progress


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = DrawnClock()
    shown = Progress(500, unit="image", what="drawing", every_s=10, clock=clock)
    for _ in range(500):
        clock.now += 0.05
        shown.update("waiting 3%")
    shown.close()
    shown.close()
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "drawing: 200 of 500 images, 20 images/s, 0:00:15 left, waiting 3%"
    assert told[-1] == "drawing: 500 of 500 images, 20 images/s, waiting 3%"
    assert len(told) == 3


def test_what_is_given_up_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    for number in progress(range(9), None, unit="batch", what="this epoch"):
        if number == 4:
            break
    assert capsys.readouterr().err.startswith("this epoch: 4 batches, ")


@pytest.mark.parametrize("installed", [True, False])
def test_a_terminal_gets_a_bar_if_tqdm_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    monkeypatch.setattr(module, "shows_bars", lambda: True)
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert list(progress(range(3), 3, unit="image")) == [0, 1, 2]
    told = capsys.readouterr().err
    assert ("3/3" in told) == installed
    assert ("done: 3 of 3 images" in told) != installed


def test_times_are_read_as_on_a_clock() -> None:
    assert [clock_time(seconds) for seconds in (0, 59.6, 3723)] == ["0:00:00", "0:01:00", "1:02:03"]
