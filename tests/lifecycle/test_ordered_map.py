"""Ordered work in threads: results, errors, what is begun, and what Ctrl-C leaves."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from fastdata.system.ordered_map import in_order

NAME = "fastdata-test"


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(NAME)]


def test_results_come_in_the_order_of_the_items() -> None:
    def slow_if_even(item: int) -> int:
        time.sleep(0.002 * (item % 2 == 0))
        return item * item

    for threads in (1, 3, 40):
        assert list(in_order(slow_if_even, range(30), threads=threads, name=NAME)) == [n * n for n in range(30)]
    assert not list(in_order(slow_if_even, [], threads=3, name=NAME))


def test_items_are_drawn_as_they_are_needed() -> None:
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for number in range(1000):
            drawn.append(number)
            yield number

    results = in_order(str, items(), threads=2, name=NAME, ahead=3)
    assert not drawn
    assert [next(results) for _ in range(4)] == ["0", "1", "2", "3"]
    assert len(drawn) == 2 * 3 + 3
    results.close()  # type: ignore[attr-defined]


def test_after_an_error_no_more_are_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 5:
            raise ValueError("five")
        time.sleep(0.01)
        return item

    results = in_order(work, range(1000), threads=2, name=NAME)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        next(results)
    assert len(begun) < 20


def test_waiting_takes_no_lock_that_an_interrupt_could_leave_held() -> None:
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            entered.append(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    results = in_order(lambda item: time.sleep(0.001), range(40), threads=2, name=NAME, ahead=2)
    next(results)  # the threads have begun
    sys.setprofile(note)
    try:
        for _ in range(20):
            next(results)
    finally:
        sys.setprofile(None)
    assert entered  # it has seen something
    assert not [each for each in entered if each.split(".")[0] in ("threading", "concurrent")]
    results.close()  # type: ignore[attr-defined]


HELD = """
import sys
from fastdata.system.ordered_map import in_order
results = in_order(lambda item: item, range(100), threads=2, ahead=2, name="x")
print(next(results))
"""


def test_an_iterator_that_nobody_closes_does_not_keep_the_program() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_a_thread_that_cannot_be_started_is_the_error_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def failing(self: threading.Thread) -> None:
        started.append(self)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(in_order(str, range(9), threads=3, name=NAME))
