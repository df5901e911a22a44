"""Validation: the mean of each metric over all samples of all processes, each sample counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fastdata.errors import TrainError
from fastdata.train.training import Training

__all__ = ["evaluate"]

# Values per sample are summed in whole multiples of 1/_UNITS: that is exact, whatever the order and the batches.
_UNITS = 2.0**28


def evaluate(
    model: nn.Module, loader: Iterable[Any], *, training: Training, is_stopped: Callable[[], bool] = lambda: False
) -> dict[str, float]:
    """Means of the task's metrics over all samples of all processes, each sample counted once.

    Args:
        model: the model to validate; its training mode is restored afterwards.
        loader: yields batches of this process's share of the samples, without padding.
        training: gives device, precision, ranks and task.
        is_stopped: asked after each batch; if it says so on any process, there is no result.

    Returns:
        The means by name: of classification "val_loss", "val_accuracy" and, with more than five classes,
        "val_accuracy_top5" (0 to 1); empty if it was stopped.

    Raises:
        TrainError: there are no samples, or a metric is neither a value per sample nor a scalar.
    """
    was_training = model.training
    model.eval()
    sums: dict[str, torch.Tensor] = {}  # on the device, in units
    counts: Counter[str] = Counter()  # samples, by metric
    stopped = False
    with torch.inference_mode():
        for batch in map(training.checked, loader):
            count = training.count(batch)
            with training.autocast():
                values = training.metrics(model, training.to_device(batch))
            for name, value in _summed(values, count, training).items():
                sums[name] = sums[name] + value if name in sums else value
                counts[name] += count
            if stopped := is_stopped():
                break
    model.train(was_training)
    names = training.ranks.union(sums)
    zero = torch.zeros((), dtype=training.sum_dtype, device=training.device)
    own = torch.stack([*(sums.get(name, zero) for name in names), zero])
    known = [*(counts[name] for name in names), float(stopped)]
    table = torch.stack([own, torch.tensor(known, dtype=training.sum_dtype, device=training.device)], dim=1)
    *rows, (_, any_stopped) = training.ranks.sum(table).tolist()
    if any_stopped:
        return {}
    if not any(count for _, count in rows):
        raise TrainError("the validation loader has no images; pass None for no validation")
    return {f"val_{name}": total / _UNITS / count for name, (total, count) in zip(names, rows, strict=True)}


def _summed(values: Mapping[str, Any], count: int, training: Training) -> dict[str, torch.Tensor]:
    """Sums of a batch's values over its samples, in units, on the device."""
    sums = {}
    for name, value in values.items():
        given = torch.as_tensor(value, device=training.device).detach()
        if given.dim() > 1 or (given.dim() == 1 and len(given) != count):
            raise TrainError(
                f"the metric {name!r} has the shape {tuple(given.shape)} for a batch of {count} samples; give a value "
                f"per sample, ({count},), or their mean"
            )
        total = (given.to(training.sum_dtype) * _UNITS).round()
        sums[name] = total.sum() if given.dim() else total * count
    return sums
