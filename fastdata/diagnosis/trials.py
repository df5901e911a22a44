"""Changes that can be made to a running program for a few steps, to see what they gain."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fastdata.diagnosis.observation import TENSOR_CORES_WANT, Facts
from fastdata.diagnosis.replacing import replace
from fastdata.system import cuda

__all__ = ["Trial", "trials_for"]

_OF_ANY_SIZE = (torch.Tensor, str, bytes, int, float, bool, complex, type(None))  # what a batch of samples may hold


@dataclass(frozen=True)
class Trial:
    """A change to try for some steps.

    Attributes:
        key: key of the advice that proposes it.
        enter: makes the change, and leaves on the stack what takes it back.
        batch: transforms the batches that the program gets meanwhile.
        batches: number of the program's own batches that such a batch stands for.
    """

    key: str
    enter: Callable[[ExitStack], None]
    batch: Callable[[Any], Any] = lambda batch: batch
    batches: float = 1.0


def trials_for(facts: Facts, models: Sequence[nn.Module], *, tries: bool) -> list[Trial]:
    """Trials of changes that may gain something: faults always, choices if `tries`."""
    found = []
    if facts.anomaly_mode:
        found.append(Trial("anomaly", _without_anomaly_mode))
    if facts.tracers:
        found.append(Trial("tracing", _without_tracing))
    if (facts.deterministic or facts.cudnn_deterministic) and tries:
        found.append(Trial("deterministic", _without_determinism))
    if not tries:
        return found
    if facts.zeroes_gradients:
        found.append(Trial("set_to_none", _with_gradients_of_none))
    if not facts.autocast and not facts.compiled and facts.dtypes == ["float32"]:
        found.append(Trial("amp", lambda stack: _with_autocast(stack, facts.device)))
    if facts.convolutions and not facts.channels_last:
        found.append(Trial("channels_last", lambda stack: _with_channels_last(stack, models), _in_channels_last))
    if facts.device == "cuda" and not facts.cudnn_benchmark:
        found.append(Trial("cudnn_benchmark", _with_benchmark))
    if facts.device == "cuda" and not facts.tf32 and not facts.autocast and "float32" in facts.dtypes:
        found.append(Trial("tf32", _with_tensor_cores))
    size = facts.batch_size
    if facts.device == "cuda" and size % TENSOR_CORES_WANT:
        wanted = TENSOR_CORES_WANT * math.ceil(size / TENSOR_CORES_WANT)
        found.append(_with_batches_of("batch_size", size, wanted))
    if size and not facts.compiled and _has_room(facts.device):
        found.append(_with_batches_of("larger_batches", size, 2 * size))
    if not facts.compiled and models:
        found.append(Trial("compile", partial(_with_compiled, models=models, known={})))
    return found


def _has_room(device: str) -> bool:
    """True if twice as much as the program has now would fit into memory, with some to spare."""
    if device == "cuda":
        free, _ = cuda.mem_get_info()
        reserved = cuda.memory_reserved() - cuda.memory_allocated()
        return bool(free + reserved > 1.25 * cuda.max_memory_allocated())
    return bool(psutil.virtual_memory().available > 2 * psutil.Process().memory_info().rss)


def _with_batches_of(key: str, size: int, wanted: int) -> Trial:
    """Batches of another size, made of the same samples; an epoch's last one becomes larger by the same ratio."""

    def resized(batch: Any) -> Any:
        leaves = tree_leaves(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        samples = min((len(tensor) for tensor in tensors), default=0)
        if not 0 < samples <= size or not all(len(tensor) == samples for tensor in tensors):
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors) or "no tensors"
            raise ValueError(f"a batch ({shapes}) is not {size} samples, one after the other")
        if not all(isinstance(leaf, _OF_ANY_SIZE) for leaf in leaves):
            raise ValueError("a batch holds objects that may depend on its size")
        rows = torch.arange(wanted * samples // size) % samples
        return tree_map_only(torch.Tensor, lambda each: each[rows.to(each.device)] if each.dim() else each, batch)

    return Trial(key, lambda _: None, resized, wanted / size)


def _with_compiled(stack: ExitStack, models: Sequence[nn.Module], known: dict[int, Any]) -> None:
    """Compiles the models' calls; `known` holds those compiled in the turn before, by the model's number."""
    import torch._dynamo  # slow to import

    graphs = torch._dynamo.utils.counters["stats"]  # by which `is_compiled` knows what the program itself compiles
    stack.callback(graphs.__setitem__, "unique_graphs", graphs["unique_graphs"])
    stack.enter_context(torch._dynamo.config.patch(suppress_errors=True))  # then they compute as before
    for number, model in enumerate(models):
        if number not in known:
            model.compile()
            known[number] = model._compiled_call_impl
        model._compiled_call_impl = known[number]
        stack.callback(setattr, model, "_compiled_call_impl", None)


def _without_anomaly_mode(stack: ExitStack) -> None:
    """Switches anomaly mode off, also if the program switches it on in each step."""
    stack.callback(torch.set_anomaly_enabled, torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    torch.set_anomaly_enabled(False)
    replace(stack, torch, "set_anomaly_enabled", lambda _: lambda *_, **__: None)


def _without_tracing(stack: ExitStack) -> None:
    stack.callback(sys.settrace, sys.gettrace())
    stack.callback(sys.setprofile, sys.getprofile())
    sys.settrace(None)
    sys.setprofile(None)


def _without_determinism(stack: ExitStack) -> None:
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn.deterministic
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False
    stack.callback(torch.use_deterministic_algorithms, strict, warn_only=warns)
    stack.callback(setattr, torch.backends.cudnn, "deterministic", cudnn)


def _with_gradients_of_none(stack: ExitStack) -> None:
    replace(stack, torch.optim.Optimizer, "zero_grad", lambda original: lambda self, set_to_none=True: original(self))


def _with_autocast(stack: ExitStack, device: str) -> None:
    dtype = torch.bfloat16 if device != "cuda" or cuda.is_bf16_supported() else torch.float16
    stack.enter_context(torch.autocast(device, dtype=dtype))


def _with_channels_last(stack: ExitStack, models: Sequence[nn.Module]) -> None:
    for model in models:
        model.to(memory_format=torch.channels_last)
        stack.callback(model.to, memory_format=torch.contiguous_format)


def _in_channels_last(batch: Any) -> Any:
    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return tree_map_only(torch.Tensor, laid_out, batch)


def _with_tensor_cores(stack: ExitStack) -> None:
    stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")


def _with_benchmark(stack: ExitStack) -> None:
    torch.backends.cudnn.benchmark = True
    stack.callback(setattr, torch.backends.cudnn, "benchmark", False)
