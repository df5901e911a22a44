"""Searches before training: the largest batch size that fits, and a good learning rate."""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastdata.errors import OptionError, TrainError
from fastdata.system import cuda
from fastdata.train.checkpoint_files import make_output_dir
from fastdata.train.model import set_switches
from fastdata.train.optim import scaled_lr
from fastdata.train.options import TrainOptions
from fastdata.train.plots import plot_rates
from fastdata.train.training import Training

__all__ = ["FoundLr", "find_batch_size", "find_lr", "largest_that_fits"]

_HEAD_ROOM = 0.9
_BATCHES_AHEAD = 3  # that the device prefetcher holds beside the one in use: copied ahead, and not freed yet
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "MIOPEN_STATUS_ALLOC")


def largest_that_fits(fits: Callable[[int], bool], *, start: int = 8, most: int = 65536) -> int:
    """The largest multiple of 8 for which `fits` is true, by doubling and bisection, less a tenth as a margin.

    Raises:
        TrainError: not even `start` fits.
    """
    if not fits(start):
        raise TrainError(f"not even a batch size of {start} fits into memory")
    good = start
    while good < most and fits(min(most, 2 * good)):
        good = min(most, 2 * good)
    bad = 2 * good
    while good < most and bad - good > max(8, good // 16):
        middle = (good + bad) // 16 * 8
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return max(start, int(good * _HEAD_ROOM) // 8 * 8)


def find_batch_size(model: nn.Module, options: TrainOptions, side: int, classes: int) -> int:
    """The largest batch size with which training fits into the GPU's memory, less a tenth as a margin.

    Raises:
        OptionError: the device is not a GPU; on a CPU the system would swap or kill the process.
    """
    device = options.torch_device()
    if device.type != "cuda":
        raise OptionError(
            f"find_batch_size needs a CUDA device, got device={device}: on a CPU the system would swap or kill the "
            "process"
        )

    set_switches(options)  # with which cuDNN takes other algorithms, and other memory for them

    def fits(size: int) -> bool:
        training = waiting = None
        try:
            training = Training(copy.deepcopy(model), options, batches_per_epoch=1, num_classes=classes)
            images = torch.zeros(size, 3, side, side, device=device)
            labels = torch.zeros(size, dtype=torch.int64, device=device)
            waiting = [images.clone() for _ in range(_BATCHES_AHEAD)]
            for _ in range(2):  # the second update has the optimiser's state, too
                training.learn((images, labels))
            cuda.synchronize(device)
            return True
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            return False
        finally:
            del training, waiting
            cuda.empty_cache()

    return largest_that_fits(fits)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """True for torch's error, and for those of libraries that allocate by themselves."""
    return isinstance(error, cuda.OutOfMemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY)


@dataclass(frozen=True, kw_only=True)
class FoundLr:
    """The result of a learning rate range test.

    Attributes:
        rates: the learning rates tried, increasing.
        losses: the smoothed loss at each.
        suggestion: value for the option lr (before lr_scaling): the learning rate where the loss falls fastest.
    """

    rates: list[float]
    losses: list[float]
    suggestion: float

    def __str__(self) -> str:
        return f"suggested peak learning rate: {self.suggestion:.2g} (where the loss falls fastest)"


def find_lr(
    model: nn.Module,
    loader: Iterable[Any],
    options: TrainOptions,
    *,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 100,
) -> FoundLr:
    """Trains a copy of the model while the learning rate grows exponentially, until the loss diverges.

    Writes lr.csv and, if matplotlib is installed, lr.png to output_dir.  The model itself is not changed.

    Raises:
        TrainError: the loss diverges within the first updates, or the loader has no batches.

    Source: Smith, "Cyclical learning rates for training neural networks", WACV 2017.
    """
    scaling = scaled_lr(options, world_size=1) / options.lr
    options = replace(
        options,
        lr_scaling="none",
        lr=low,
        lr_scheduler="constant",
        lr_warmup_epochs=0.0,
        resume=None,
        mixup_alpha=0.0,
        cutmix_alpha=0.0,
    )
    if options.output_dir is not None:
        make_output_dir(Path(options.output_dir))
    training = Training(copy.deepcopy(model), options, batches_per_epoch=steps)
    factor, rates, losses, smooth = (high / low) ** (1 / steps), [], [], 0.0
    training.model.train()
    for number, batch in enumerate(_endless(loader, steps)):
        rate = low * factor**number
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        loss = training.learn(training.checked(batch))
        smooth = 0.9 * smooth + 0.1 * loss.item()  # waits, on purpose: the search ends with the loss
        rates.append(rate)
        losses.append(smooth / (1 - 0.9 ** (number + 1)))
        if not math.isfinite(losses[-1]) or losses[-1] > 4 * min(losses):
            break
    if len(losses) < 5:
        raise TrainError(
            f"the loss diverged after {len(losses)} updates of the learning rate range test; start with a learning "
            f"rate below {low}"
        )
    found = FoundLr(rates=rates, losses=losses, suggestion=_steepest(rates, losses) / scaling)
    if options.output_dir is not None:
        folder = Path(options.output_dir)
        with (folder / "lr.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("lr", "loss"), *zip(found.rates, found.losses, strict=True)])
        plot_rates(found.rates, found.losses, found.suggestion, folder / "lr.png")
    return found


def _steepest(rates: list[float], losses: list[float]) -> float:
    """The rate where the smoothed loss falls most per step; the first fifth only warms up."""
    span = max(1, len(losses) // 20)
    falls = [losses[at] - losses[at + span] for at in range(len(losses) - span)]
    first = min(len(falls) - 1, len(losses) // 5)
    return rates[max(range(first, len(falls)), key=lambda at: falls[at])]


def _endless(loader: Iterable[Any], steps: int) -> Iterable[Any]:
    done = before = 0
    while done < steps:
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return
        if done == before:
            raise TrainError("the loader yields no batches")
        before = done
