"""Watches a training program from inside of `next(loader)`, and takes its time.

Life cycle; any deviation is a bug:
  Begin    `watching()` wraps the iterators of torch's and fastdata's loaders that are made from then on, in this
           process alone.  What is delivered, and to whom, is as without.
  Main     the loader between whose batches there is a backward pass.  If none comes for a long while: the one iterated.
  Script   then each request for one of its batches asks the script (`_script`) what to deliver: the next batch, or once
           more the same one.  Never more batches than the epoch has; where its length is not known, or a batch cannot
           be copied, none is repeated.  What repeated ones have trained is put back when a loop begins or ends, when
           the program saves something, and before it is stopped.
  Stop     at the end of the script `when_done` measures what is left, while all that the program has opened is still
           open; then the request raises `Stopped`, which ends the program.  A program that ends earlier leaves what has
           been measured.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import torch
import torch.utils.data

from fastdata.dataloader import loader as our_loaders
from fastdata.diagnosis.experiments import Delivery, Experiments
from fastdata.diagnosis.look import Look
from fastdata.diagnosis.marks import Marks
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.put_back import Undo
from fastdata.diagnosis.repeating import handover_ms, is_compiled, is_plain, likeness, queued, ranks
from fastdata.diagnosis.trials import trials_for
from fastdata.diagnosis.watched import Seen, WatchedIterator
from fastdata.errors import in_words
from fastdata.run.report import cpu_seconds
from fastdata.system.cpus import auto_threads

__all__ = ["Stopped", "Watch"]

_LOOKED_AT, _GLANCED_AT = 2, 2  # steps, and batches of each other loader, which may be a validation's
_REAL, _REPEATED = 0.45, 0.25  # shares of the time
_WAITS = 0.05  # share of a step, from which on other loaders are tried
# Steps, and times of `seconds`, after which no backward pass is expected: in a second pass, and in the first.
_UNTRAINED_STEPS, _UNTRAINED_TIMES, _UNTRAINED_FIRST_TIMES = 20, 3, 30
_MOST_STOPS = 20
_WARMING = 2  # repeated steps that are not timed
_BUSY = 0.75  # share of the cores from which on torch's threads and the loader's may want the same ones


class Stopped(BaseException):
    """Ends a program of which everything has been measured."""


class Watch:
    """What happens in one process.

    Args:
        seconds: for all steps that are timed.
        tries: also try changes that are no faults.
        clock: seconds.
    """

    def __init__(
        self, *, seconds: float = 20.0, tries: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.seconds, self._tries, self._clock = seconds, tries, clock
        self.seen: list[Seen] = []
        self.main: Seen | None = None
        self.facts = Facts()
        self.real: Stretch | None = None
        self.repeated: Stretch | None = None
        self.unseen: list[str] = []
        self.look = Look()
        self.is_done = False
        self.when_done: Callable[[], None] | None = None  # before the program is stopped
        self.when_ignored: Callable[[], None] | None = None  # it cannot be stopped: it catches everything and goes on
        self._stops, self._is_over = 0, False
        self._marks = Marks(clock)
        self._script_runs: Generator[bool, Step, None] | None = None
        self._repeats = False  # what is to be delivered next
        self._batch: Any = None  # of the main loader, the latest
        self._undo = Undo(self.unseen)  # of what repeated batches train
        self._others = 0  # batches of other loaders within a step of the main one
        self.started = 0  # processes, but for those of loaders
        self._depth = threading.local()
        self._delivery = Delivery(self._depth, self.unseen)
        self.experiments = Experiments(self._delivery, seconds=seconds, unseen=self.unseen, clock=clock)
        self._process = os.getpid()
        cpu_seconds()  # imports what it needs
        self._timed_so_far: list[Step] = []  # real steps since the script began
        self._repeated_so_far: list[Step] = []  # without any change
        self.repeats = 0  # batches that were no new ones

    # ---- around the program

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The program runs inside of this block."""
        with ExitStack() as stack:
            for owner in (torch.utils.data.DataLoader, our_loaders.StatelessDataLoader):
                if "__iter__" in vars(owner):
                    stack.callback(setattr, owner, "__iter__", owner.__iter__)
                    owner.__iter__ = self._wrapping(owner.__iter__)  # type: ignore[method-assign]
            stack.callback(setattr, BaseProcess, "start", BaseProcess.start)
            BaseProcess.start = self._counting(BaseProcess.start)  # type: ignore[method-assign]
            stack.enter_context(self._marks.installed())
            self._put_back_before(stack, torch, "save")
            safetensors = sys.modules.get("safetensors.torch")
            for name in ("save", "save_file", "save_model") if safetensors is not None else ():
                self._put_back_before(stack, safetensors, name)
            try:
                yield
            finally:
                self._is_over = True
                self.look.stop_glancing()
                if self._script_runs is not None:
                    self._script_runs.close()  # leaves what it has switched on
                self._undo.put_back()

    def _put_back_before(self, stack: ExitStack, owner: Any, name: str) -> None:
        """Before a function is called that saves, in place: also in tensors that it was given."""
        original = getattr(owner, name)

        @wraps(original)
        def saving(*given: Any, **named: Any) -> Any:
            if os.getpid() == self._process:
                self._undo.put_back()
            return original(*given, **named)

        setattr(owner, name, saving)
        stack.callback(setattr, owner, name, original)

    def _counting(self, original: Callable[[Any], None]) -> Any:
        def start(process: Any) -> None:
            self.started += not getattr(self._depth, "inside", False)
            original(process)

        return start

    def _wrapping(self, original: Callable[[Any], Any]) -> Any:
        def iterate(loader: Any) -> Any:
            is_here = os.getpid() == self._process
            if self._is_over or not is_here or getattr(self._depth, "inside", False):
                return original(loader)
            seen, began = self._seen(loader), self._clock()
            if seen.latest is not None:
                self._close_step(seen, seen.latest, began)  # of an iterator that was left, as by `break`
            if self.is_done:
                self._stop()
            self._undo.put_back()  # another loop
            self._depth.inside = True  # fastdata's class calls torch's
            try:
                began = self._clock()
                inner = original(loader)
            finally:
                self._depth.inside = False
            seen.began_at = seen.began_at or began
            seen.latest = WatchedIterator(self.ask, seen, inner, made_s=self._clock() - began)
            return seen.latest

        return iterate

    def _seen(self, loader: Any) -> Seen:
        known = next((each for each in self.seen if each.loader is loader), None)
        if known is None:
            known = Seen(loader)
            self.seen.append(known)
        return known

    def take_what_there_is(self, seen: Seen) -> None:
        """Means of the steps of a program that ended before all could be timed, the first one left out."""
        if self.real is None:
            steps = seen.steps[1:] + self._timed_so_far or seen.steps
            self.real = Stretch.of(steps) if steps else None
        if self.repeated is None and len(self._repeated_so_far) > _WARMING:
            self.repeated = Stretch.of(self._repeated_so_far[_WARMING:])
        if not self.is_done and self.repeats:
            self.unseen.append(
                f"the program ended by itself, and {self.repeats} of its {seen.batches} batches were repeated ones: "
                "what it has saved was trained on fewer than without the doctor"
            )

    # ---- in the program's loop

    def ask(self, seen: Seen, iterator: WatchedIterator) -> Any:
        """The next batch for the program.

        Raises:
            StopIteration: the epoch has ended.
            Stopped: everything has been measured.
        """
        if self._is_over or os.getpid() != self._process:
            return next(iterator.inner)
        now = self._clock()
        self._close_step(seen, iterator, now)
        if self.is_done:
            self._stop()
        now = self._clock()
        if seen is self.main and self._repeats and self._delivery.kept is not None:
            if iterator.delivered >= min(iterator.length, seen.epoch):
                seen.epoch = iterator.delivered
                self._undo.put_back()
                raise StopIteration
            self._undo.note()
            self.repeats += 1
            batch, wait_s = self._delivery.next()
        else:
            batch = self._next_of(seen, iterator)
            wait_s = self._clock() - now + iterator.made_s
        iterator.made_s = 0.0
        if seen.batches == 0:
            seen.first_batch_s = self._clock() - seen.began_at
        seen.batches += 1
        iterator.delivered += 1
        if self.main is not None and self.main is not seen and seen.batches <= _GLANCED_AT and not is_compiled():
            self.look.glance()
        if seen is not self.main and self.main is not None and self.main.is_iterated:
            self._note_other(wait_s)
        else:
            iterator.is_out, iterator.wait_s, self._others = True, wait_s, 0
            self._marks.begin(self._clock())
        return batch

    def _next_of(self, seen: Seen, iterator: WatchedIterator) -> Any:
        try:
            batch = next(iterator.inner)
        except StopIteration:
            seen.epoch = iterator.delivered
            self._undo.put_back()  # another's, as the shorter of two in zip()
            raise
        if seen is self.main:
            self._batch = batch
            if self._delivery.wanted:
                self._delivery.keep(batch)
        return batch

    def _note_other(self, wait_s: float) -> None:
        """A batch of another loader within a step: one belongs to it, as with zip(); more are a validation's."""
        self._others += 1
        assert self.main is not None and self.main.latest is not None  # noqa: PT018
        if self._others > 1:
            self._marks.delivered_at = None  # a step that is not like the others
        elif self._marks.delivered_at is not None:
            self.main.latest.wait_s += wait_s
            self._marks.delivered_at += wait_s

    def _close_step(self, seen: Seen, iterator: WatchedIterator, asked_at: float) -> None:
        """The program has asked for the next batch, or left the iterator."""
        if not iterator.is_out:
            return
        iterator.is_out = False
        trained = self._marks.trains
        if self._marks.delivered_at is not None:
            self._end_step(seen, self._marks.end(asked_at, iterator.wait_s), trained)

    def _stop(self) -> NoReturn:
        self._stops += 1
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

    def _end_step(self, seen: Seen, step: Step, trained: bool) -> None:
        seen.trained += trained
        if self.main is None:
            seen.steps.append(step)
            waited_s = self._clock() - seen.began_at
            most = self.seconds * (_UNTRAINED_FIRST_TIMES if math.isinf(seen.epoch) else _UNTRAINED_TIMES)
            if trained or (len(seen.steps) >= _UNTRAINED_STEPS and waited_s > most):
                self.main = seen
                self._script_runs = self._script(seen)
                self._go_on(None)
            return
        if seen is not self.main and trained and not self.main.is_iterated:
            self._succeed(seen)
        if seen is self.main and self._script_runs is not None:
            if not self._repeats:
                self._timed_so_far.append(step)
            elif self.experiments.now is None:
                self._repeated_so_far.append(step)
            self._go_on(step)

    def _go_on(self, step: Step | None) -> None:
        """The script hears of a step, and says what is to be delivered next."""
        assert self._script_runs is not None
        try:
            self._repeats = next(self._script_runs) if step is None else self._script_runs.send(step)
            return
        except StopIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the program shall not end by what is done here
            self.unseen.append(f"measuring ended early: {in_words(error)}")
        self._script_runs, self.is_done = None, True
        self._undo.put_back()

    def _succeed(self, seen: Seen) -> None:
        """Some programs make a new loader for each epoch: it takes the place of the main one."""
        main = self.main
        assert main is not None
        if likeness(main.loader) == likeness(seen.loader):
            seen.batches, seen.trained = seen.batches + main.batches, seen.trained + main.trained
            seen.first_batch_s, seen.began_at, seen.steps = main.first_batch_s, main.began_at, main.steps
            seen.epoch = main.epoch
            self.seen.remove(main)
            self.main = seen

    # ---- what is done; each yield is a step: of a real batch (False) or of the one that was kept (True)

    def _script(self, seen: Seen) -> Generator[bool, Step, None]:
        if is_compiled():  # hooks would break compiled graphs
            self.unseen.append("the program compiles, so its steps were not looked at closely")
            self.look.note_compiled(self._marks.optimizers)
            yield False
        else:
            with self.look.looking():
                for _ in range(_LOOKED_AT):
                    yield False
                    self.look.steps += 1
        self.facts = self.look.facts(self._batch)
        sizes = [getattr(each, "batch_size", None) for each in (seen.loader.batch_sampler, seen.loader)]
        self.facts.batch_size = next(filter(None, sizes), self.facts.batch_size)  # which may be of an epoch's last
        self.facts.anomaly_mode |= self._marks.saw_anomaly_mode
        began, warm_s = self._clock(), 0.2 * self.seconds
        for _ in range(queued(seen.loader) + 1):
            yield False
            if self._clock() - began > warm_s and not ranks():
                break
        self.real = yield from self.experiments.timed(repeats=False, share=_REAL)
        if not seen.trained:
            return
        cpus, on_host = auto_threads(), self.facts.device == "cpu"
        if self._tries and on_host and seen.loader.num_workers and (self.real.cores or 0.0) > _BUSY * cpus:
            yield from self.experiments.fewer_threads(seen.loader, cpus, self.real)
        if (reason := self._why_not_repeat()) is not None:
            self.unseen.append(f"no batch was repeated: {reason}")
            return
        self._delivery.wanted = True
        yield False
        if self._delivery.kept is None:
            return
        if (reason := self._undo.why_not()) is not None:
            self.unseen.append(f"no batch was repeated: {reason}")
            return
        for _ in range(_WARMING):
            yield True  # the loader fills its queue
        self.repeated = yield from self.experiments.timed(repeats=True, share=_REPEATED)
        if self.facts.device == "cuda":
            self.facts.pin_ms, self.facts.copy_ms, self.facts.pageable_copy_ms = handover_ms(self._delivery.kept)
        if ranks() > 1:
            return
        if self._tries and self.real.wait_s > _WAITS * self.real.step_s:
            yield from self.experiments.other_loaders(seen.loader, self.real)
        for trial in trials_for(self.facts, self.look.models, tries=self._tries):
            yield from self.experiments.change(trial)

    def _why_not_repeat(self) -> str | None:
        assert self.main is not None
        if not is_plain(self.main.loader):
            return f"{type(self.main.loader).__name__} has an __iter__ of its own"
        length = self.main.latest.length if self.main.latest is not None else math.inf
        if math.isinf(min(length, self.main.epoch)):
            return "the length of an epoch is not known before its end"
        return None
