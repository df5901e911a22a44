"""What slows a model down and can be seen before training, and searches for batch size and learning rate."""

from __future__ import annotations

import copy
import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import fx, nn

from fastdata.errors import OptionError, TrainError
from fastdata.train.model import last_linear, put_module
from fastdata.train.options import TrainOptions
from fastdata.train.state import Training

__all__ = [
    "FoundLr",
    "PaddedClasses",
    "advice",
    "find_batch_size",
    "find_lr",
    "gradients_are_right",
    "largest_that_fits",
    "odd_sizes",
    "remove_useless_biases",
    "useless_biases",
]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_HEAD_ROOM = 0.9


def advice(model: nn.Module, example: torch.Tensor, *, batch_size: int) -> str:
    """Everything below in words."""
    lines = [f"size: {line}" for line in odd_sizes(model, batch_size)]
    try:
        lines += [f"bias: {name} has one that the BatchNorm behind it cancels" for name in useless_biases(model)]
    except TrainError as error:
        lines.append(f"bias: {error}")
    return "\n".join(lines or ["nothing found: sizes are multiples of 8, and no bias stands before a BatchNorm"])


def odd_sizes(model: nn.Module, batch_size: int) -> list[str]:
    """Layers whose sizes are no multiples of 8, which tensor cores want; the three channels of an image may be."""
    found = [f"batch_size={batch_size} is no multiple of 8"] if batch_size % 8 else []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            sizes = {"inputs": module.in_features, "outputs": module.out_features}
        elif isinstance(module, nn.Conv2d) and module.groups == 1:
            sizes = {"inputs": module.in_channels, "outputs": module.out_channels}
        else:
            continue
        odd = {what: size for what, size in sizes.items() if size % 8 and not (what == "inputs" and size == 3)}
        found += [f"{name or 'the model'} has {size} {what}, no multiple of 8" for what, size in odd.items()]
    return found


class PaddedClasses(nn.Module):
    """A model whose last layer is padded to a multiple of 8 outputs, of which only the true ones are seen.

    Args:
        model: its last `nn.Linear` gives the classes; replaced in place.
        classes: how many there are.
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
        """The true classes' values."""
        return self.model(images)[:, : self.classes]  # type: ignore[no-any-return]


def useless_biases(model: nn.Module) -> list[str]:
    """Names of convolutions and linear layers whose bias a BatchNorm right behind subtracts again.

    Raises:
        TrainError: the model cannot be traced.
    """
    return [name for name, _ in _before_norms(model)]


