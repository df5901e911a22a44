"""Checks for what makes a model slow, before training, and fixes for it."""

from __future__ import annotations

from typing import cast

import torch
from torch import fx, nn

from fastdata.errors import TrainError
from fastdata.models.create import last_linear, put_module

__all__ = ["PaddedClasses", "advice", "odd_sizes", "remove_useless_biases", "useless_biases"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def advice(model: nn.Module, example: torch.Tensor, *, batch_size: int) -> str:
    """The results of `odd_sizes` and `useless_biases` as text."""
    lines = [f"size: {line}" for line in odd_sizes(model, batch_size)]
    try:
        lines += [f"bias: {name} has a bias that the following BatchNorm cancels" for name in useless_biases(model)]
    except TrainError as error:
        lines.append(f"bias: {error}")
    return "\n".join(
        lines or ["nothing found: all sizes are multiples of 8, and no layer before a BatchNorm has a bias"]
    )


def odd_sizes(model: nn.Module, batch_size: int) -> list[str]:
    """Describes layers whose sizes are not multiples of 8, as tensor cores need; three image channels are accepted."""
    found = [f"batch_size={batch_size} is not a multiple of 8"] if batch_size % 8 else []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = {"inputs": module.in_features, "outputs": module.out_features}
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            sizes = {"inputs": module.in_channels, "outputs": module.out_channels}
        else:
            continue
        odd = {what: size for what, size in sizes.items() if size % 8 and not (what == "inputs" and size == 3)}
        found += [f"{name or 'the model'} has {size} {what}, not a multiple of 8" for what, size in odd.items()]
    return found


class PaddedClasses(nn.Module):
    """A model whose last layer is padded to a multiple of 8 outputs; `forward` returns only those of real classes.

    Args:
        model: its last `nn.Linear` with `classes` outputs is replaced in place.
        classes: number of classes.
    """

    def __init__(self, model: nn.Module, classes: int) -> None:
        super().__init__()
        name, last = last_linear(model, classes)
        padded = nn.Linear(last.in_features, -(-last.out_features // 8) * 8, bias=last.bias is not None)
        with torch.no_grad():
            padded.weight[: last.out_features] = last.weight
            padded.weight[last.out_features :] = 0
            if last.bias is not None:
                padded.bias.zero_()
                padded.bias[: last.out_features] = last.bias
        put_module(model, name, padded)
        self.model, self.classes = model, classes

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of the real classes."""
        return self.model(images)[:, : self.classes]  # type: ignore[no-any-return]


def useless_biases(model: nn.Module) -> list[str]:
    """Names of convolutions and linear layers whose bias is cancelled by the BatchNorm right after them.

    Raises:
        TrainError: the model cannot be traced.
    """
    return [name for name, _ in _before_norms(model)]


def remove_useless_biases(model: nn.Module, example: torch.Tensor) -> list[str]:
    """Removes the biases that `useless_biases` finds, and corrects the running means so that the output stays the same.

    Args:
        model: changed in place.
        example: images to check the output with, (N, 3, H, W).

    Returns:
        The names of the layers.

    Raises:
        TrainError: the model cannot be traced, or its output changed by more than rounding; the model is unchanged.
    """
    was_training, pairs = model.training, _before_norms(model)
    layers = [(model.get_submodule(name), model.get_submodule(norm)) for name, norm in pairs]
    before = [(layer.bias, norm.running_mean) for layer, norm in layers]
    model.eval()
    try:
        with torch.no_grad():
            expected = model(example)
            for layer, norm in layers:
                norm.running_mean = cast(torch.Tensor, norm.running_mean) - cast(torch.Tensor, layer.bias)
                layer.bias = None  # type: ignore[assignment]
            difference = (model(example) - expected).abs().max().item()
        if difference > 1e-3 * max(1.0, expected.abs().max().item()):
            raise TrainError(
                f"removing biases changed the output by {difference:.3g}; they were put back, so the model is unchanged"
            )
    except Exception:
        for (layer, norm), (bias, mean) in zip(layers, before, strict=True):
            layer.bias, norm.running_mean = bias, mean
        raise
    finally:
        model.train(was_training)
    return [name for name, _ in pairs]


def _before_norms(model: nn.Module) -> list[tuple[str, str]]:
    """(layer with a bias, BatchNorm that alone takes its output)."""
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception as error:  # tracing runs the model's own code
        raise TrainError(
            f"the model cannot be traced by torch.fx, so its biases cannot be checked ({error})"
        ) from error
    modules, found = dict(model.named_modules()), []
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    for node in graph.nodes:
        users = list(node.users)
        if node.op != "call_module" or len(users) != 1 or users[0].op != "call_module":
            continue
        layer, norm = modules[str(node.target)], modules[str(users[0].target)]
        once = calls.count(str(node.target)) == 1 and calls.count(str(users[0].target)) == 1
        if once and isinstance(layer, _CONVOLUTIONS) and layer.bias is not None and isinstance(norm, _NORMS):
            if norm.running_mean is None:
                continue
            found.append((str(node.target), str(users[0].target)))
    return found
