"""Watches a training program from inside of `next(loader)`, and takes its time.

Life cycle; any deviation is a bug:
  Begin    `watching()` wraps the iterators of torch's and fastdata's loaders that are made from then on.  What is
           delivered, and to whom, is as without.
  Main     the loader between whose batches there is a backward pass.  If none comes for a while: the one iterated.
  Script   then each request for one of its batches asks the script (`_script`) what to deliver: the next batch, or once
           more the same one.  Never more batches than the epoch has.
  Stop     at the end of the script the request raises `Stopped`, which ends the program; a program that ends earlier
           leaves what has been measured.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
import torch.utils.data
from torch.utils._pytree import tree_map_only

from fastdata.dataloader import loader as our_loaders
from fastdata.diagnosis.look import Look
from fastdata.diagnosis.marks import Marks
from fastdata.diagnosis.observation import Facts, Step, Stretch
from fastdata.diagnosis.trials import Trial, trials_for
from fastdata.run.report import cpu_seconds

__all__ = ["Seen", "Stopped", "Watch"]

_LOOKED_AT = 2  # steps
_FEWEST_TIMED = 3
_MOST_TIMED = 300
_REAL, _REPEATED, _TRIAL = 0.45, 0.25, 0.1  # shares of the time
_UNTRAINED_STEPS, _UNTRAINED_S = 20, 10.0  # after which nobody expects a backward pass any more
_MOST_STOPS = 20
_RANKS_TIMED = 20  # steps, where all ranks must do the same number


class Stopped(BaseException):
    """Ends a program of which everything has been measured."""


@dataclass
class Seen:
    """A loader that was iterated.

    Attributes:
        loader: itself.
        batches: delivered.
        trained: batches that were followed by a backward pass or an update.
        first_batch_s: seconds until the first one.
        steps: of all iterations so far, until the script begins.
    """

    loader: Any
    batches: int = 0
    trained: int = 0
    first_batch_s: float = math.nan
    steps: list[Step] = field(default_factory=list)
    began_at: float = 0.0


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
        self.trials: dict[str, tuple[float, float]] = {}
        self.unseen: list[str] = []
        self.look = Look()
        self.is_done = False
        self.when_ignored: Callable[[], None] | None = None  # by a program that catches everything and goes on
        self._stops, self._is_over = 0, False
        self._marks = Marks(clock)
        self._script_runs: Generator[bool, Step, None] | None = None
        self._repeats = False  # what is to be delivered next
        self._batch: Any = None  # of the main loader, the latest
        self._kept: Any = None
        self._keeps = False  # the next one is to be kept
        self._depth = threading.local()
        cpu_seconds()  # imports what it needs
        self._timed_so_far: list[Step] = []  # real steps since the script began

    # ---- around the program

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The program runs inside of this block."""
        with ExitStack() as stack:
            for owner in (torch.utils.data.DataLoader, our_loaders.StatelessDataLoader):
                if "__iter__" in vars(owner):
                    original = owner.__iter__
                    owner.__iter__ = self._wrapping(original)  # type: ignore[method-assign]
                    stack.callback(setattr, owner, "__iter__", original)
            stack.enter_context(self._marks.installed())
            try:
                yield
            finally:
                if self._script_runs is not None:
                    self._script_runs.close()  # leaves what it has switched on

    def _wrapping(self, original: Callable[[Any], Any]) -> Any:
        def iterate(loader: Any) -> Any:
            if self._is_over or getattr(self._depth, "inside", False):
                return original(loader)
            if self.is_done:
                self._stop()
            self._depth.inside = True  # fastdata's class calls torch's
            try:
                began = self._clock()
                inner = original(loader)
                return _WatchedIterator(self, self._seen(loader, began), inner)
            finally:
                self._depth.inside = False

        return iterate

    def _seen(self, loader: Any, began: float) -> Seen:
        same = next((each for each in self.seen if each.loader is loader), None)
        alike = same or next((each for each in self.seen if _likeness(each.loader) == _likeness(loader)), None)
        if alike is None:
            alike = Seen(loader, began_at=began)
            self.seen.append(alike)
        alike.loader = loader  # some programs make a new one for each epoch
        return alike

    def stretch_so_far(self, seen: Seen) -> Stretch | None:
        """Means of the steps of a program that ended before they could be timed, the first one left out."""
        steps = seen.steps[1:] + self._timed_so_far or seen.steps
        return Stretch.of(steps) if steps else None

    # ---- in the program's loop

    def ask(self, seen: Seen, iterator: _WatchedIterator) -> Any:
        """The next batch for the program.

        Raises:
            StopIteration: the epoch has ended.
            Stopped: everything has been measured.
        """
        asked_at = self._clock()
        trained = self._marks.trains
        if iterator.is_out and self._marks.delivered_at is not None:
            self._end_step(seen, self._marks.end(asked_at, iterator.wait_s), trained)
        iterator.is_out = False
        if self.is_done:
            self._stop()
        now = self._clock()
        if seen is self.main and self._repeats and self._kept is not None:
            if iterator.delivered >= iterator.length:
                raise StopIteration
            batch = _copy(self._kept)
            iterator.wait_s = 0.0
        else:
            batch = next(iterator.inner)
            iterator.wait_s = self._clock() - now
            if seen is self.main:
                self._batch = batch
                if self._keeps:  # before the program may change it
                    self._kept, self._keeps = _copy(batch), False
        if seen.batches == 0:
            seen.first_batch_s = self._clock() - seen.began_at
        seen.batches += 1
        iterator.delivered += 1
        iterator.is_out = True
        self._marks.begin(self._clock())
        return batch

    def _stop(self) -> NoReturn:
        self._stops += 1
        if self._stops > _MOST_STOPS and self.when_ignored is not None:
            self._is_over = True
            self.when_ignored()
        raise Stopped

    def _end_step(self, seen: Seen, step: Step, trained: bool) -> None:
        seen.trained += trained
        if self.main is None:
            seen.steps.append(step)
            waited_s = self._clock() - seen.began_at
            if trained or (len(seen.steps) >= _UNTRAINED_STEPS and waited_s > min(_UNTRAINED_S, self.seconds)):
                self.main = seen
                self._script_runs = self._script()
                self._repeats = next(self._script_runs)
        elif seen is self.main and self._script_runs is not None:
            if not self._repeats:
                self._timed_so_far.append(step)
            try:
                self._repeats = self._script_runs.send(step)
            except StopIteration:
                self._script_runs, self.is_done = None, True

    # ---- what is done; each yield is a step: of a real batch (False) or of the one that was kept (True)

    def _script(self) -> Generator[bool, Step, None]:
        with self.look.looking():
            for _ in range(_LOOKED_AT):
                yield False
                self.look.steps += 1
        self.facts = self.look.facts(self._batch)
        loader = self.main.loader if self.main is not None else None
        began, warm_s = self._clock(), 0.2 * self.seconds
        for _ in range(_queued(loader) + 1):
            yield False
            if self._clock() - began > warm_s and not _ranks():
                break
        self.real = yield from self._timed(repeats=False, share=_REAL)
        self._keeps = True
        yield False
        yield True  # the loader fills its queue
        yield True
        self.repeated = yield from self._timed(repeats=True, share=_REPEATED)
        if _ranks() > 1:
            return
        for trial in trials_for(self.facts, self.look.models, tries=self._tries):
            yield from self._try(trial)

    def _timed(self, *, repeats: bool, share: float) -> Generator[bool, Step, Stretch]:
        """Steps until a share of the time is over."""
        _finish_device_work()
        began, cpu_s, steps = self._clock(), cpu_seconds(), list[Step]()
        while not self._is_enough(steps, self._clock() - began, share):
            steps.append((yield repeats))
        at = self._clock()
        _finish_device_work()
        ended = self._clock()
        cores = (cpu_seconds() - cpu_s) / max(1e-9, ended - began)
        return Stretch.of(steps, extra_s=ended - at, cores=cores)

    def _is_enough(self, steps: list[Step], seconds: float, share: float) -> bool:
        if _ranks() > 1:
            return len(steps) >= _RANKS_TIMED
        if len(steps) >= _MOST_TIMED:
            return True
        return len(steps) >= _FEWEST_TIMED and seconds >= share * self.seconds

    def _try(self, trial: Trial) -> Generator[bool, Step, None]:
        """Steps without and with a change, in turn."""
        times: dict[bool, list[float]] = {False: [], True: []}
        kept = self._kept
        for changed in (True, False, True, False):
            with ExitStack() as stack:
                if changed:
                    try:
                        trial.enter(stack)
                    except Exception as error:  # noqa: BLE001 - a change that is not possible is no reason to end
                        self.unseen.append(f"{trial.key} could not be tried: {error}")
                        return
                self._kept = trial.batch(kept) if changed else kept
                yield True
                stretch = yield from self._timed(repeats=True, share=_TRIAL / 4)
                times[changed].append(stretch.step_s)
        self.trials[trial.key] = (min(times[False]), min(times[True]))