def remove_useless_biases(model: nn.Module, example: torch.Tensor) -> list[str]:
    """Removes those biases, and moves the running means by them, so that the output stays what it was.

    Args:
        model: changed in place.
        example: images on which that is checked, (N, 3, H, W).

    Returns:
        The names of the layers.

    Raises:
        TrainError: the output changed by more than rounding does.
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
            raise TrainError(f"removing biases changed the output by {difference:.3g}; the model is as it was")
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
        raise TrainError(f"the model cannot be traced ({error}), so its biases are not known") from error
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


def gradients_are_right(model: nn.Module, images: torch.Tensor) -> bool:
    """Compares the model's gradients with finite differences in float64; slow, for a few tiny images.

    Raises:
        RuntimeError: they differ; torch's message says where.
    """
    exact = copy.deepcopy(model).double().eval()
    return bool(torch.autograd.gradcheck(exact, images.double().requires_grad_(), fast_mode=True))


# ---- searches


def largest_that_fits(fits: Callable[[int], bool], *, start: int = 8, most: int = 65536) -> int:
    """The largest multiple of 8, less some head-room, for which `fits` is true: doubling, then halving the interval.

    Raises:
        TrainError: not even `start` fits.
    """
    if not fits(start):
        raise TrainError(f"not even a batch of {start} fits")
    good = start
    while good < most and fits(min(most, 2 * good)):
        good = min(most, 2 * good)
    bad = 2 * good
    while good < most and bad - good > max(8, good // 16):
        middle = (good + bad) // 16 * 8
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return max(start, int(good * _HEAD_ROOM) // 8 * 8)


def find_batch_size(model: nn.Module, options: TrainOptions, side: int, classes: int) -> int:
    """The largest batch that trains within the GPU's memory, with a tenth left free.

    Raises:
        OptionError: there is no GPU whose memory could run out; on a CPU the machine would swap or kill the process.
    """
    device = options.torch_device()
    if device.type != "cuda":
        raise OptionError(
            f"find_batch_size needs a CUDA device, device is {device}; on a CPU memory does not run out cleanly"
        )

    def fits(size: int) -> bool:
        training = None
        try:
            training = Training(copy.deepcopy(model), options, batches_per_epoch=1, num_classes=classes)
            images = torch.zeros(size, 3, side, side, device=device)
            labels = torch.zeros(size, dtype=torch.int64, device=device)
            for _ in range(2):  # the second update has the optimiser's state, too
                training.learn(images, labels)
            torch.cuda.synchronize(device)
            return True
        except torch.cuda.OutOfMemoryError:
            return False
        finally:
            del training
            torch.cuda.empty_cache()

    return largest_that_fits(fits)


@dataclass(frozen=True, kw_only=True)
class FoundLr:
    """A learning rate range test: rates, smoothed losses, and where the loss falls fastest."""

    rates: list[float]
    losses: list[float]
    suggestion: float

    def __str__(self) -> str:
        return f"suggested peak learning rate: {self.suggestion:.2g} (the loss falls fastest there)"


def find_lr(
    model: nn.Module,
    loader: Iterable[Any],
    options: TrainOptions,
    *,
    low: float = 1e-6,
    high: float = 10.0,
    steps: int = 100,
) -> FoundLr:
    """Trains a copy of the model while the rate grows exponentially, until the loss explodes.

    Writes lr.csv and, where matplotlib is installed, lr.png into output_dir.  The model itself is not changed.

    Source: Smith, "Cyclical learning rates for training neural networks", WACV 2017.
    """
    options = replace(
        options, lr=low, lr_scheduler="constant", lr_warmup_epochs=0.0, resume=None, mixup_alpha=0.0, cutmix_alpha=0.0
    )
    training = Training(copy.deepcopy(model), options, batches_per_epoch=steps)
    factor, rates, losses, smooth = (high / low) ** (1 / steps), [], [], 0.0
    training.model.train()
    for number, (images, labels) in enumerate(_endless(loader, steps)):
        rate = low * factor**number
        for group in training.optimizer.param_groups:
            group["lr"] = rate
        loss = training.learn(images, labels)
        smooth = 0.9 * smooth + 0.1 * loss.item()  # waits, on purpose: the search ends with the loss
        rates.append(rate)
        losses.append(smooth / (1 - 0.9 ** (number + 1)))
        if not math.isfinite(losses[-1]) or losses[-1] > 4 * min(losses):
            break
    if len(losses) < 5:
        raise TrainError(f"the range test ended after {len(losses)} updates; begin with a lower rate than {low}")
    found = FoundLr(rates=rates, losses=losses, suggestion=_steepest(rates, losses))
    if options.output_dir is not None:
        _write_lr(found, Path(options.output_dir))
    return found


def _steepest(rates: list[float], losses: list[float]) -> float:
    """The rate where the smoothed loss falls most per step; the first fifth only warms up."""
    span = max(1, len(losses) // 20)
    falls = [losses[at] - losses[at + span] for at in range(len(losses) - span)]
    first = min(len(falls) - 1, len(losses) // 5)
    return rates[max(range(first, len(falls)), key=lambda at: falls[at])]


def _endless(loader: Iterable[Any], steps: int) -> Iterable[Any]:
    done = before = 0
    while done < steps:
        for batch in loader:
            yield batch
            done += 1
            if done == steps:
                return
        if done == before:
            raise TrainError("the loader yields nothing")
        before = done


def _write_lr(found: FoundLr, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lr.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("lr", "loss"), *zip(found.rates, found.losses, strict=True)])
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.semilogx(found.rates, found.losses)
    axes.axvline(found.suggestion, linestyle=":")
    axes.set(xlabel="learning rate", ylabel="smoothed loss", title=str(found))
    figure.savefig(folder / "lr.png", dpi=110)
