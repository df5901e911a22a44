"""Which sizes of images a model takes, asked before anything is trained."""

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
    """Passes two empty images of each size through a model.

    Args:
        model: left as it is.
        name: what it is called.
        sides: in pixels, by the option that sets them.

    Raises:
        OptionError: a size does not fit; it says which one does.
    """
    was_training = model.training
    model.eval()
    try:
        for option, side in sides.items():
            if (problem := _problem(model, side)) is None:
                continue
            fitting = next((each for each in chain(_declared(model), _TRIED) if _problem(model, each) is None), None)
            advice = "other sizes fail as well, so the size may not be the reason"
            if fitting is not None:
                advice = f"it takes {fitting}: --{option.replace('_', '-')} {fitting}"
            raise OptionError(
                f"{option}={side}: model={name!r} takes no images of {side}×{side} pixels ({_first_line(problem)}); "
                f"{advice}"
            ) from problem
    finally:
        model.train(was_training)


def _problem(model: nn.Module, side: int) -> Exception | None:
    """What the model raises.  Asks without arithmetic first, which not every operation supports."""
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
