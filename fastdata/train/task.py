"""Task: one's own loss, metrics, optimiser, schedule and form of a batch, as functions.

Without any of them images are classified: a batch is (images, labels), the model returns one value per class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from fastdata.errors import TrainError

__all__ = ["Task", "as_pair", "classified", "count_samples", "moved"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """The parts of a training that are one's own; each that is None is that of classifying images.

    A batch is whatever the loader yields, with its tensors on the device: nested tuples, lists, dicts.  `model` is what
    is called for the forward pass: the module, compiled and wrapped as the options say, in validation the module or the
    average of its weights.

    Attributes:
        loss: `loss(model, batch)` does the forward pass and returns the mean loss of the batch's samples, a scalar
            tensor.  Called under autocast.  Mixup and cutmix are for batches of (images, labels) only.
        metrics: `metrics(model, batch)` returns what to know of a batch in validation, by name: for each a tensor with
            a value per sample, or the mean over the batch, a scalar.  The result of an epoch has their means over all
            samples of all processes as val_NAME.  None gives the loss alone, where `loss` is given.
        count: `count(batch)` returns the number of its samples; None takes the length of a tensor
            in it, or of the list that it begins with.
        optimizer: `optimizer(model)` returns a torch optimiser, instead of the one that the options name.
        scheduler: `scheduler(optimizer, updates)` returns one of torch's schedulers for a run of so many updates, which
            is stepped after each; the options' schedule is not used.
        log: `log(values, update)` is called on rank 0 with what goes to a log: losses, rates and speed every
            `print_freq` updates, results by "epoch/NAME" after each epoch.  Weights & Biases:
            `lambda values, update: wandb.log(values, step=update)`.
    """

    loss: Callable[[Any, Any], torch.Tensor] | None = None
    metrics: Callable[[Any, Any], Mapping[str, torch.Tensor | float]] | None = None
    count: Callable[[Any], int] | None = None
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    scheduler: Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler] | None = None
    log: Callable[[dict[str, float], int], object] | None = None


def as_pair(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of (images, labels).

    Raises:
        TrainError: it is none.
    """
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(each, torch.Tensor) for each in batch):
        return batch[0], batch[1]
    kind = type(batch).__name__
    if isinstance(batch, tuple | list):
        kind += f" of {', '.join(type(each).__name__ for each in batch)}"
    raise TrainError(
        f"the loader yields a {kind}; it must yield two tensors, (images, labels): see collate_fn, or pass "
        "task=Task(loss=...) for batches of another form"
    )


def count_samples(batch: Any) -> int:
    """Number of samples in a batch: the length of a tensor in it, or of the list that it begins with.

    Raises:
        TrainError: there is neither.
    """
    parts = (
        list(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else [batch]
    )
    for part in parts:
        if isinstance(part, torch.Tensor) and part.dim():
            return len(part)
    if parts and isinstance(parts[0], tuple | list):  # of images that differ in size, as detection has them
        return len(parts[0])
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            return len(leaf)
    raise TrainError(f"how many samples a {type(batch).__name__} has is not known; pass task=Task(count=...)")


def moved(batch: Any, device: torch.device, *, channels_last: bool) -> Any:
    """A batch with all its tensors on a device, those of four dimensions in the given memory format.

    Nothing is copied of what is there already.
    """

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        layout = torch.channels_last if channels_last and leaf.dim() == 4 else torch.preserve_format
        return leaf.to(device, non_blocking=True, memory_format=layout)

    return tree_map(move, batch)


def classified(model: Any, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loss, accuracy and, with more than five classes, top-5 accuracy of each image: {"loss": (N,), ...}."""
    images, labels = batch
    outputs = model(images)
    found = {
        "loss": nn.functional.cross_entropy(outputs.float(), labels, reduction="none"),
        "accuracy": outputs.argmax(1) == labels,
    }
    if outputs.shape[1] > 5:
        found["accuracy_top5"] = (outputs.topk(5, 1).indices == labels[:, None]).any(1)
    return found
