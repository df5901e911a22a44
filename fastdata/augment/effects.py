"""Augmentations in the terms of the native core, which does them with Pillow's arithmetic; see `native.EffectKind`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native import EFFECT, EffectKind, EffectTable

__all__ = ["FILTERS", "Matrix", "affine", "nothing", "put", "rotation"]

Matrix: TypeAlias = tuple[float, float, float, float, float, float]

FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def nothing(count: int, steps: int) -> EffectTable:
    """A table (count, steps) in which nothing is done."""
    return np.zeros((count, steps), EFFECT)


def put(table: EffectTable, rows: npt.NDArray[Any], step: int, kind: EffectKind, *values: Any) -> None:
    """Does one effect to some images, with numbers for all of them or columns of one for each."""
    table["kind"][rows, step] = kind
    for number, value in enumerate(values):
        table["values"][rows, step, number] = value


def affine(
    table: EffectTable, row: int, step: int, matrix: Matrix, *, interpolation: str, fill: Sequence[float] | None
) -> None:
    """Moves one image's pixels; `fill` is one level or three, None is black."""
    levels = [0.0] if fill is None else [float(int(level)) for level in fill]
    table["kind"][row, step], table["filter"][row, step] = EffectKind.AFFINE, FILTERS[interpolation]
    table["values"][row, step, :6] = matrix
    table["values"][row, step, 8:] = levels * 3 if len(levels) == 1 else levels


def rotation(angle: float, size: tuple[int, int], center: Sequence[float] | None = None) -> tuple[Matrix, bool] | None:
    """The map of a rotation about the middle or another point, as Pillow's Image.rotate has it.

    Args:
        angle: in degrees, counterclockwise.
        size: (height, width).
        center: (x, y) in pixels; None for the middle.

    Returns:
        The map, and True if whole pixels change places, so that the nearest is exact; None if nothing moves.
    """
    height, width = size
    angle %= 360.0
    if not center:
        quarters: dict[float, Matrix] = {180: (-1, 0, width, 0, -1, height)}
        if height == width:
            quarters.update({90: (0, -1, width, 1, 0, 0), 270: (0, 1, 0, -1, 0, height)})
        if angle == 0:
            return None
        if angle in quarters:
            return quarters[angle], True
    x, y = center if center else (width / 2, height / 2)
    radians = -math.radians(angle)
    cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
    negative = round(-math.sin(radians), 15)
    left = cosine * -x + sine * -y + 0.0
    top = negative * -x + cosine * -y + 0.0
    return (cosine, sine, left + x, negative, cosine, top + y), False
