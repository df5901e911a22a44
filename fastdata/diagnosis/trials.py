"""Changes that can be made to a running program for a few steps, to see what they gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fastdata.diagnosis.observation import Facts

__all__ = ["Trial", "trials_for"]


@dataclass(frozen=True)
class Trial:
    """A change.

    Attributes:
        key: of the advice that proposes it.
        enter: makes it, and leaves on the stack what takes it back.
        batch: what is done to the batches that the program gets meanwhile.
    """

    key: str
    enter: Callable[[ExitStack], None]
    batch: Callable[[Any], Any] = lambda batch: batch


def trials_for(facts: Facts, models: Sequence[nn.Module], *, tries: bool) -> list[Trial]:
    """What may gain something; faults always, choices if `tries`."""
    found = []
    if facts.anomaly_mode:
        found.append(Trial("anomaly", _without_anomaly_mode))
    if facts.deterministic and tries:
        found.append(Trial("deterministic", _without_determinism))
    if not tries:
        return found
    if facts.zeroes_gradients:
        found.append(Trial("set_to_none", _with_gradients_of_none))
    if not facts.autocast and "float64" not in facts.dtypes:
        found.append(Trial("amp", lambda stack: _with_autocast(stack, facts.device)))
    if facts.convolutions and not facts.channels_last and not any(map(_is_in_channels_last, models)):
        found.append(Trial("channels_last", lambda stack: _with_channels_last(stack, models), _in_channels_last))
    if facts.device == "cuda" and not facts.cudnn_benchmark:
        found.append(Trial("cudnn_benchmark", _with_benchmark))
    return found


def _without_anomaly_mode(stack: ExitStack) -> None:
    checks = torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(False)
    stack.callback(torch.autograd.set_detect_anomaly, True, checks)


def _without_determinism(stack: ExitStack) -> None:
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    stack.callback(torch.use_deterministic_algorithms, strict, warn_only=warns)
    stack.callback(setattr, torch.backends.cudnn, "deterministic", cudnn)


def _with_gradients_of_none(stack: ExitStack) -> None:
    original = torch.optim.Optimizer.zero_grad
    torch.optim.Optimizer.zero_grad = lambda self, set_to_none=True: original(self)  # type: ignore[method-assign]
    stack.callback(setattr, torch.optim.Optimizer, "zero_grad", original)


def _with_autocast(stack: ExitStack, device: str) -> None:
    dtype = torch.bfloat16 if device != "cuda" or torch.cuda.is_bf16_supported() else torch.float16
    stack.enter_context(torch.autocast(device, dtype=dtype))


def _with_channels_last(stack: ExitStack, models: Sequence[nn.Module]) -> None:
    for model in models:
        model.to(memory_format=torch.channels_last)
        stack.callback(model.to, memory_format=torch.contiguous_format)


def _in_channels_last(batch: Any) -> Any:
    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return tree_map_only(torch.Tensor, laid_out, batch)


def _is_in_channels_last(model: nn.Module) -> bool:
    weights = [each for each in model.parameters() if each.dim() == 4 and not each.is_contiguous()]
    return any(each.is_contiguous(memory_format=torch.channels_last) for each in weights)


def _with_benchmark(stack: ExitStack) -> None:
    torch.backends.cudnn.benchmark = True
    stack.callback(setattr, torch.backends.cudnn, "benchmark", False)
