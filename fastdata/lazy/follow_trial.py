"""Tries whether a fused run draws and does what its own steps do, with the installed versions of their libraries.

`draws="torch"` promises torch's batches to the last bit.  No library promises which numbers its transforms draw, so a
plan that follows them is compared with the steps themselves on small images: values, errors, and the states of all
generators afterwards.  Where anything differs the steps run their own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from fastdata.lazy.fused_steps import Fused
from fastdata.lazy.pending_tensor import real
from fastdata.lazy.sample_context import Draw
from fastdata.loaders import pillow
from fastdata.order.random_states import GlobalStates
from fastdata.views.philox import Key
from fastdata.views.plan import Plan

__all__ = ["follows_its_own_code"]

_TRIALS = 8
_SIZES = (88, 120), (120, 88)  # height and width


def follows_its_own_code(steps: Sequence[Callable[[Any], Any]], plan: Plan) -> bool:
    """True if the plan of these steps, compiled with `follow`, gives what its steps give; True if nothing is random."""
    if not plan.draws or plan.following is None:
        return not plan.draws
    known = tuple(steps[: len(plan.fused)])
    return _agree(_Tried(known, replace(plan, unfused=(), runs=(), following=None), plan))


class _Tried:
    """Steps and their plan, equal to others of the same classes with equal plans, in which all arguments are."""

    def __init__(self, steps: tuple[Callable[[Any], Any], ...], arguments: Plan, plan: Plan) -> None:
        self.steps, self.plan = steps, replace(plan, unfused=(), runs=())
        self._text = f"{arguments!r} {[(type(step).__module__, type(step).__name__) for step in steps]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tried) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=256)
def _agree(tried: _Tried) -> bool:
    fused = Fused(tried.steps, tried.plan)

    def own(image: Any) -> Any:
        for step in tried.steps:
            image = step(image)
        return image

    generator = np.random.default_rng(0)
    for number in range(_TRIALS):
        pixels = generator.integers(0, 256, (*_SIZES[number % 2], 3), np.uint8)
        draw = Draw(Key(seed=0, epoch=0), number, 0)
        wanted = _outcome(own, pillow.from_pixels(pixels.copy()), number)
        given = _outcome(partial(fused, draw=draw), pillow.from_pixels(pixels.copy()), number)
        if wanted != given:
            return False
    return True


def _outcome(transform: Callable[[Any], Any], image: Any, seed: int) -> tuple[Any, ...]:
    """The value or error of a transform whose draws begin with a seed, and the generators' states afterwards."""
    states = GlobalStates.of_seed(seed)
    with states.drawing():
        try:
            value = real(transform(image))
        except Exception as error:  # noqa: BLE001 - of code of another library
            return "error", str(error), states
    if isinstance(value, torch.Tensor):
        array = value.contiguous().view(torch.uint8).numpy() if value.numel() else np.empty(0)
    else:
        array = np.asarray(value)
    return type(value).__name__, str(getattr(value, "dtype", "")), array.shape, array.tobytes(), states
