"""Times layers and models on their own, once the program has ended: with and without what seems needless."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from fastdata.system import cuda

__all__ = ["bias_cost_s", "eval_ms", "float64_slowdown", "is_in_channels_last"]

_EVAL_ROUNDS, _MATRIX_ROUNDS = 3, 3
_FEWEST_PAIRS, _MOST_PAIRS, _BIAS_S = 5, 30, 0.6  # of calls of a layer with and without its bias, and seconds for them


def is_in_channels_last(tensor: torch.Tensor) -> bool:
    """True if it is so, and not at the same time contiguous, as with one channel."""
    four = tensor.dim() == 4 and not tensor.is_contiguous()
    return four and tensor.is_contiguous(memory_format=torch.channels_last)


def bias_cost_s(layer: nn.Module, like: torch.Tensor) -> float:
    """Seconds that a layer's bias takes, forward and backward: the median of pairs with and without it.

    Args:
        layer: a layer with weight and bias.
        like: tensor like its input, on any device.
    """
    costs: list[float] = []
    given = torch.ones_like(like, device=next(layer.parameters()).device)
    bias, deadline = layer.bias, time.perf_counter() + _BIAS_S
    with torch.enable_grad():
        while len(costs) < _FEWEST_PAIRS or (len(costs) < _MOST_PAIRS and time.perf_counter() < deadline):
            took = {}
            for has_bias in (len(costs) % 2 == 0, len(costs) % 2 == 1):
                setattr(layer, "bias", bias if has_bias else None)  # noqa: B010 - a module's own setattr
                try:
                    took[has_bias] = _seconds_of(layer, given.detach().requires_grad_())
                finally:
                    setattr(layer, "bias", bias)  # noqa: B010
            costs.append(took[True] - took[False])
    return max(0.0, statistics.median(costs))


def _seconds_of(layer: nn.Module, given: torch.Tensor) -> float:
    wanted = [given, *(each for each in layer.parameters() if each.requires_grad)]
    _wait_for(given.device)
    began = time.perf_counter()
    made = layer.forward(given)
    torch.autograd.grad(made, wanted, torch.ones_like(made))
    _wait_for(given.device)
    return time.perf_counter() - began


def eval_ms(model: nn.Module, given: Any) -> tuple[float, float]:
    """Milliseconds of a call in evaluation mode, with gradients recorded and without: the least of some rounds."""
    least = {True: float("inf"), False: float("inf")}
    modes, kept = [(each, each.training) for each in model.modules()], tree_map_only(torch.Tensor, _detached, given)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    model.eval()
    try:
        for _ in range(_EVAL_ROUNDS):
            for records in least:
                _wait_for(device)
                began = time.perf_counter()
                with torch.inference_mode(not records), torch.set_grad_enabled(records):
                    made = model(*kept)
                    del made
                _wait_for(device)
                least[records] = min(least[records], time.perf_counter() - began)
    finally:
        for each, mode in modes:
            each.training = mode
    return 1e3 * least[True], 1e3 * least[False]


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()


def float64_slowdown(device: str) -> float:
    """Ratio of the times that a product of matrices takes in float64 and in float32."""
    least = {torch.float64: float("inf"), torch.float32: float("inf")}
    for _ in range(_MATRIX_ROUNDS):
        for dtype in least:
            matrix = torch.ones((512, 512), dtype=dtype, device=device)
            torch.mm(matrix, matrix)
            _wait_for(matrix.device)
            began = time.perf_counter()
            torch.mm(matrix, matrix)
            _wait_for(matrix.device)
            least[dtype] = min(least[dtype], time.perf_counter() - began)
    return least[torch.float64] / least[torch.float32]


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        cuda.synchronize(device)
    elif device.type != "cpu" and torch.accelerator.is_available():
        torch.accelerator.synchronize(device)
