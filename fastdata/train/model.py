"""Models: one of our own, those of torchvision and timm, and what options make of them."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fastdata.errors import OptionError, TrainError
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks

__all__ = ["checkpoint_activations", "create_model", "prepare_model", "small_resnet"]


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def small_resnet(classes: int) -> nn.Module:
    """Three residual blocks, 0.3 million parameters: for tests and CPUs."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (_Block(16, 32, 2), _Block(32, 64, 2), _Block(64, 128, 2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def create_model(name: str, classes: int, *, weights: str | None = None) -> nn.Module:
    """A model by name: "small", one of torchvision's, or one of timm's.

    Args:
        name: torchvision is asked first; "timm/NAME" asks timm alone.
        classes: values of the last layer.
        weights: torchvision's name of trained weights, or "pretrained" for timm; the last layer is then kept only if
            its size fits.

    Raises:
        OptionError: nobody knows the name.
    """
    if name == "small":
        return small_resnet(classes)
    asked = ["our own: small"]
    if not name.startswith("timm/"):
        try:
            from torchvision import models

            if name in models.list_models():
                return models.get_model(name, weights=weights, num_classes=None if weights else classes)  # type: ignore[no-any-return]
            asked.append("torchvision's")
        except ImportError:
            asked.append("torchvision's (not installed)")
    try:
        import timm

        short = name.removeprefix("timm/")
        if timm.is_model(short):
            return cast(nn.Module, timm.create_model(short, num_classes=classes, pretrained=weights is not None))
        asked.append("timm's")
    except ImportError:
        asked.append("timm's (not installed)")
    raise OptionError(f"model={name!r} is unknown; asked: {', '.join(asked)}")


def prepare_model(
    model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device
) -> tuple[nn.Module, nn.Module]:
    """Puts a model on its device as the options say.

    Returns:
        The module itself, and the compiled or wrapped one to call.
    """
    if isinstance(model, nn.DataParallel):
        raise OptionError("DataParallel copies the model in every step; start with torchrun, which gives DDP")
    if options.checkpoint_every_k:
        checkpoint_activations(model, options.checkpoint_every_k)
    if options.sync_bn and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if options.amp == "fp8":
        model = _with_fp8(model)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    called = model
    if ranks.world_size > 1:
        called = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            static_graph=options.static_graph,
        )
        if options.bf16_gradients:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            called.register_comm_hook(None, bf16_compress_hook)
    if options.compile != "none":
        called = torch.compile(called, mode=options.compile)  # type: ignore[assignment]
    return model, called


def _with_fp8(model: nn.Module) -> nn.Module:
    try:
        from torchao.float8 import convert_to_float8_training
    except ImportError as error:
        raise OptionError("amp='fp8' needs torchao; install it with: pip install torchao") from error
    return convert_to_float8_training(model)  # type: ignore[no-any-return]


def checkpoint_activations(model: nn.Module, every: int) -> list[str]:
    """Makes every `every`-th block recompute its activations in the backward pass instead of keeping them.

    Blocks are the children of the model's longest chain of modules of one class (residual blocks, transformer layers).

    Returns:
        The names of the blocks changed.

    Raises:
        TrainError: the model has no such chain.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    chains: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if list(module.children()):
            chains.setdefault(type(module).__name__, []).append(name)
    names = max((some for some in chains.values() if "" not in some), key=len, default=[])
    names = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    if len(names) < 2:
        raise TrainError("checkpoint_every_k found no repeated blocks in the model; leave it out")
    chosen = names[::every]
    for name in chosen:
        _recompute(model.get_submodule(name))
    return chosen


def _recompute(block: nn.Module) -> None:
    forward = block.forward

    def recomputed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    block.forward = recomputed
