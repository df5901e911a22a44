"""Plan of the measurements in a watched program's steps: a close look, timing, computing alone, changes tried."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from fastdata.diagnosis.budget import Budget
from fastdata.diagnosis.delivery import Delivery
from fastdata.diagnosis.experiments import Experiments
from fastdata.diagnosis.loader_facts import handover_ms, is_compiled, queued, ranks
from fastdata.diagnosis.model_inspector import Look
from fastdata.diagnosis.monitored_loader import UsedLoader
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.speedup_model import BUSY
from fastdata.diagnosis.step_timer import Marks
from fastdata.diagnosis.training_snapshot import TrainingSnapshot
from fastdata.diagnosis.trials import Trial, trials_for
from fastdata.errors import in_words
from fastdata.system.cpus import auto_threads

__all__ = ["MeasurementPlan"]

_LOOKED_AT = 2  # steps
_REAL, _COMPUTE = 0.45, 0.25  # shares of the time
_PRELOADING = 0.1  # share of the time for preloading batches once, at most
_WAITS = 0.05  # share of a step, from which on other loaders are tried


class MeasurementPlan:
    """The steps of one loader, from the first that is looked at to the last that is timed.

    Attributes:
        facts, real, compute: the results so far.

    Args:
        marks: timer of the parts of a step.
        inside: see `Delivery`.
        seconds: time for all steps that are timed.
        tries: also try changes that are no faults.
        limitations: list to which the reasons are added if something could not be measured.
        clock: returns the time in seconds.
        budget: time limit for the whole program.
    """

    def __init__(
        self,
        marks: Marks,
        inside: threading.local,
        *,
        seconds: float,
        tries: bool,
        limitations: list[str],
        clock: Callable[[], float] = time.perf_counter,
        budget: Budget,
    ) -> None:
        self._budget = budget
        self._marks, self._seconds, self._tries, self._clock = marks, seconds, tries, clock
        self._limitations = limitations
        self.look = Look()
        self.facts = Facts()
        self.real: Stretch | None = None
        self.compute: Stretch | None = None
        self.delivery = Delivery(inside, limitations, seconds=_PRELOADING * seconds, clock=clock)
        self.experiments = Experiments(
            self.delivery, seconds=seconds, limitations=limitations, clock=clock, budget=budget
        )
        self._runs: Generator[None, Step, None] | None = None
        self._real_so_far: list[Step] = []
        self._compute_so_far: list[Step] = []  # without any change

    @property
    def is_running(self) -> bool:
        """True if the plan has begun and is not done."""
        return self._runs is not None

    def begin(self, seen: UsedLoader) -> None:
        """Begins the plan with the next step of this loader."""
        self._seen = seen
        self._runs = self._steps()
        self._go_on(None)

    def follow(self, seen: UsedLoader) -> None:
        """Continues with the steps of another loader, which has taken the place of the first one."""
        self._seen = seen

    def end(self) -> None:
        """Takes back what is switched on; harmless when repeated."""
        self.look.stop_glancing()
        if self._runs is not None:
            self._runs.close()
        self._runs = None

    def take(self, step: Step) -> None:
        """Notes that a step has ended."""
        if self.experiments.now is None:
            (self._compute_so_far if self.delivery.is_ready else self._real_so_far).append(step)
        self._go_on(step)

    def take_what_there_is(self, before: list[Step]) -> None:
        """Means of the steps of a program that ended before all could be timed; before: those before the script."""
        if self.real is None:
            steps = before[1:] + self._real_so_far or before
            self.real = Stretch.of(steps) if steps else None
        if self.compute is None and len(self._compute_so_far) > 1:
            self.compute = Stretch.of(self._compute_so_far[1:])

    def _go_on(self, step: Step | None) -> None:
        assert self._runs is not None
        try:
            if step is None:
                next(self._runs)
            else:
                self._runs.send(step)
            return
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the program shall not end by what is done here
            self._limitations.append(f"measuring ended early: {in_words(error)}")
        self._runs = None

    # ---- each yield is a step of the program

    def _steps(self) -> Generator[None, Step, None]:
        self._budget.phase = "looking at two steps"
        yield from self._look_closely()
        loader = self._seen.loader
        self.facts = self.look.facts(self.delivery.latest)
        sizes = [getattr(each, "batch_size", None) for each in (loader.batch_sampler, loader)]
        self.facts.batch_size = next(filter(None, sizes), self.facts.batch_size)  # which may be of an epoch's last
        del loader  # which the program may let go of
        self.facts.anomaly_mode |= self._marks.saw_anomaly_mode
        if self._is_missed("timed steps"):
            return
        yield from self._warm_up(queued(self._seen.loader) + 1)
        if self._is_missed("timed steps"):
            return
        self._budget.phase = "timing steps as they are"
        self.real = yield from self.experiments.timed(share=_REAL)
        if not self._seen.trained:
            return
        cpus, on_host = auto_threads(), self.facts.device == "cpu"
        is_busy = self._seen.loader.num_workers and (self.real.cores or 0.0) > BUSY * cpus
        if self._tries and on_host and is_busy and ranks() < 2:  # ranks might decide differently
            yield from self.experiments.fewer_threads(self._seen.loader, cpus, self.real)
        if self._is_missed("steps with batches preloaded"):
            return
        if self._seen.restarts_in_each_step:
            self._limitations.append("no batches were preloaded: the program makes an iterator for each batch")
        else:
            if why := self._seen.why_not_ahead:
                self._limitations.append(f"no batches were preloaded: {why}; computing was timed beside the loader")
            self.delivery.reads_ahead = not (why or self._loads_in_turn())
            self._budget.phase = "timing steps with batches preloaded"
            self.compute = yield from self.experiments.timed(share=_COMPUTE, preloads=True)
        if self.facts.device == "cuda":
            self.facts.pin_ms, self.facts.copy_ms, self.facts.pageable_copy_ms = handover_ms(self.delivery.latest)
        if ranks() < 2:
            yield from self._try(self._seen.loader)

    def _loads_in_turn(self) -> bool:
        """True if the loader loads in the program's own thread, so that computing is known without reading ahead."""
        has_end = math.isfinite(min(self._seen.turn.length, self._seen.epoch))
        return not self._seen.loader.num_workers and (self.facts.device == "cpu" or not has_end)

    def _is_missed(self, what: str) -> bool:
        """True if the steps' share of the budget is used up; then notes that `what` was missed."""
        if not self._budget.is_past_for_steps():
            return False
        self._limitations.append(self._budget.missed(what))
        return True

    def _warm_up(self, batches: int) -> Generator[None, Step, None]:
        """Steps with the batches that the loader has had ready."""
        began, warm_s = self._clock(), 0.2 * self._seconds
        for _ in range(batches):
            yield
            if (self._clock() - began > warm_s and not ranks()) or self._budget.is_past_for_steps():
                break

    def _look_closely(self) -> Generator[None, Step, None]:
        if is_compiled():  # hooks would break compiled graphs
            self._limitations.append("the program compiles, so its steps were not looked at closely")
            self.look.note_compiled(self._marks.optimizers)
            yield
            return
        with self.look.looking():
            for _ in range(_LOOKED_AT):
                yield
                self.look.steps += 1

    def _try(self, loader: Any) -> Generator[None, Step, None]:
        """Tries changes, and takes back what steps with them have trained: nobody has chosen these."""
        assert self.real is not None
        trials = trials_for(self.facts, self.look.models, tries=self._tries)
        if not self._tries:  # without faults the same is trained
            yield from self._changes(trials)
            return
        try:
            snapshot = TrainingSnapshot(self.look.models, self._marks.optimizers)
        except Exception as error:  # noqa: BLE001 - models of the program's own kind
            self._limitations.append(f"no change was tried: {in_words(error)}")
            return
        try:
            if self.real.wait_s > _WAITS * self.real.step_s:
                yield from self.experiments.other_loaders(loader, self.real)
            yield from self._changes(trials)
        finally:
            try:
                snapshot.restore()
            except Exception as error:  # noqa: BLE001 - models of the program's own kind
                self._limitations.append(f"what steps with changes have trained was not taken back: {in_words(error)}")

    def _changes(self, trials: list[Trial]) -> Generator[None, Step, None]:
        for trial in trials:
            if not self._is_missed(f"{trial.key}, as a change that is tried"):
                self._budget.phase = f"trying steps with a change: {trial.key}"
                yield from self.experiments.change(trial)
