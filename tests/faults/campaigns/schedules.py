"""In whatever order threads run, results come in the order of their jobs, errors at their places; all threads end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from simulated_threads import Simulation

from fastdata.errors import PipelineError
from fastdata.pipeline import jobs
from fastdata.pipeline.jobs import OrderedJobs, SkipResult, Task, stop_if_cancelled

ROUNDS = (1_500, 10_000, 1_000_000)


class Work:
    """A job with tasks that may make others, sleep and fail, and what is to come of it."""

    def __init__(self, number: int, simulation: Simulation, fails: float) -> None:
        rng = self._rng = Random(simulation.rng.random())
        self._simulation = simulation
        self._deadline = simulation.now
        self.number, self.run, self.finished, self.to_run = number, 0, 0, 0
        self.has_failed, self.late = False, 0
        self.fails_in = rng.choice(["task", "finish", "result", "skip"]) if rng.random() < fails else None
        self.tasks: Sequence[Task] = [self._task(rng.randrange(3)) for _ in range(rng.randrange(4))]
        if self.fails_in == "task" and not self.tasks:
            self.fails_in = "finish"

    def _task(self, depth: int) -> Task:
        self.to_run += 1
        naps = [self._rng.choice([0.0, 0.001, 0.1]) for _ in range(self._rng.randrange(3))]
        further = self._rng.randrange(3) if depth and self._rng.random() < 0.3 else 0
        fails = self.fails_in == "task" and self.to_run == 1

        def task() -> Sequence[Task]:
            self.late += self.has_failed
            assert not self.finished
            for nap in naps:
                self._simulation.sleep(nap)
                stop_if_cancelled()
            if fails:
                raise KeyError(self.number)
            made = [self._task(depth - 1) for _ in range(further)]
            self.run += 1
            return made

        return task

    def finish(self) -> None:
        if self.run != self.to_run:
            self.late = 99
        assert self.run == self.to_run, "finished before all tasks had run"
        self.finished += 1
        assert self.finished == 1
        if self.fails_in == "finish":
            raise KeyError(self.number)

    def result(self) -> int:
        assert self.finished == 1
        if self.fails_in == "result":
            raise KeyError(self.number)
        if self.fails_in == "skip":
            raise SkipResult
        return self.number


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds of one iterator of jobs each."""
    return one


def one(rng: Random) -> str:
    """An iterator that is used up, left, closed from another thread, or waits too long."""
    simulation = Simulation(rng, {jobs.__file__})
    with _standing_in(simulation), simulation.begun():
        closed: list[bool] = []
        size = rng.randrange(8)
        made = [Work(number, simulation, fails=rng.choice([0.0, 0.3])) for number in range(size)]
        broken = rng.randrange(1, 9) if rng.random() < 0.15 else size + 1
        threads = rng.randrange(5)
        timeout_s = 0.05 if rng.random() < 0.1 else 0.0
        iterator = OrderedJobs(
            _order(made, broken),
            threads=threads,
            depth=rng.randrange(1, 5),
            timeout_s=timeout_s,
            on_close=closed.append,
            may_take=(lambda: rng.random() < 0.7) if rng.random() < 0.3 else None,
        )
        how = rng.choice(["to the end", "to the end", "left", "closed by another thread"])
        if how == "closed by another thread":
            naps = rng.random() * 0.1

            def close(iterator: OrderedJobs = iterator) -> None:
                simulation.sleep(naps)
                iterator.close()

            other = simulation.Thread(target=close, name="closing")
            other.start()
        until = rng.randrange(size + 1) if how == "left" else size + 2
        expected = _expected(made, broken)
        with contextlib.suppress(StopIteration):
            for count in range(until):
                came = _came(iterator)
                if isinstance(came, PipelineError):
                    assert (timeout_s and "timed out" in str(came)) or (how[0] == "c" and "closed" in str(came)), came
                    how += ", told"
                    break
                assert came == expected[count : count + 1], (came, expected, count)
                if came != [None] and came[0] < 0:
                    made[~came[0]].has_failed = True
            else:
                assert how == "left" or count >= len(expected)
        if how == "to the end":
            assert count == len(expected), f"{count} of {expected}"
        if how[0] == "c":
            other.join()
            assert other.error is None
        del iterator
        for each in simulation.threads[1:]:
            each.join(10)
            assert each.ended, each.name
            assert each.error is None, each.error
        late = sum(each.late for each in made)
        assert late <= threads, f"{late} tasks have begun though their job's error was raised"
        assert len(closed) == 1, closed
        assert closed[0] or timeout_s, "a thread was left behind"
    return how


def _order(made: Sequence[Work], broken: int) -> Iterator[Work]:
    for place, each in enumerate(made, 1):
        if place == broken:
            raise IndexError("order")
        yield each


def _expected(made: Sequence[Work], broken: int) -> list[Any]:
    """Numbers of the jobs that have a result, negative with an error, and None for an error of the order."""
    found: list[Any] = []
    for place, each in enumerate(made, 1):
        if place == broken:
            return [*found, None]
        if each.fails_in != "skip":
            found.append(each.number if each.fails_in is None else ~each.number)
    return found


def _came(iterator: OrderedJobs) -> Any:
    """What comes next, in the terms of `_expected`, in a list; or what was told instead."""
    try:
        return [next(iterator)]
    except KeyError as error:
        return [~error.args[0]]
    except IndexError:
        return [None]
    except PipelineError as error:
        return error


@contextlib.contextmanager
def _standing_in(simulation: Simulation) -> Iterator[None]:
    before = jobs.threading, jobs.time
    jobs.threading = jobs.time = simulation  # type: ignore[assignment]
    try:
        yield
    finally:
        jobs.threading, jobs.time = before
