"""Draws the numbers of a fused run of steps as their own code would: step by step, from the same generators.

What a step draws may depend on the size of the image that it gets, so that is followed through the geometry, without
pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastdata.tables import GIVEN_NUMBERS
from fastdata.transforms.timm_followers import DrawsGeometry, DrawsParameters
from fastdata.views.generators import Generators
from fastdata.views.given import Given
from fastdata.views.plan import Flip, Op, Pad, Resize, ResizeKeepRatio, Size

__all__ = ["FollowedSteps"]


@dataclass(frozen=True)
class _Geometry:
    """A geometric step: the library's object, its counterpart, the stage where it stands, and its draws, if any."""

    step: Any
    op: Op
    stage: int
    follow: DrawsGeometry | None


class FollowedSteps:
    """Draws the numbers of a plan's steps; see `fastdata.views.given.Following`."""

    def __init__(self) -> None:
        self._steps: list[_Geometry | DrawsParameters] = []
        self._stages = 1

    def add_geometry(self, step: Any, op: Op, stage: int, follow: DrawsGeometry | None) -> None:
        """Adds a step of the plan's geometry.

        Args:
            step: the library's object.
            op: its counterpart in the plan.
            stage: number of the stage in which that is.
            follow: its draws; None if it draws nothing.
        """
        self._steps.append(_Geometry(step, op, stage, follow))
        self._stages = max(self._stages, stage + 1)

    def add_parameters(self, follow: DrawsParameters) -> None:
        """Adds a random step after the first geometry."""
        self._steps.append(follow)

    def draw(self, generators: Generators, size: Size) -> Given:
        """See `fastdata.views.given.Following.draw`."""
        numbers: list[list[Sequence[int]]] = [[] for _ in range(self._stages)]
        parameters: list[Mapping[str, Any]] = []
        for step in self._steps:
            if not isinstance(step, _Geometry):
                parameters.append(step(generators, size))
                continue
            own: Sequence[int] = () if step.follow is None else step.follow(step.step, step.op, generators, size)
            numbers[step.stage].append((*own, *_NONE[len(own) :]))
            size = _size_after(step.op, size, own)
        return Given(tuple(np.array(each, np.int64).reshape(-1, GIVEN_NUMBERS) for each in numbers), tuple(parameters))


_NONE = (0,) * GIVEN_NUMBERS


def _size_after(op: Op, size: Size, numbers: Sequence[int]) -> Size:
    """Returns (height, width) after a step."""
    if isinstance(op, Flip):
        return size
    if isinstance(op, ResizeKeepRatio):
        return numbers[1], numbers[0]
    if isinstance(op, Resize | Pad):
        return op.size_from(size)
    return op.size
