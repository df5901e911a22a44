"""Models by name: a small ResNet, and the models of torchvision and timm."""

from __future__ import annotations

import difflib
from typing import cast

import torch
from torch import nn

from fastdata.errors import OptionError, TrainError

__all__ = ["create_model", "last_linear", "put_module", "small_resnet"]


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
    """A ResNet with three residual blocks and 0.3 million parameters, for tests and CPUs."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (_Block(16, 32, 2), _Block(32, 64, 2), _Block(64, 128, 2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def create_model(name: str, classes: int, *, weights: str | None = None) -> nn.Module:
    """Creates a model by name: "small", or a model of torchvision or timm.

    Args:
        name: looked up in torchvision first, then in timm; "timm/NAME" looks in timm only.
        classes: number of outputs of the last layer.
        weights: torchvision's name for pretrained weights, or "pretrained" for timm; the last layer of the pretrained
            model is replaced unless it has `classes` outputs.

    Raises:
        OptionError: the model or the weights are unknown.
    """
    if name == "small":
        if weights is not None:
            raise OptionError(
                f"weights={weights!r}: there are no pretrained weights for model='small'; leave weights out"
            )
        return small_resnet(classes)
    asked, known = ["fastdata (small)"], list[str]()
    short = name.removeprefix("timm/")
    if not name.startswith("timm/"):
        try:
            from torchvision import models

            if name in models.list_models():
                if weights is not None:
                    known = [each.name for each in models.get_model_weights(name)]
                    if weights not in (*known, "DEFAULT"):
                        raise OptionError(f"weights={weights!r} do not exist for {name}; use one of {', '.join(known)}")
                    return _with_classes(models.get_model(name, weights=weights), classes)
                plain = {"aux_logits": False, "init_weights": True} if name in ("inception_v3", "googlenet") else {}
                return models.get_model(name, num_classes=classes, **plain)  # type: ignore[no-any-return]
            asked.append("torchvision")
            known += models.list_models()
        except ImportError:
            asked.append("torchvision (not installed: pip install torchvision)")
    try:
        import timm

        if timm.is_model(short):
            return cast(nn.Module, timm.create_model(short, num_classes=classes, pretrained=weights is not None))
        asked.append("timm")
        known += timm.list_models()
    except ImportError:
        asked.append("timm (not installed: pip install timm)")
    near = ", ".join(difflib.get_close_matches(short, ["small", *known]))
    raise OptionError(f"model={name!r} is unknown; looked in {', '.join(asked)}{'; did you mean: ' * bool(near)}{near}")


def last_linear(model: nn.Module, outputs: int | None = None) -> tuple[str, nn.Linear]:
    """Name and module of the last nn.Linear, or of the last one with this number of outputs.

    Raises:
        TrainError: the model has no such layer.
    """
    linears = [(name, each) for name, each in model.named_modules() if isinstance(each, nn.Linear)]
    fitting = [(name, each) for name, each in linears if outputs in (None, each.out_features)]
    if not fitting:
        kind = "nn.Linear" if outputs is None else f"nn.Linear with {outputs} outputs"
        raise TrainError(f"the model has no {kind}, which would be its classification layer")
    return fitting[-1]


def put_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Replaces a module by its name."""
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _with_classes(model: nn.Module, classes: int) -> nn.Module:
    """Replaces the last linear layer if it has another number of outputs."""
    name, last = last_linear(model)
    if last.out_features != classes:
        put_module(model, name, nn.Linear(last.in_features, classes, last.bias is not None))
    return model
