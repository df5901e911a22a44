"""Looks closely at a few steps of a program: its models, what it switches on, and lines that wait for the device.

This slows the steps down, so they are not timed; afterwards everything is as it was.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from fastdata.diagnosis.loader_facts import ranks
from fastdata.diagnosis.observation import Facts, SyncPlace
from fastdata.diagnosis.replacing import replace
from fastdata.system.stack_level import place_of

__all__ = ["Look"]

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm2d)
_WITH_BIAS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_READS = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy", "nonzero")
_MOST_NAMED = 8
_SLOW_CUDA = ("CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING")
_TOOLS = 6  # of sys.monitoring
_LOOPS_S = 1e-3  # between two reads of one loop; what takes longer is other work
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = os.sep + "site-packages" + os.sep
_TORCHS = os.path.dirname(os.path.abspath(torch.__file__))


class Look:
    """Collects the facts of the steps that run inside of `looking()`."""

    def __init__(self) -> None:
        self.steps = 0
        self._models: list[nn.Module] = []  # that the program itself calls
        self._facts = Facts()
        self._depth = 0
        self._names: dict[int, str] = {}
        self._made_by: dict[int, tuple[nn.Module, Any]] = {}  # layer, and what it made, by the id of that
        self._before_norm: dict[int, tuple[nn.Module, Any]] = {}  # with outputs' autograd nodes
        self._biased: dict[int, str] = {}  # names of layers
        self._reads: dict[tuple[str, str], list[tuple[int, float, float]]] = {}  # (step, began, ended) by place
        self._thread = 0  # in which the program's loop runs; others, of loaders, may read what they like

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Steps that run inside are looked at."""
        self._thread = threading.get_ident()
        with ExitStack() as stack:
            stack.callback(torch_module.register_module_forward_pre_hook(self._before_forward).remove)
            stack.callback(torch_module.register_module_forward_hook(self._after_forward, always_call=True).remove)
            for name in _READS:
                replace(stack, torch.Tensor, name, self._noting_read(name))
            replace(stack, torch.Tensor, "to", self._noting_copy)
            replace(stack, torch.Tensor, "cuda", self._noting_copy)
            replace(stack, torch.optim.Optimizer, "zero_grad", self._noting_zero_grad)
            replace(stack, torch.autograd, "backward", self._before_backward)
            try:
                yield
            finally:
                self._depth = 0
                self._made_by.clear()
                self._before_norm.clear()

    def note_batch(self, batch: Any) -> None:
        """Notes the size of a batch that the program gets, and how it lies in memory, while steps are looked at."""
        if not self._thread:
            return
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        if not tensors:
            return
        facts, images = self._facts, [each for each in tensors if each.dim() == 4]
        facts.batch_size = facts.batch_size or len(tensors[0])
        facts.channels_last |= bool(images) and all(map(_is_in_channels_last, images))
        facts.pageable_copies |= any(each.device.type == "cpu" and not each.is_pinned() for each in tensors)

    def facts(self) -> Facts:
        """Returns the facts found, and lets go of the program's models."""
        facts = self._facts
        parameters = [each for model in self._models for each in model.parameters()]
        facts.models = sorted({_class_name(model) for model in self._models})[:_MOST_NAMED]
        facts.parameters = sum(each.numel() for each in parameters) or facts.parameters
        facts.dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in parameters} | set(facts.dtypes))
        facts.device = next((each.device.type for each in parameters), facts.device)
        facts.biases_before_norm = list(self._biased.values())
        layers = [layer for model in self._models for layer in model.modules() if isinstance(layer, nn.Conv2d)]
        facts.convolutions = len({id(layer) for layer in layers})
        facts.pageable_copies &= facts.device != "cpu"
        facts.channels_last |= any(map(_is_in_channels_last, parameters))
        self._take_settings(facts)
        facts.syncs = self._sync_places()
        self._models.clear()
        self._thread = 0
        return facts

    def note_compiled(self, optimizers: list[torch.optim.Optimizer]) -> None:
        """Notes the facts that the trained parameters give, without a look at the models; for compiled programs."""
        trained = [each for one in optimizers for group in one.param_groups for each in group["params"]]
        self._facts.compiled = True
        self._facts.parameters = sum(each.numel() for each in trained)
        self._facts.dtypes = sorted({str(each.dtype).removeprefix("torch.") for each in trained})
        self._facts.device = next((each.device.type for each in trained), "cpu")

    # ---- what is called

    def _before_forward(self, module: nn.Module, given: Any) -> None:
        if threading.get_ident() != self._thread:  # a replica of DataParallel
            return
        self._depth += 1
        if self._depth == 1 and not isinstance(module, nn.modules.loss._Loss):
            self._note_model(module, given)
        if isinstance(module, _NORMS) and given and isinstance(given[0], torch.Tensor):
            made = self._made_by.get(id(given[0]))
            takes_mean = module.training or not getattr(module, "track_running_stats", True)
            if made is not None and made[1]() is given[0] and takes_mean:
                # The mean of the batch goes, and with it the bias, if nobody else takes the output.
                self._before_norm[id(made[0])] = made[0], given[0].grad_fn

    def _after_forward(self, module: nn.Module, given: Any, made: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._depth = max(0, self._depth - 1)
        if isinstance(module, _WITH_BIAS) and module.bias is not None and isinstance(made, torch.Tensor):
            # Activations are not kept alive: a program may have no room for them.
            self._made_by[id(made)] = module, weakref.ref(made)
        if self._depth == 0:
            self._made_by.clear()

    def _before_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def noted(tensors: Any, *given: Any, **named: Any) -> Any:
            if self._before_norm and threading.get_ident() == self._thread:
                self._note_biases(tree_leaves(tensors))
            return original(tensors, *given, **named)

        return noted

    def _note_biases(self, tensors: list[Any]) -> None:
        """Notes biased layers whose output goes to a normalisation and nowhere else in the graph."""
        found = list(self._before_norm.values())
        self._before_norm.clear()
        roots = [each.grad_fn for each in tensors if isinstance(each, torch.Tensor)]
        for (layer, _), count in zip(found, _uses([node for _, node in found], roots), strict=True):
            if count == 1:
                name = self._names.get(id(layer), _class_name(layer))
                self._biased.setdefault(id(layer), f"{name} ({_class_name(layer)})")

    def _note_model(self, module: nn.Module, given: Any) -> None:
        facts = self._facts
        if not any(module is known for known in self._models) and next(module.parameters(), None) is not None:
            self._models.append(module)
            for name, layer in module.named_modules():
                self._names.setdefault(id(layer), name or _class_name(module))
        facts.data_parallel |= isinstance(module, nn.DataParallel)
        facts.compiled |= type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
        inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        facts.dtypes = sorted({*facts.dtypes, *(str(each.dtype).removeprefix("torch.") for each in inputs)})
        first = next(module.parameters(), None)
        facts.autocast |= torch.is_autocast_enabled(first.device.type if first is not None else "cpu")

    def _noting_read(self, name: str) -> Callable[[Any], Any]:
        def noting(original: Callable[..., Any]) -> Any:
            @wraps(original)
            def noted(tensor: Any, *given: Any, **named: Any) -> Any:
                began = time.perf_counter()
                try:
                    return original(tensor, *given, **named)
                finally:
                    place = _place_of_caller() if threading.get_ident() == self._thread else None
                    if place is not None:
                        self._reads.setdefault((place, name), []).append((self.steps, began, time.perf_counter()))

            return noted

        return noting

    def _noting_copy(self, original: Callable[..., Any]) -> Any:
        @wraps(original)
        def noted(tensor: Any, *given: Any, **named: Any) -> Any:
            made = original(tensor, *given, **named)
            if isinstance(made, torch.Tensor) and tensor.device.type == "cpu" != made.device.type and tensor.dim() > 0:
                self._facts.blocking_copies |= not named.get("non_blocking", False)
            return made

        return noted

    def _noting_zero_grad(self, original: Callable[..., Any]) -> Any:
        @wraps(original)
        def noted(optimizer: Any, set_to_none: bool = True) -> Any:
            self._facts.zeroes_gradients |= not set_to_none
            return original(optimizer, set_to_none)

        return noted

    # ---- what is switched on

    def _take_settings(self, facts: Facts) -> None:
        facts.anomaly_mode = torch.is_anomaly_enabled()
        facts.profiler = torch._C._autograd._profiler_enabled()
        facts.deterministic = torch.are_deterministic_algorithms_enabled()
        facts.cudnn_deterministic = torch.backends.cudnn.deterministic and facts.device == "cuda"
        facts.cudnn_benchmark = torch.backends.cudnn.benchmark
        facts.tf32 = _uses_tensor_cores()
        facts.tracers = _tracers()
        slowing = {
            "PYTHONDEVMODE": bool(sys.flags.dev_mode),
            "TORCH_DISTRIBUTED_DEBUG": ranks() > 1 and os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL",
        }
        slowing |= {name: facts.device == "cuda" and os.environ.get(name, "0") not in ("", "0") for name in _SLOW_CUDA}
        facts.debug_variables = [name for name, is_on in slowing.items() if is_on]
        facts.torch_threads = torch.get_num_threads()

    def _sync_places(self) -> list[SyncPlace]:
        """The places at which values are read in most steps, those that cost most first."""
        steps = max(1, self.steps)
        found = []
        for (place, name), reads in self._reads.items():
            if len({step for step, _, _ in reads}) < steps:  # now and then is as it should be
                continue
            blocked_s = sum(ended - began for _, began, ended in reads) / steps
            gaps = (later[1] - earlier[2] for earlier, later in pairwise(reads) if earlier[0] == later[0])
            span_s = blocked_s + sum(gap for gap in gaps if gap < _LOOPS_S) / steps
            calls = "bool(tensor)" if name == "__bool__" else f".{name.strip('_')}()"
            found.append(SyncPlace(place, calls, len(reads) / steps, blocked_s, span_s))
        return sorted(found, key=lambda each: -each.span_s)[:_MOST_NAMED]


def _uses(nodes: list[Any], roots: list[Any]) -> list[int]:
    """Number of uses of each node's output within an autograd graph."""
    counts = {id(node): 0 for node in nodes}
    seen, left = set(roots), [root for root in roots if root is not None]
    while left:
        for node, _ in left.pop().next_functions:
            if id(node) in counts:
                counts[id(node)] += 1
            if node is not None and node not in seen:
                seen.add(node)
                left.append(node)
    return [counts[id(node)] for node in nodes]


def _place_of_caller() -> str | None:
    """FILE:LINE of the program's line that reads, not of a library in between; None if torch or fastdata do."""
    frame: Any = sys._getframe(2)
    if frame.f_code.co_filename.startswith((_TORCHS, _OURS)):
        return None
    own = frame
    while own is not None and _LIBRARIES in own.f_code.co_filename:
        own = own.f_back
    own = own if own is not None and not own.f_code.co_filename.startswith((_TORCHS, _OURS)) else frame
    return place_of(own)


def _is_in_channels_last(tensor: torch.Tensor) -> bool:
    """True if it is so, and not at the same time contiguous, as with one channel."""
    four = tensor.dim() == 4 and not tensor.is_contiguous()
    return four and tensor.is_contiguous(memory_format=torch.channels_last)


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


def _uses_tensor_cores() -> bool:
    """True if float32 matrices may be multiplied with less precision."""
    try:
        return torch.get_float32_matmul_precision() != "highest" or torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch 2.9 has another way, and refuses this one where that was used
        return str(getattr(torch.backends.cuda.matmul, "fp32_precision", "")) == "tf32"


def _tracers() -> list[str]:
    """Names of the tools that Python calls for each line or function: debuggers, coverage, profilers."""
    found = [each for each in (sys.gettrace(), sys.getprofile()) if each is not None]
    names = [f"{getattr(each, '__module__', None) or type(each).__module__}" for each in found]
    monitoring = getattr(sys, "monitoring", None)  # Python 3.12
    if monitoring is not None:
        tools = ((number, monitoring.get_tool(number)) for number in range(_TOOLS))
        names += [str(name) for number, name in tools if name is not None and monitoring.get_events(number)]
    return sorted(set(names))
