"""Steps of a watched program that are timed: as they are, with batches preloaded, and with something changed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import torch

from fastdata.diagnosis.budget import Budget
from fastdata.diagnosis.delivery import Delivery
from fastdata.diagnosis.loader_facts import over_and_over, queued, ranks
from fastdata.diagnosis.loading import loaders_to_try
from fastdata.diagnosis.observation import Step, Stretch
from fastdata.diagnosis.samples import threads_of_torch
from fastdata.diagnosis.step_timer import device_use, finish_device_work
from fastdata.diagnosis.trials import Trial
from fastdata.errors import in_words
from fastdata.measuring.cpu_use import CpuMeter

__all__ = ["Experiments"]

_FEWEST_TIMED, _MOST_TIMED = 3, 300  # steps
_RANKS_TIMED = 20  # steps, where all ranks must do the same number
_TRIAL = 0.1  # share of the time
_LONGEST_PERIOD = 64  # steps
_USE_EVERY = 10  # steps
_PRELOADING = 1.5  # times the share, which steps take at most together with preloading their batches


class Experiments:
    """Generators of steps: each yields before a step, and gets the step when it has ended.

    Attributes:
        times: seconds of a step (before, after) a change, by the key of the advice.
        now: the change that is made now; None for none.

    Args:
        delivery: source of the program's batches.
        seconds: time for all steps that are timed.
        limitations: list to which the changes that could not be tried are added.
        clock: returns the time in seconds.
        budget: time limit for the whole program; None for no limit.
    """

    def __init__(
        self,
        delivery: Delivery,
        *,
        seconds: float,
        limitations: list[str],
        clock: Callable[[], float] = time.perf_counter,
        budget: Budget | None = None,
    ) -> None:
        self._budget = budget or Budget()
        self._delivery, self._seconds, self._limitations, self._clock = delivery, seconds, limitations, clock
        self.times: dict[str, tuple[float, float]] = {}
        self._period = 1  # steps from one update to the next
        self._busy_s = 0.0  # of a step that was not preloaded
        self.now: Trial | None = None

    def timed(self, *, share: float, preloads: bool = False) -> Generator[None, Step, Stretch]:
        """Steps until a share of the time is over; with `preloads` of computing alone, behind one that is not timed.

        Where batches are not read ahead, the waits are left out.
        """
        if preloads:
            self._delivery.preload(self._steps_in(share) + 1)
            yield
        finish_device_work()
        late_s = self._delivery.late_s
        began, meter, steps, uses = self._clock(), CpuMeter(), list[Step](), list[float]()
        while not self._is_enough(steps, self._clock() - began, share, preloads):
            steps.append((yield))
            if len(steps) % _USE_EVERY == 1 and (share_used := device_use()) is not None:
                uses.append(share_used)
        at = self._clock()
        finish_device_work()
        extra_s = self._clock() - at + self._delivery.late_s - late_s
        self._delivery.preload(0)
        own, others = meter.use()
        stretch = Stretch.of(steps, extra_s=extra_s, cores=own)
        if preloads and not self._delivery.reads_ahead:
            stretch.step_s, stretch.wait_s = stretch.busy_s, 0.0
        stretch.others = others
        stretch.device_use = statistics.mean(uses) if uses else None
        if not preloads:
            self._busy_s = stretch.busy_s
            if updates := sum(step.update_s > 0 for step in steps):
                self._period = min(_LONGEST_PERIOD, round(len(steps) / updates))
        return stretch

    def _steps_in(self, share: float) -> int:
        """Number of preloaded steps that a share of the time has room for: whole periods."""
        if ranks() > 1:
            return _RANKS_TIMED
        steps = min(_MOST_TIMED, math.ceil(share * self._seconds / max(self._busy_s, 1e-6)))
        return math.ceil(max(_FEWEST_TIMED, steps) / self._period) * self._period

    def _is_enough(self, steps: list[Step], seconds: float, share: float, preloads: bool) -> bool:
        if ranks() > 1:
            return len(steps) >= _RANKS_TIMED
        if steps and self._budget.is_past_for_steps():
            return True
        if len(steps) % self._period:  # where gradients of some steps are added up, one of them is longer
            return False
        if len(steps) >= _MOST_TIMED or (preloads and self._delivery.reads_ahead and not self._delivery.is_preloading):
            return True
        if preloads and seconds < _PRELOADING * share * self._seconds:  # the time to preload them does not count
            seconds = sum(step.busy_s for step in steps)
        return len(steps) >= _FEWEST_TIMED and seconds >= share * self._seconds

    def change(self, trial: Trial) -> Generator[None, Step, None]:
        """Steps with preloaded batches, without and with a change, in turn."""
        found: dict[bool, list[Stretch]] = {False: [], True: []}
        try:
            for changed in (True, False, True, False):
                with ExitStack() as stack:
                    if changed:
                        self.now, self._delivery.change = trial, trial.batch  # and still are, if the program ends by it
                        trial.enter(stack)
                    found[changed].append((yield from self.timed(share=_TRIAL / 4, preloads=True)))
                self._end_change()
                if self._budget.is_past_for_steps() and not found[False]:
                    self._limitations.append(self._budget.missed(f"{trial.key}, as a change that is tried"))
                    return
        except Exception as error:  # noqa: BLE001 - a change that is not possible is no reason to end
            self.now, self._delivery.change, self._delivery.failure = None, None, None
            self._limitations.append(f"{trial.key} could not be tried: {in_words(error)}")
            return
        if self._train_alike(trial.key, found[False], found[True]):
            before, after = (min(stretch.step_s for stretch in found[changed]) for changed in (False, True))
            self.times[trial.key] = before, after / trial.batches

    def _end_change(self) -> None:
        """Takes back the change of the batches.

        Raises:
            Exception: a batch could not be changed.
        """
        self.now, self._delivery.change = None, None
        if self._delivery.failure is not None:
            raise self._delivery.failure

    def _train_alike(self, key: str, before: list[Stretch], after: list[Stretch]) -> bool:
        """False if steps with a change lack the backward pass: the program may pass over batches that fail."""
        shares = [sum(each.trained for each in found) / sum(each.steps for each in found) for found in (before, after)]
        if shares[1] < 0.9 * shares[0]:
            self._limitations.append(f"{key} could not be tried: the program did not train with it")
            return False
        return True

    def other_loaders(self, loader: Any, now: Stretch) -> Generator[None, Step, None]:
        """Steps with the batches of other loaders in the place of the program's."""
        for key, make in loaders_to_try(loader).items():
            if self._budget.is_past_for_steps():
                self._limitations.append(self._budget.missed(f"steps with another loader ({key})"))
                continue
            self._budget.phase = f"trying steps with another loader: {key}"
            try:
                other = make()
            except Exception as error:  # noqa: BLE001 - of the program's sampler, or its dataset
                self._limitations.append(f"{key} could not be tried: {in_words(error)}")
                continue
            self._delivery.feed_from(over_and_over(other))
            self.now = Trial(key, lambda _: None)  # and still is, if the program ends by its batches
            try:
                stretch = yield from self._once_filled(other)
                is_fed = self._delivery.is_fed
                self.now = None
            finally:
                self._delivery.feed_from(None)
            yield from self._compare(key, loader, now, stretch if is_fed else None)

    def _once_filled(self, loader: Any) -> Generator[None, Step, Stretch]:
        """Steps behind those that the loader has had batches ready for."""
        began = self._clock()
        for _ in range(queued(loader) + 1):
            yield
            if self._clock() - began > _TRIAL * self._seconds:
                break
        return (yield from self.timed(share=_TRIAL))

    def fewer_threads(self, loader: Any, cpus: int, now: Stretch) -> Generator[None, Step, None]:
        """Steps with the loader's own batches, and so few threads of torch that the loader has cores of its own."""
        fewer = max(1, math.ceil(cpus) - int(loader.num_workers))
        if fewer >= torch.get_num_threads():
            return
        with threads_of_torch(fewer):
            for _ in range(2):
                yield
            stretch = yield from self.timed(share=_TRIAL)
        yield from self._compare("torch_threads", loader, now, stretch)

    def _compare(self, key: str, loader: Any, now: Stretch, changed: Stretch | None) -> Generator[None, Step, None]:
        """Steps as they were, and the times of a change beside them: the machine may have become quicker."""
        again = yield from self._once_filled(loader)
        if changed is not None and self._train_alike(key, [now, again], [changed]):
            self.times[key] = min(now.step_s, again.step_s), changed.step_s
