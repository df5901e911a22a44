"""`fastdata.doctor(model, loader)`: the diagnosis of a model and a loader, in a program or a notebook."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fastdata.diagnosis.budget import Budget, budget_for
from fastdata.diagnosis.examine import examine_watched
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.verdict import Diagnosis, diagnose
from fastdata.errors import OptionError
from fastdata.order.random_states import GlobalStates

__all__ = ["doctor"]

_NAME = "fastdata.doctor()"


def doctor(
    model: nn.Module,
    loader: Iterable[Any],
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] | None = None,
    *,
    seconds: float = 20.0,
    budget: float | None = None,
) -> Diagnosis:
    """Says what holds the training of a model on a loader's batches back, and what to change.

    Trains a copy of the model on the loader's batches for a while, then loads without training (data only).  The model
    and the state of random generators are as before.

    Args:
        model: called with the first element of each batch, moved to the model's device, in the mode in which it is.
        loader: torch's DataLoader or fastdata's, whose batches are (images, labels, ...).
        loss: function of the model's output and the labels; None takes cross entropy for integer labels, else the mean
            of the output.
        optimizer: makes one for the copy's parameters; None takes SGD.
        seconds: approximate time for all steps that are timed.
        budget: time limit for all of it in seconds; None takes six times `seconds`, at least 120.

    Returns:
        The diagnosis: `verdict`, `cause`, `advice`, `to_dict()`; printed, it is the report of `fastdata doctor`.

    Raises:
        OptionError: the loader is none, has no batches, or `seconds` or `budget` is not positive.
        Exception: the model's, the loss's or the dataset's own.

    Example:
        >>> print(fastdata.doctor(model, loader))
    """
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise OptionError(f"{type(loader).__name__} is no DataLoader of torch's or fastdata's")
    if not seconds > 0:
        raise OptionError(f"seconds={seconds!r} is not positive")
    if budget is not None and not budget > 0:
        raise OptionError(f"budget={budget!r} is not positive")
    watch = LoopMonitor(seconds=seconds, budget=Budget(budget_for(seconds, budget)))
    own, states = copy.deepcopy(model), GlobalStates.now()
    generator = loader.generator.get_state() if loader.generator is not None else None
    found: list[Observation] = []
    watch.when_done = lambda: found.append(examine_watched(watch, _NAME))
    try:
        with watch.watching(), torch.random.fork_rng():
            trained = [each for each in own.parameters() if each.requires_grad]
            _train(own, loader, loss, (optimizer or _default_optimizer)(trained) if trained else None)
    except Stopped:
        pass
    finally:
        states.put_back()
        if loader.generator is not None and generator is not None:
            loader.generator.set_state(generator)
    seen = found[0] if found else examine_watched(watch, _NAME)
    if seen.is_interrupted:
        raise KeyboardInterrupt
    return diagnose(seen)


def _train(model: nn.Module, loader: Any, loss: Callable[[Any, Any], torch.Tensor] | None, optimizer: Any) -> None:
    """Trains epoch after epoch, until it is stopped."""
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    while True:
        batches = 0
        for batch in loader:
            batches += 1
            moved = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device, non_blocking=True), batch)
            images, labels = moved[:2] if isinstance(moved, list | tuple) and len(moved) > 1 else (moved, None)
            if optimizer is None:  # nothing of it is trained
                with torch.no_grad():
                    model(images)
                continue
            optimizer.zero_grad()
            made = model(images)
            if loss is None:
                loss = _loss_for(made, labels)
            loss(made, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if batches == 0:
            raise OptionError("the loader has no batches")


def _loss_for(made: Any, labels: Any) -> Callable[[Any, Any], torch.Tensor]:
    """Cross entropy for numbers of classes; else the mean of what the model made."""
    integers = isinstance(labels, torch.Tensor) and not labels.is_floating_point() and labels.dim() == 1
    if integers and isinstance(made, torch.Tensor) and made.dim() == 2:
        return lambda scores, classes: nn.functional.cross_entropy(scores, classes % scores.shape[1])
    return lambda scores, _: _first_tensor(scores).float().mean()


def _first_tensor(made: Any) -> torch.Tensor:
    for leaf in tree_leaves(made):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            return leaf
    raise OptionError(f"nothing that the model gives ({type(made).__name__}) depends on its parameters; pass a loss")


def _default_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)
