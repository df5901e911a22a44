"""Checks before training that a model accepts the image sizes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from fastdata.errors import OptionError

__all__ = ["check_sizes"]

_TRIED = (32, 64, 75, 96, 128, 160, 192, 224, 256, 299, 320, 384, 448, 512)
_REFUSALS = (RuntimeError, AssertionError, ValueError, IndexError)  # what models raise for sizes that do not fit


def check_sizes(model: nn.Module, name: str, sides: Mapping[str, int]) -> None:
    """Checks that a model accepts images of some sizes, by passing two empty images of each through it.

    Args:
        model: not changed.
        name: the model's name, for the message.
        sides: the sides of the images in pixels, by the option that sets them.

    Raises:
        OptionError: the model does not accept a size; the message names one that it accepts.
    """
    was_training = model.training
    model.eval()
    try:
        for option, side in sides.items():
            if (problem := _problem(model, side)) is None:
                continue
            fitting = next((each for each in chain(_declared(model), _TRIED) if _problem(model, each) is None), None)
            advice = "the other sizes tried fail as well, so the size may not be the reason"
            if fitting is not None:
                advice = f"it accepts {fitting}: use --{option.replace('_', '-')} {fitting}"
            raise OptionError(
                f"{option}={side}: model={name!r} does not accept images of {side}×{side} pixels "
                f"({_first_line(problem)}); {advice}"
            ) from problem
    finally:
        model.train(was_training)


def _problem(model: nn.Module, side: int) -> Exception | None:
    """Error that the model raises for images of this side; None if none.

    The first try is without arithmetic (device "meta"), which not every operation supports.
    """
    try:
        weights = {key: value.to("meta") for key, value in chain(model.named_parameters(), model.named_buffers())}
        with torch.no_grad():
            torch.func.functional_call(model, weights, (torch.empty(2, 3, side, side, device="meta"),))
        return None
    except _REFUSALS:
        pass
    try:
        with torch.no_grad():
            model(torch.zeros(2, 3, side, side))
        return None
    except _REFUSALS as error:
        return error


def _declared(model: nn.Module) -> list[int]:
    """The size that the model says it was made for: torchvision's transformers, timm's configurations."""
    said: list[Any] = [getattr(model, "image_size", None)]
    configuration = getattr(model, "pretrained_cfg", None)
    if isinstance(configuration, Mapping):
        said.append((configuration.get("input_size") or (None,))[-1])
    return [each for each in said if isinstance(each, int)]


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
