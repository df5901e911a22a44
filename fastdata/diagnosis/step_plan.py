"""The steps of a watched program, from the first that is looked at to the last that is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace

from fastdata.diagnosis.budget import Budget
from fastdata.diagnosis.loader_facts import is_compiled, queued, ranks
from fastdata.diagnosis.model_inspector import Look
from fastdata.diagnosis.monitored_loader import UsedLoader
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.step_timer import Marks, finish_device_work
from fastdata.errors import in_words
from fastdata.measuring.cpu_use import CpuMeter

__all__ = ["StepPlan", "means_of"]

_LOOKED_AT = 2  # steps
_WARMING, _TIMED = 0.2, 0.6  # shares of the time
_FEWEST_TIMED, _MOST_TIMED = 3, 300  # steps
_RANKS_TIMED = 20  # steps, where all ranks must do the same number


class StepPlan:
    """Looks at two steps of a loader, passes over those whose batches were ready before, and times the others.

    Attributes:
        seen: the loader; another one may take its place.
        look: looks at the steps.
        facts: what was found in them.
        real: means of the steps that were timed; None before all are.
        timed: those steps.
        is_done: there is no further step.

    Args:
        seen: the loader.
        marks: timer of the parts of a step.
        seconds: time for all steps that are timed.
        limitations: list to which the reasons are added if something could not be measured.
        clock: returns the time in seconds.
        budget: time limit for the whole program.
    """

    def __init__(
        self,
        seen: UsedLoader,
        marks: Marks,
        *,
        seconds: float,
        limitations: list[str],
        clock: Callable[[], float] = time.perf_counter,
        budget: Budget,
    ) -> None:
        self.seen, self.look, self.facts = seen, Look(), Facts()
        self.timed: list[Step] = []
        self.real: Stretch | None = None
        self.is_done = False
        self._marks, self._seconds, self._clock, self._budget = marks, seconds, clock, budget
        self._limitations = limitations
        self._steps = self._planned()
        self._guarded(lambda: next(self._steps))

    def take(self, step: Step) -> None:
        """Notes that a step has ended."""
        if not self.is_done:
            self._guarded(lambda: self._steps.send(step))

    def end(self) -> None:
        """Takes back what is switched on; harmless when repeated."""
        self._steps.close()
        self.is_done = True

    def _guarded(self, go_on: Callable[[], None]) -> None:
        try:
            go_on()
            return
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the program shall not end by what is done here
            self._limitations.append(f"measuring ended early: {in_words(error)}")
        self.is_done = True

    # ---- each yield is a step of the program

    def _planned(self) -> Generator[None, Step, None]:
        self._budget.phase = "looking at two steps"
        if is_compiled():  # hooks would break compiled graphs
            self._limitations.append("the program compiles, so its steps were not looked at closely")
            self.look.note_compiled(self._marks.trained)
            yield
        else:
            with self.look.looking():
                for _ in range(_LOOKED_AT):
                    yield
                    self.look.steps += 1
        self.facts = self.look.facts()
        self.facts.batch_size = getattr(self.seen.loader.batch_sampler, "batch_size", None) or self.facts.batch_size
        self.facts.anomaly_mode |= self._marks.saw_anomaly_mode
        began = self._clock()
        for _ in range(queued(self.seen.loader) + 1):  # batches that the loader has had ready
            yield
            is_long = self._clock() - began > _WARMING * self._seconds and not ranks()
            if is_long or self._budget.is_past_for_steps():
                break
        if self._budget.is_past_for_steps():
            self._limitations.append(self._budget.missed("timed steps"))
            return
        self._budget.phase = "timing steps"
        finish_device_work()
        began, meter = self._clock(), CpuMeter()
        while not self._is_enough(self._clock() - began):
            self.timed.append((yield))
        at = self._clock()
        finish_device_work()
        own, others = meter.use()
        self.real = Stretch.of(self.timed, extra_s=self._clock() - at, cores=own)
        self.real.others = others

    def _is_enough(self, seconds: float) -> bool:
        count = len(self.timed)
        if ranks() > 1:
            return count >= _RANKS_TIMED
        if count and self._budget.is_past_for_steps():
            return True
        return count >= _MOST_TIMED or (count >= _FEWEST_TIMED and seconds >= _TIMED * self._seconds)


def means_of(steps: list[Step]) -> Stretch:
    """Means of steps of a program that has ended, perhaps by an error that the device answers everything with."""
    try:
        finish_device_work()
        return Stretch.of(steps)
    except RuntimeError:
        return Stretch.of([replace(step, events=()) for step in steps])
