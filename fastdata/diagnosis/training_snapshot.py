"""A snapshot of what a program trains: taken before changes are tried on it, restored before the program is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fastdata.system.cpus import local_processes

__all__ = ["TrainingSnapshot"]

_MOST_OF_MEMORY = 0.5  # of what is available to a process, for copies


class TrainingSnapshot:
    """Parameters, buffers and optimizer states, as they are when this is made.

    Copies lie in host memory: devices seldom have room for a second model.

    Args:
        models: modules that the program calls, each with what is within it.
        optimizers: those that have made an update; parameters that no model has are copied by them.

    Raises:
        MemoryError: the copies would take more than half of the memory that is left.
    """

    def __init__(self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
        states = [model.state_dict() for model in models]
        optimizer_states = [optimizer.state_dict() for optimizer in optimizers]
        parameters = [each for one in optimizers for group in one.param_groups for each in group["params"]]
        held = {id(each): each for each in tree_leaves([states, optimizer_states, parameters])}
        size = sum(each.nbytes for each in held.values() if isinstance(each, torch.Tensor))
        if size > _MOST_OF_MEMORY * psutil.virtual_memory().available / max(1, local_processes()):
            raise MemoryError(f"a copy of the models takes {size / 1e9:.1f} GB, more than half of the memory left")
        self._models = [(model, _copied(state)) for model, state in zip(models, states, strict=True)]
        self._optimizers = [(each, _copied(state)) for each, state in zip(optimizers, optimizer_states, strict=True)]
        self._parameters = [(each, _copied(each)) for each in parameters]

    def restore(self) -> None:
        """Writes everything back in place: parameters stay the same objects.

        Raises:
            Exception: a model or an optimizer does not take its own state, as `load_state_dict` does.
        """
        with torch.no_grad():
            for parameter, was in self._parameters:
                parameter.copy_(was)
            for model, state in self._models:
                model.load_state_dict(state)
            for optimizer, state in self._optimizers:
                optimizer.load_state_dict(state)


def _copied(state: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
