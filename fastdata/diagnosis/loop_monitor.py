"""Watches a training program from inside of `next(loader)`, and takes its time.

Life cycle; any deviation is a bug:
  Begin    `watching()` wraps the iterators of torch's and fastdata's loaders that are made from then on, in this
           process alone.  What is delivered, and to whom, is as without.
  Main     the loader between whose batches there is a backward pass.  If none comes for a long while: the one iterated.
           It is kept; whatever else the program lets go of goes.  A program that trains on another loader for some
           steps is in its next stage: that loader takes the main one's place, and the plan begins anew.
  Plan     then two steps are looked at, those whose batches were ready before are passed over, and the others are
           timed, until the time is over.
  Elsewhere  where the loop is in another thread than the one that asks for batches, steps cannot be timed: the loader
           alone is measured.
  Stop     at the end of the plan `when_done` measures what is left, while all that the program has opened is still
           open; then the request raises `Stopped`, which ends the program.  A program that ends earlier leaves what has
           been measured.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import torch
import torch.utils.data

from fastdata.dataloader import loader as our_loaders
from fastdata.diagnosis.budget import PROGRAM_AT_MOST, UNTRAINED, Alarm, Budget
from fastdata.diagnosis.loader_facts import ranks
from fastdata.diagnosis.monitored_loader import MonitoredIterator, Turn, UsedLoader
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.replacing import replace
from fastdata.diagnosis.step_plan import StepPlan, means_of
from fastdata.diagnosis.step_timer import Marks
from fastdata.measuring.cpu_time import tree_cpu_s

__all__ = ["LoopMonitor", "Stopped"]

# Steps, and times of `seconds`, after which no backward pass is expected: in a second pass, and in the first.
_UNTRAINED_STEPS, _UNTRAINED_TIMES, _UNTRAINED_FIRST_TIMES = 20, 3, 30
_MOST_STOPS = 20
_FEEDS = 0.5  # share of the main loader's steps from which on another one feeds them, too
_NEXT_STAGE, _MOST_STAGES = 5, 4  # steps on another loader, and how often one may take the main one's place


class Stopped(BaseException):
    """Ends a program of which everything has been measured."""


class LoopMonitor:
    """Monitor of the loaders and the training loop of one process.

    Attributes:
        seen: the loaders that were iterated.
        main: see above; None before there is one.
        limitations: what could not be measured, and why.
        is_done: the plan has come to its end.
        when_done: called before the program is stopped.
        when_ignored: called if it cannot be stopped: it catches everything and goes on.
        started: number of processes, but for those of loaders.

    Args:
        seconds: time for all steps that are timed.
        clock: returns the time in seconds.
        budget: time limit for the whole program; None for no limit.
    """

    def __init__(
        self,
        *,
        seconds: float = 20.0,
        clock: Callable[[], float] = time.perf_counter,
        budget: Budget | None = None,
    ) -> None:
        self.seconds, self.budget, self._clock = seconds, budget or Budget(), clock
        self.seen: list[UsedLoader] = []
        self.main: UsedLoader | None = None
        self.limitations: list[str] = []
        self.is_done = False
        self.when_done: Callable[[], None] | None = None
        self.when_ignored: Callable[[], None] | None = None
        self.started = 0
        self._alarm: Alarm | None = None
        self._partner: UsedLoader | None = None  # the one waited for most of those that feed the main one's steps, too
        self._most_used: UsedLoader | None = None  # before there is a main one
        self._stops, self._is_over = 0, False
        self._marks = Marks(clock)
        self._others = 0  # batches of other loaders within a step of the main one
        self._other: tuple[UsedLoader, float]  # that had the first of them, and how long it was waited for
        self._stages = 1
        self._other_stage: UsedLoader | None = None  # which may take the main one's place
        self._other_steps = 0
        self._plan: StepPlan | None = None
        self._is_inside = threading.local()
        self._process = os.getpid()
        tree_cpu_s()  # imports what it needs

    # ---- around the program

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches a program that runs inside this block."""
        with ExitStack() as stack:
            for owner in (torch.utils.data.DataLoader, our_loaders.StatelessDataLoader):
                if "__iter__" in vars(owner):
                    replace(stack, owner, "__iter__", self._wrapping)
            replace(stack, BaseProcess, "start", self._counting)
            stack.enter_context(self._marks.installed())
            try:
                yield
            finally:
                self._stop_alarm()
                self._is_over = True
                if self._plan is not None:
                    self._plan.end()

    def _counting(self, original: Callable[[Any], None]) -> Any:
        def start(process: Any) -> None:
            self.started += not getattr(self._is_inside, "loader", False)
            original(process)

        return start

    def _wrapping(self, original: Callable[[Any], Any]) -> Any:
        def iterate(loader: Any) -> Any:
            is_here = os.getpid() == self._process
            if self._is_over or not is_here or getattr(self._is_inside, "loader", False):
                return original(loader)
            if self.budget.begin():
                self._alarm = Alarm(PROGRAM_AT_MOST * self.budget.seconds, Stopped, self._is_too_late)
            seen, began = self._seen(loader), self._clock()
            self._close_step(seen, seen.turn, began)  # of an iterator that was left, as by `break`
            if self.is_done:
                self._stop()
            self._is_inside.loader = True  # fastdata's class calls torch's
            try:
                began = self._clock()
                inner = original(loader)
            finally:
                self._is_inside.loader = False
            seen.began_at = seen.began_at or began
            return MonitoredIterator(self._ask, self._leave, seen, inner, made_s=self._clock() - began)

        return iterate

    def _seen(self, loader: Any) -> UsedLoader:
        known = next((each for each in self.seen if each.loader is loader), None)
        if known is None:
            known = UsedLoader(loader)
            self.seen.append(known)
        return known

    @property
    def examined(self) -> UsedLoader | None:
        """The loader that is to be measured alone: the main one, or the one that it is combined with and waits for."""
        main, partner = self.main or self._most_used, self._partner
        if main is not None and partner is not None:
            feeds = partner.feeds >= _FEEDS * max(1, main.led)
            return partner if feeds and partner.waited_s > main.waited_s else main
        return main

    @property
    def real(self) -> Stretch | None:
        """Means of the steps; of a program that ended before all could be timed, without the first; None for none."""
        main, plan = self.main or self._most_used, self._plan
        if plan is not None and plan.real is not None:
            return plan.real
        if main is None or self._trains_elsewhere(main):
            return None
        steps = main.steps[1:] + (plan.timed if plan is not None else []) or main.steps
        return means_of(steps) if steps else None

    @property
    def facts(self) -> Facts:
        """Facts of the steps that were looked at."""
        return self._plan.facts if self._plan is not None else Facts()

    # ---- in the program's loop

    def _ask(self, seen: UsedLoader, iterator: MonitoredIterator) -> Any:
        """The next batch for the program.

        Raises:
            StopIteration: the epoch has ended.
            Stopped: everything has been measured.
        """
        if self._is_over or os.getpid() != self._process:
            return next(iterator.inner)
        turn = iterator.turn
        self._close_step(seen, turn, self._clock())
        if self.is_done:
            self._stop()
        now, turn.asked_by = self._clock(), threading.get_ident()
        try:
            batch = next(iterator.inner)
        except StopIteration:
            seen.is_whole = True
            raise
        wait_s, turn.made_s = self._clock() - now + turn.made_s, 0.0
        if seen.batches == 0:
            seen.first_batch_s = self._clock() - seen.began_at
        seen.batches += 1
        if self.main is None and (self._most_used is None or seen.batches > self._most_used.batches):
            self._most_used = seen
            self._let_go_of_others()
        if seen is self.main and self._plan is not None:
            self._plan.look.note_batch(batch)
        if seen is not self.main and self.main is not None and self.main.turn.is_out:
            self._note_other(seen, wait_s)
        else:
            turn.is_out, turn.wait_s, self._others = True, wait_s, 0
            seen.waited_s += wait_s
            self._marks.begin(self._clock())
        return batch

    def _note_other(self, other: UsedLoader, wait_s: float) -> None:
        """A batch of another loader within a step: one belongs to it, as with zip(); more are a validation's."""
        self._others += 1
        assert self.main is not None
        if self._others > 1:
            self._marks.delivered_at = None  # a step that is not like the others
            self.main.turn.is_out &= not self.main.turn.is_left  # or one that will not come
        elif self._marks.delivered_at is not None:
            self.main.turn.wait_s += wait_s
            self._marks.delivered_at += wait_s
            self._other = other, wait_s

    def _note_partner(self, other: UsedLoader, wait_s: float) -> None:
        """A step of the main loader had exactly one batch of this one."""
        other.feeds += 1
        other.waited_s += wait_s
        if other is not self._partner and (self._partner is None or other.waited_s > self._partner.waited_s):
            self._partner = other
            self._let_go_of_others()

    def _let_go_of_others(self) -> None:
        """Lets go of all loaders but those that may be measured alone."""
        for seen in self.seen:
            seen.keep(seen in (self.main or self._most_used, self._partner))

    def _close_step(self, seen: UsedLoader, turn: Turn, asked_at: float) -> None:
        """Ends the step: the program has asked for the next batch, or left the iterator."""
        if not turn.is_out:
            return
        turn.is_out = False
        trained = self._marks.trains
        if self._marks.delivered_at is not None:
            if seen is self.main:
                seen.led += 1
                if self._others == 1:
                    self._note_partner(*self._other)
            self._end_step(seen, self._marks.end(asked_at, turn.wait_s), trained)

    def _leave(self, seen: UsedLoader, turn: Turn) -> None:
        """Notes that nobody has the iterator any more; ends the loop if it has trained on the latest batch."""
        turn.is_left = True
        is_here = os.getpid() == self._process and threading.get_ident() == turn.asked_by
        if is_here and not self._is_over and seen.turn is turn and turn.is_out and self._marks.trains:
            self._close_step(seen, turn, self._clock())

    def _end_step(self, seen: UsedLoader, step: Step, trained: bool) -> None:
        seen.trained += trained
        if self.main is None:
            seen.steps.append(step)
            waited_s = self._clock() - seen.began_at
            most = self.seconds * (_UNTRAINED_TIMES if seen.is_whole else _UNTRAINED_FIRST_TIMES)
            is_late = waited_s > most and len(seen.steps) >= _UNTRAINED_STEPS
            if trained or is_late or self.budget.is_past_for_steps(UNTRAINED):
                self._begin(seen)
        elif seen is self.main:
            self._other_steps = 0
            self._take(step)
        elif trained and not self.main.turn.is_out:
            self._take_place(self.main, seen, step)

    # ---- which loader it is about

    def _begin(self, seen: UsedLoader) -> None:
        """Makes this the main loader, and begins the plan with its next step."""
        self.main, self._partner = seen, None
        self._let_go_of_others()
        if self._trains_elsewhere(seen):
            self.is_done = True
            self.limitations.append(
                "steps: the loader's batches are asked for in another thread than the one that trains, as by a "
                "prefetcher of the program's own"
            )
            return
        self._plan = StepPlan(
            seen, self._marks, seconds=self.seconds, limitations=self.limitations, clock=self._clock, budget=self.budget
        )
        self.is_done |= self._plan.is_done  # or the budget's alarm has said so

    def _take(self, step: Step) -> None:
        if self._plan is not None:
            self._plan.take(step)
            self.is_done |= self._plan.is_done  # or the budget's alarm has said so

    def _trains_elsewhere(self, seen: UsedLoader) -> bool:
        """True if the training loop is in another thread than the one that asks for batches."""
        return self._marks.backward_in not in (None, seen.turn.asked_by)

    def _take_place(self, main: UsedLoader, seen: UsedLoader, step: Step) -> None:
        """Another loader is trained on: one that was made for the next epoch, or that of the program's next stage."""
        if main.likeness == seen.likeness:
            seen.succeed(main)
            self.seen.remove(main)
            self.main, self._most_used = seen, None
            main.keep(False)
            self._let_go_of_others()
            if self._plan is not None:
                self._plan.seen = seen
            self._take(step)
            return
        self._other_steps = self._other_steps + 1 if seen is self._other_stage else 1
        self._other_stage = seen
        if self._other_steps >= _NEXT_STAGE and self._stages < _MOST_STAGES:
            if self._plan is not None:
                self._plan.end()
            self._stages += 1
            self.limitations.append(f"more of {main.dataset} ({main.settings}): the program went on to another loader")
            self._begin(seen)

    # ---- the end

    def _stop(self) -> NoReturn:
        self._stops += 1
        self._stop_alarm()
        if self._stops == 1 and self.when_done is not None:
            self._is_over = True
            try:
                self.when_done()
            finally:
                self._is_over = False
        cannot_be_stopped = self._stops > _MOST_STOPS or threading.current_thread() is not threading.main_thread()
        if cannot_be_stopped and self.when_ignored is not None:
            self.when_ignored()
        raise Stopped

    def _is_too_late(self) -> bool:
        """Ends the measurement if the program takes too long between two requests; False for one of several ranks."""
        if ranks() > 1:
            return False
        if not self.is_done:
            self.limitations.append(self.budget.missed("more steps"))
        self.is_done = True
        return True

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.stop()
