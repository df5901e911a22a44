"""Decisions by the results of epochs: the best epoch, an early end, and rates that fall when nothing gets better.

All of it is computed from the list of results, which checkpoints keep, so a resumed run decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fastdata.errors import OptionError
from fastdata.train.options import TrainOptions
from fastdata.train.task import Task

__all__ = ["best_epoch", "check_metric", "is_out_of_patience", "plateau_factor"]

_SMALLER = ("loss", "error", "mse", "mae", "perplexity")  # in names of what should be small
# Results of an epoch that classifies; the last one with more than five classes.
_OF_CLASSIFYING = ("loss", "images_per_s", "wait_share", "val_loss", "val_accuracy", "val_accuracy_top5")
Entries = Sequence[Mapping[str, float]]


def check_metric(options: TrainOptions, task: Task | None, num_classes: int | None) -> None:
    """Raises OptionError if `best_metric` is no result of classifying; of other tasks they are known after an epoch."""
    known = _OF_CLASSIFYING if num_classes is None or num_classes > 5 else _OF_CLASSIFYING[:-1]
    classifies = task is None or (task.metrics is None and task.loss is None)
    if classifies and options.best_metric is not None and options.best_metric not in known:
        raise _no_result(options.best_metric, known)


def best_epoch(entries: Entries, options: TrainOptions) -> int:
    """Number of the epoch with the best value of `best_metric`; of equal ones the first.

    Raises:
        OptionError: the epochs have no such result.
    """
    values = [value if _smaller_is_better(options) else -value for value in _values(entries, options)]
    return min(range(len(values)), key=lambda epoch: (math.isnan(values[epoch]), values[epoch]))


def is_out_of_patience(entries: Entries, options: TrainOptions) -> bool:
    """True if `best_metric` has not become better for `patience` epochs, where that is asked for."""
    return options.patience > 0 and len(entries) - 1 - best_epoch(entries, options) >= options.patience


def plateau_factor(entries: Entries, options: TrainOptions) -> float:
    """Factor of the learning rates after these epochs with lr_scheduler="plateau", as of torch's ReduceLROnPlateau."""
    if options.lr_scheduler != "plateau":
        return 1.0
    stand_in = torch.optim.SGD([torch.zeros(())], lr=1.0)
    mode: Literal["min", "max"] = "min" if _smaller_is_better(options) else "max"
    schedule = ReduceLROnPlateau(stand_in, mode, options.lr_gamma, options.lr_patience)
    for value in _values(entries, options):
        schedule.step(value)
    return float(stand_in.param_groups[0]["lr"])


def _values(entries: Entries, options: TrainOptions) -> list[float]:
    name = options.best_metric or "val_loss"
    try:
        return [entry[name] for entry in entries]
    except KeyError:
        raise _no_result(name, entries[-1]) from None


def _no_result(name: str, known: Iterable[str]) -> OptionError:
    return OptionError(f"best_metric={name!r} is no result of an epoch; there are {', '.join(known)}")


def _smaller_is_better(options: TrainOptions) -> bool:
    """True if the best value is the smallest: of a loss or error, unless `best_is` says otherwise."""
    if options.best_is != "auto":
        return options.best_is == "smallest"
    return any(word in (options.best_metric or "val_loss") for word in _SMALLER)
