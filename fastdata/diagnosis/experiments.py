"""Steps of a watched program that are timed: as they are, with one batch repeated, and with something changed."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from fastdata.diagnosis.batch_replay import COPIED_AS_THEY_ARE, copied, over_and_over, queued, ranks
from fastdata.diagnosis.budget import Budget
from fastdata.diagnosis.cpu_use import CpuMeter
from fastdata.diagnosis.loading import loaders_to_try
from fastdata.diagnosis.observation import Step, Stretch
from fastdata.diagnosis.step_timer import device_use, finish_device_work
from fastdata.diagnosis.trials import Trial
from fastdata.errors import in_words

__all__ = ["Delivery", "Experiments"]

_FEWEST_TIMED, _MOST_TIMED = 3, 300  # steps
_RANKS_TIMED = 20  # steps, where all ranks must do the same number
_TRIAL = 0.1  # share of the time
_LONGEST_PERIOD = 64  # steps
_USE_EVERY = 10  # steps


class Delivery:
    """Source of the batches that a program gets in place of its loader's next one.

    Attributes:
        kept: the batch that is repeated; None before there is one.
        wanted: the loader's next batch is to be kept.

    Args:
        inside: `inside.inside` is True while a loader is iterated that is not the program's.
        limitations: list to which the reasons are added if a batch could not be delivered.
    """

    def __init__(self, inside: threading.local, limitations: list[str]) -> None:
        self._inside, self._limitations = inside, limitations
        self.kept: Any = None
        self.wanted = False
        self._other: Generator[Any, None, None] | None = None
        self._given: Any = None  # the copy that the program had last
        self._versions: list[tuple[torch.Tensor, int]] = []  # of its tensors, as they were given

    def keep(self, batch: Any) -> None:
        """Keeps a copy, before the program may change the batch."""
        self.wanted = False
        try:
            self.kept = copied(batch)
        except Exception as error:  # noqa: BLE001 - a batch may be anything
            self._limitations.append(f"no batch could be repeated, since it cannot be copied: {in_words(error)}")

    def feed_from(self, batches: Generator[Any, None, None] | None) -> None:
        """Delivers these batches from now on; None: the kept batch."""
        if self._other is not None:
            self._other.close()
        self._other = batches

    @property
    def is_fed(self) -> bool:
        """True while batches of another loader come."""
        return self._other is not None

    def next(self) -> tuple[Any, float]:
        """A batch, and the seconds that it was waited for."""
        if self._other is not None:
            began, self._inside.inside = time.perf_counter(), True
            try:
                return next(self._other), time.perf_counter() - began
            except Exception as error:  # noqa: BLE001 - the program knows nothing of this loader
                self._other = None
                self._limitations.append(f"another loader could not be tried: {in_words(error)}")
            finally:
                self._inside.inside = False
        return self._copy(), 0.0

    def _copy(self) -> Any:
        """Copy of the kept batch; the previous copy if nobody has changed it, since copying takes time."""
        source, given = self._given or (None, None)
        if source is self.kept and all(_is_as_given(*each) for each in self._versions):
            return tree_map_only(torch.Tensor, _itself, given)  # in new lists and dicts
        given = copied(self.kept)
        leaves = tree_leaves(given)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        plain = all(isinstance(leaf, COPIED_AS_THEY_ARE) for leaf in leaves)
        if not plain or any(tensor.is_inference() for tensor in tensors):
            self._given = None
            return given
        self._given, self._versions = (self.kept, given), [(tensor, tensor._version) for tensor in tensors]
        return tree_map_only(torch.Tensor, _itself, given)


def _is_as_given(tensor: torch.Tensor, version: int) -> bool:
    return tensor._version == version and not tensor.requires_grad


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class Experiments:
    """Generators of steps: each yields True for a repeated batch, or False for one of the loader, and gets the step.

    Attributes:
        times: seconds of a step (before, after) a change, by the key of the advice.
        now: the change that is made now; None for none.

    Args:
        delivery: source of the repeated batches.
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
        self.now: Trial | None = None

    def timed(self, *, repeats: bool, share: float) -> Generator[bool, Step, Stretch]:
        """Steps until a share of the time is over."""
        finish_device_work()
        began, meter, steps, uses = self._clock(), CpuMeter(), list[Step](), list[float]()
        while not self._is_enough(steps, self._clock() - began, share):
            steps.append((yield repeats))
            if len(steps) % _USE_EVERY == 1 and (share_used := device_use()) is not None:
                uses.append(share_used)
        updates = sum(step.update_s > 0 for step in steps)
        if updates and not repeats:
            self._period = min(_LONGEST_PERIOD, round(len(steps) / updates))
        at = self._clock()
        finish_device_work()
        ended = self._clock()
        use = meter.use()
        stretch = Stretch.of(steps, extra_s=ended - at, cores=use.own)
        stretch.others = use.others
        stretch.device_use = statistics.mean(uses) if uses else None
        return stretch

    def _is_enough(self, steps: list[Step], seconds: float, share: float) -> bool:
        if ranks() > 1:
            return len(steps) >= _RANKS_TIMED
        if steps and self._budget.is_past_for_steps():
            return True
        if len(steps) % self._period:  # where gradients of some steps are added up, one of them is longer
            return False
        if len(steps) >= _MOST_TIMED:
            return True
        return len(steps) >= _FEWEST_TIMED and seconds >= share * self._seconds

    def change(self, trial: Trial) -> Generator[bool, Step, None]:
        """Steps with a repeated batch, without and with a change, in turn."""
        found: dict[bool, list[Stretch]] = {False: [], True: []}
        kept = self._delivery.kept
        try:
            for changed in (True, False, True, False):
                with ExitStack() as stack:
                    if changed:
                        self.now = trial  # and still is, if the program ends by it
                        self._delivery.kept = trial.batch(kept)
                        trial.enter(stack)
                    yield True
                    found[changed].append((yield from self.timed(repeats=True, share=_TRIAL / 4)))
                self.now, self._delivery.kept = None, kept
                if self._budget.is_past_for_steps() and not found[False]:
                    self._limitations.append(self._budget.missed(f"{trial.key}, as a change that is tried"))
                    return
        except Exception as error:  # noqa: BLE001 - a change that is not possible is no reason to end
            self.now, self._delivery.kept = None, kept
            self._limitations.append(f"{trial.key} could not be tried: {in_words(error)}")
            return
        if self._train_alike(trial.key, found[False], found[True]):
            before, after = (min(stretch.step_s for stretch in found[changed]) for changed in (False, True))
            self.times[trial.key] = before, after / trial.batches

    def _train_alike(self, key: str, before: list[Stretch], after: list[Stretch]) -> bool:
        """False if steps with a change lack the backward pass: the program may pass over batches that fail."""
        shares = [sum(each.trained for each in found) / sum(each.steps for each in found) for found in (before, after)]
        if shares[1] < 0.9 * shares[0]:
            self._limitations.append(f"{key} could not be tried: the program did not train with it")
            return False
        return True

    def other_loaders(self, loader: Any, now: Stretch) -> Generator[bool, Step, None]:
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
                stretch = yield from self._once_filled(other, repeats=True)
                is_fed = self._delivery.is_fed
                self.now = None
            finally:
                self._delivery.feed_from(None)
            again = yield from self._once_filled(loader, repeats=False)  # the machine may have become quicker
            if is_fed and self._train_alike(key, [now, again], [stretch]):
                self.times[key] = min(now.step_s, again.step_s), stretch.step_s

    def _once_filled(self, loader: Any, *, repeats: bool) -> Generator[bool, Step, Stretch]:
        """Steps behind those that the loader has had batches ready for."""
        began = self._clock()
        for _ in range(queued(loader) + 1):
            yield repeats
            if self._clock() - began > _TRIAL * self._seconds:
                break
        return (yield from self.timed(repeats=repeats, share=_TRIAL))

    def fewer_threads(self, loader: Any, cpus: int, now: Stretch) -> Generator[bool, Step, None]:
        """Steps with the loader's own batches, and so few threads of torch that the loader has cores of its own."""
        before = torch.get_num_threads()
        fewer = max(1, math.ceil(cpus) - int(loader.num_workers))
        if fewer >= before:
            return
        torch.set_num_threads(fewer)
        try:
            for _ in range(2):
                yield False
            stretch = yield from self.timed(repeats=False, share=_TRIAL)
        finally:
            torch.set_num_threads(before)
        again = yield from self._once_filled(loader, repeats=False)
        if self._train_alike("torch_threads", [now, again], [stretch]):
            self.times["torch_threads"] = min(now.step_s, again.step_s), stretch.step_s
