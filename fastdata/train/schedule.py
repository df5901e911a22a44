"""Learning rate schedules (and momentum schedules for onecycle and cyclic) as functions of the place in the run.

The place is counted in updates of this run and need not be an integer: a run that is resumed with another batch size or
number of processes may start between two of its own updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from fastdata.train.options import TrainOptions

__all__ = ["Schedule"]

_ONECYCLE = {"rises": 0.3, "first": 1 / 25, "last": 1 / 25 / 1e4}  # share of the updates; shares of the peak
_LOWEST_OF_CYCLIC = 0.1


class Schedule:
    """Sets the learning rates of an optimiser's parameter groups.

    Args:
        optimizer: its groups hold the peak learning rate.
        options: name and parameters of the schedule.
        updates_per_epoch: number of updates planned per epoch.
        own: makes a scheduler of torch's that sets the rates instead, for a number of updates.

    Attributes:
        place: updates done so far; the learning rates set are those of the next update.

    Source: the values equal those of torch's schedulers with these names (with LinearLR before them for the warm-up).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        options: TrainOptions,
        *,
        updates_per_epoch: int,
        own: Callable[[torch.optim.Optimizer, int], LRScheduler] | None = None,
    ) -> None:
        self.updates_per_epoch, self.total = updates_per_epoch, options.epochs * updates_per_epoch
        self._optimizer, self._options = optimizer, options
        self._peaks = [group["lr"] for group in optimizer.param_groups]
        self._momentum_range = _momentum_range(optimizer, options)
        self._lowest = options.lr_min / self._peaks[0] if self._peaks[0] else 0.0  # of the peak
        self.place = 0.0
        self._own = own(optimizer, self.total) if own is not None else None
        self.reduced = 1.0  # factor of what "plateau" has reduced the rates by
        self.go_to(0.0)

    def step(self, updates: float = 1.0) -> None:
        """Moves on by some updates, but never beyond the end, even if a loader has more batches than its length."""
        self.go_to(self.place + updates)
        if self._own is not None:
            self._own.step()

    def reduce(self, factor: float) -> None:
        """Sets the factor by which "plateau" has reduced the rates."""
        if factor != self.reduced:
            self.reduced = factor
            self.go_to(self.place)

    def own_state(self) -> dict[str, Any] | None:
        """The state of the task's own scheduler; None without one."""
        return dict(self._own.state_dict()) if self._own is not None else None

    def resume(self, place: float, own: dict[str, Any] | None) -> None:
        """Moves to a place, with the state that the task's own scheduler had there."""
        self.go_to(place)
        if self._own is not None and own is not None:
            self._own.load_state_dict(own)
            for group, rate in zip(self._optimizer.param_groups, self._own.get_last_lr(), strict=True):
                group["lr"] = rate

    def go_to(self, place: float) -> None:
        """Moves to a place in the run and sets its learning rates."""
        self.place = min(float(self.total), place)
        if self._own is not None:
            return
        share = self._share()
        for group, peak in zip(self._optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * share
            if self._momentum_range is not None:
                _set_momentum(group, self._momentum())

    def _share(self) -> float:
        """Learning rate at `place`, as a share of the peak."""
        options = self._options
        if options.lr_scheduler == "onecycle":
            rising, pct = self._phase()
            ends = (_ONECYCLE["first"], 1.0) if rising else (1.0, _ONECYCLE["last"])
            return _along_a_cosine(*ends, pct)
        epochs = self.place / self.updates_per_epoch
        if options.lr_scheduler == "cyclic":
            return _LOWEST_OF_CYCLIC + (1 - _LOWEST_OF_CYCLIC) * self._height()
        warmup = options.lr_warmup_epochs
        if epochs < warmup:
            return options.lr_warmup_decay + (1 - options.lr_warmup_decay) * epochs / warmup
        if options.lr_scheduler == "cosine":
            return _along_a_cosine(1.0, self._lowest, (epochs - warmup) / (options.epochs - warmup))
        if options.lr_scheduler == "step":
            drops = math.floor((epochs - warmup) / options.lr_step_size + 1e-9)  # 0.3 / 0.1 is a little below 3
            return float(options.lr_gamma**drops)
        return self.reduced

    def _momentum(self) -> float:
        """Falls while the rate grows."""
        assert self._momentum_range is not None
        low, high = self._momentum_range
        if self._options.lr_scheduler == "cyclic":
            return high - (high - low) * self._height()
        rising, pct = self._phase()
        return _along_a_cosine(high, low, pct) if rising else _along_a_cosine(low, high, pct)

    def _phase(self) -> tuple[bool, float]:
        """Phase of onecycle: (True if the rate rises, share of the phase that is over); the last update ends it."""
        total = max(2, self.total)
        turn = _ONECYCLE["rises"] * total - 1
        if turn > 0 and self.place <= turn:
            return True, self.place / turn
        return False, min(1.0, (self.place - turn) / (total - 1 - turn))

    def _height(self) -> float:
        """Height of the cyclic schedule: 0 at the lowest rate, 1 at the peak, linear between them."""
        halves = self.place / self.updates_per_epoch / self._options.lr_step_size
        return 1 - abs(halves % 2 - 1)


def _momentum_range(optimizer: torch.optim.Optimizer, options: TrainOptions) -> tuple[float, float] | None:
    """Lowest and highest momentum, or first beta; None if it stays constant.  0.9 gives torch's own defaults."""
    by_betas = "betas" in optimizer.defaults
    momentum = optimizer.defaults["betas"][0] if by_betas else options.momentum
    if momentum <= 0 or not (by_betas or "momentum" in optimizer.defaults):
        return None
    if options.lr_scheduler == "onecycle":
        return max(0.0, momentum - 0.05), min(momentum + 0.05, (1 + momentum) / 2)
    if options.lr_scheduler == "cyclic" and not by_betas:
        return max(0.0, momentum - 0.1), momentum
    return None


def _set_momentum(group: dict[str, Any], value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _along_a_cosine(begin: float, end: float, share: float) -> float:
    return end + (begin - end) * (1 + math.cos(math.pi * share)) / 2
