"""What steps with a repeated batch train is put back, so that a program keeps what its own batches have made of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from fastdata.errors import in_words
from fastdata.order.random_states import GlobalStates

__all__ = ["Undo"]


class Undo:
    """Puts back what a program's models and optimisers were when it was noted.

    Args:
        unseen: told of what cannot be put back.
    """

    def __init__(self, unseen: list[str]) -> None:
        self._unseen, self._is_possible = unseen, True
        self._before: _Before | None = None

    def note(self, models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Everything as it is now, if nothing has been noted since it was put back."""
        if self._before is None and self._is_possible:
            try:
                self._before = _Before(models, optimizers)
            except Exception as error:  # noqa: BLE001 - of tensors of the program's own kind
                self._fail(error)

    def put_back(self) -> None:
        """What was noted last."""
        if self._before is not None:
            before, self._before = self._before, None
            try:
                before.put_back()
            except Exception as error:  # noqa: BLE001 - the same
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._is_possible = False
        self._unseen.append(f"what a repeated batch trains could not be put back: {in_words(error)}")


class _Before:
    """Parameters, their gradients, buffers, and the optimisers' states, as they are when this is made.

    Copies lie in host memory: devices seldom have room for a second model.  What an optimiser is told (as its learning
    rate) is left alone: schedulers count the program's steps, and there are no more of these than without.

    Args:
        models: their parameters and buffers.
        optimizers: their states, and the parameters that they update.
    """

    def __init__(self, models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> None:
        models, self._optimizers = list(models), list(optimizers)
        kept = [each for model in models for each in (*model.parameters(), *model.buffers())]
        kept += [each for one in self._optimizers for group in one.param_groups for each in group["params"]]
        self._tensors = [(each, _copy(each), _copy(each.grad)) for each in {id(each): each for each in kept}.values()]
        self._states = [
            {parameter: {key: _copy(value) for key, value in state.items()} for parameter, state in one.state.items()}
            for one in self._optimizers
        ]
        self._random = GlobalStates.now()
        self._on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything is as it was; tensors stay the same objects."""
        for tensor, was, gradient in self._tensors:
            tensor.copy_(was)
            if gradient is None:
                tensor.grad = None
            elif tensor.grad is None:
                tensor.grad = gradient.to(tensor.device)
            else:
                tensor.grad.copy_(gradient)
        for one, states in zip(self._optimizers, self._states, strict=True):
            for parameter in list(one.state):
                if parameter not in states:
                    del one.state[parameter]
                    continue
                now = one.state[parameter]
                for key, was in states[parameter].items():
                    if isinstance(was, torch.Tensor) and isinstance(now.get(key), torch.Tensor):
                        now[key].copy_(was)
                    else:
                        now[key] = was
        self._random.put_back()
        if self._on_devices:
            torch.cuda.set_rng_state_all(self._on_devices)


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