class _WatchedIterator:
    """Wraps an iterator of a loader; everything that is not iterating is the iterator's own."""

    def __init__(self, watch: Watch, seen: Seen, inner: Any) -> None:
        self._watch, self._seen, self.inner = watch, seen, inner
        self.is_out = False  # the program has a batch
        self.delivered = 0
        self.wait_s = 0.0
        self.length = _length(seen.loader, inner)

    def __iter__(self) -> _WatchedIterator:
        return self

    def __next__(self) -> Any:
        return self._watch.ask(self._seen, self)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # while it is made or copied
            raise AttributeError(name)
        return getattr(self.inner, name)


def _likeness(loader: Any) -> tuple[Any, ...]:
    """What two loaders have in common if one of them was made anew."""
    batch_size = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return type(loader), type(loader.dataset), _length(loader.dataset), batch_size, loader.num_workers


def _length(*known: Any) -> float:
    """Batches of an epoch, of the first that can tell."""
    for each in known:
        try:
            return len(each)
        except (TypeError, AttributeError, NotImplementedError):
            continue
    return math.inf


def _queued(loader: Any) -> int:
    """Batches that may be ready before a loader is asked."""
    workers, factor = getattr(loader, "num_workers", 0), getattr(loader, "prefetch_factor", None)
    return int(workers or 0) * int(factor or 2)


def _copy(batch: Any) -> Any:
    """A batch that the program may change as it likes."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), batch)


def _ranks() -> int:
    """Ranks of a distributed run; 0 if it is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_world_size())


def _finish_device_work() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
