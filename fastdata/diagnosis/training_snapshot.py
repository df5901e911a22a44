"""Snapshots and restores models, optimizers, scalers and random states around steps with a repeated batch."""

from __future__ import annotations

import gc
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fastdata.errors import in_words
from fastdata.order.random_states import GlobalStates
from fastdata.system import cuda
from fastdata.system.cpus import local_processes

__all__ = ["Undo"]

_TRAINED = (nn.Module, torch.optim.Optimizer, torch.amp.GradScaler)
_KNOWN_FOR_S = 5.0  # until the process is looked through for more of these
_MOST_OF_MEMORY = 0.5  # of what is available to a process, for copies


class Undo:
    """Restores a program's models and optimisers to the state in which they were noted.

    All modules and optimisers of the process are noted, whoever has them: averages of weights, teachers and losses are
    trained, too.

    Args:
        limitations: list to which the reasons are added if something cannot be put back.
    """

    def __init__(self, limitations: list[str]) -> None:
        self._limitations = limitations
        self._before: _Before | None = None
        self._found: weakref.WeakSet[Any] = weakref.WeakSet()
        self._looked_at = -math.inf
        self._is_told = False
        self._process = os.getpid()

    def why_not(self) -> str | None:
        """Notes everything as it is now; the reason if that is not possible."""
        try:
            trained = self._all_that_trains()
            size = sum(each.numel() * each.element_size() for each in _copied_tensors(trained))
            if size > _MOST_OF_MEMORY * psutil.virtual_memory().available / max(1, local_processes()):
                return f"a copy of the models takes {size / 1e9:.1f} GB, more than half of the memory that is left"
            self._before = self._before or _Before(trained)
        except Exception as error:  # noqa: BLE001 - of tensors of the program's own kind
            return f"the models cannot be copied: {in_words(error)}"
        return None

    def note(self) -> None:
        """Notes everything as it is now, if nothing has been noted since the last `put_back`."""
        if self._before is None and (reason := self.why_not()) is not None:
            self._tell(reason)

    def put_back(self) -> None:
        """Restores what was noted last."""
        if self._before is not None:
            before, self._before = self._before, None
            if failures := before.put_back():
                self._tell(failures[0])

    def before_saving(self, stack: ExitStack) -> None:
        """Wraps save functions to restore the state before each save, in place; undone when `stack` closes."""
        for owner, name in _savers():
            original = getattr(owner, name)
            setattr(owner, name, self._putting_back(original))
            stack.callback(setattr, owner, name, original)

    def _putting_back(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def saving(*given: Any, **named: Any) -> Any:
            if os.getpid() == self._process:
                self.put_back()
            return original(*given, **named)

        return saving

    def _tell(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._limitations.append(f"not all that repeated batches train could be put back: {reason}")

    def _all_that_trains(self) -> list[Any]:
        if time.monotonic() - self._looked_at > _KNOWN_FOR_S:
            self._found = weakref.WeakSet(each for each in gc.get_objects() if issubclass(type(each), _TRAINED))
            self._looked_at = time.monotonic()
        return list(self._found)


def _savers() -> Iterator[tuple[Any, str]]:
    """Functions that write tensors to files: safetensors is imported here, before a program takes them by name."""
    yield torch, "save"
    with suppress(ImportError):
        import safetensors.torch

        yield from ((safetensors.torch, name) for name in ("save", "save_file", "save_model"))


class _Before:
    """Parameters, their gradients, buffers, optimisers' states and loss scales, as they are when this is made.

    Copies lie in host memory: devices seldom have room for a second model.  Options of an optimiser (as its learning
    rate) are left alone: schedulers count the program's steps, and there are no more of these than without.

    Args:
        trained: modules, each with its own parameters and buffers, not those of the modules within it; optimisers, with
            the parameters that they update; and scalers of gradients.
    """

    def __init__(self, trained: list[Any]) -> None:
        self._held = [
            (place, name, tensor, _copy(tensor), _copy(tensor.grad)) for place, name, tensor in _held(trained)
        ]
        self._states = [
            (each, {parameter: _copied_state(state) for parameter, state in each.state.items()})
            for each in _optimizers_in(trained)
        ]
        scalers = [each for each in trained if isinstance(each, torch.amp.GradScaler)]
        self._scalers = [(each, each.state_dict()) for each in scalers if each.is_enabled()]
        self._random = GlobalStates.now()
        self._on_gpus = cuda.get_rng_state_all() if cuda.is_initialized() else []  # type: ignore[no-untyped-call]
        self._on_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None

    def put_back(self) -> list[str]:
        """Restores everything; parameters stay the same objects.  Returns the reasons if something was not restored."""
        failures = list[str]()
        for place, name, tensor, was, gradient in self._held:
            try:
                if place is not None:
                    if isinstance(place.get(name), torch.Tensor) and place[name].shape == was.shape:
                        _write(place[name], was)  # the program may have it in its hands, to save it
                    place[name] = tensor
                _write(tensor, was)
                if gradient is None:
                    tensor.grad = None
                elif tensor.grad is None:
                    tensor.grad = gradient.to(tensor.device)
                else:
                    _write(tensor.grad, gradient)
            except Exception as error:  # noqa: BLE001 - of tensors of the program's own kind
                failures.append(f"{name or 'a parameter'}: {in_words(error)}")
        for optimizer, states in self._states:
            for parameter in list(optimizer.state):
                if parameter in states:
                    _put_back_state(optimizer.state[parameter], states[parameter])
                else:
                    del optimizer.state[parameter]
        for scaler, state in self._scalers:
            scaler.load_state_dict(state)
        self._random.put_back()
        if self._on_gpus:
            cuda.set_rng_state_all(self._on_gpus)
        if self._on_mps is not None:
            torch.mps.set_rng_state(self._on_mps)
        return failures


def _optimizers_in(trained: Iterable[Any]) -> list[torch.optim.Optimizer]:
    """Optimizers that are completely made: one that is being made has no `state` yet."""
    return [each for each in trained if isinstance(each, torch.optim.Optimizer) and hasattr(each, "state")]


def _copied_tensors(trained: list[Any]) -> Iterator[torch.Tensor]:
    """Tensors that `_Before` copies, with their gradients."""
    for _, _, tensor in _held(trained):
        yield tensor
        if tensor.grad is not None:
            yield tensor.grad
    for each in tree_leaves([dict(one.state) for one in _optimizers_in(trained)]):
        if isinstance(each, torch.Tensor):
            yield each


def _held(trained: Iterable[Any]) -> list[tuple[dict[str, Any] | None, str, torch.Tensor]]:
    """Each tensor once, with the dictionary that has it, and its name there; buffers may be replaced by others."""
    found: dict[int, tuple[dict[str, Any] | None, str, torch.Tensor]] = {}
    for module in trained:
        if not isinstance(module, nn.Module):
            continue
        with suppress(AttributeError):  # one that is not made yet
            for name, parameter in module._parameters.items():
                if isinstance(parameter, torch.Tensor) and not isinstance(parameter, nn.UninitializedParameter):
                    found.setdefault(id(parameter), (None, name, parameter))
            for name, buffer in module._buffers.items():
                if isinstance(buffer, torch.Tensor) and not isinstance(buffer, nn.UninitializedBuffer):
                    found[id(buffer)] = (module._buffers, name, buffer)
    for optimizer in _optimizers_in(trained):
        for group in optimizer.param_groups:
            for each in group["params"]:
                found.setdefault(id(each), (None, "", each))
    return list(found.values())


def _copied_state(state: Any) -> dict[str, Any]:
    copied: dict[str, Any] = tree_map_only(torch.Tensor, _copy, dict(state))
    return copied


def _put_back_state(now: dict[str, Any], states: dict[str, Any]) -> None:
    """An optimiser's state of one parameter; tensors stay the same objects where they were some."""
    for key in now.keys() - states.keys():
        del now[key]
    for key, was in states.items():
        if isinstance(was, torch.Tensor) and isinstance(now.get(key), torch.Tensor):
            _write(now[key], was)
        else:
            now[key] = was


def _write(tensor: torch.Tensor, was: torch.Tensor) -> None:
    """Writes values in place, without autograd seeing it, since a program may have called its model already."""
    if not torch.equal(tensor.data, there := was.to(tensor.device)):
        tensor.data.copy_(there)


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
