"""Augmentations in the terms of the native core, which does them with Pillow's arithmetic; see `EffectKind`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.tables import EFFECT, EffectKind, EffectTable

__all__ = ["FILTERS", "Matrix", "has_fill", "keeps_info", "nothing", "one_effect", "put", "rotate", "rotation", "warp"]

Matrix: TypeAlias = tuple[float, float, float, float, float, float]

# ImageEnhance blends with a new image; torchvision's functions go through channels, arrays or tensors.
_ON_NEW_IMAGES = (
    EffectKind.BRIGHTNESS,
    EffectKind.CONTRAST,
    EffectKind.HUE,
    EffectKind.GREY,
    EffectKind.BLUR,
    EffectKind.PERMUTE,
    EffectKind.MIX_BEGIN,
)
_NO_FILL = -0.0  # is black for everybody, and can be told from 0
FILTERS = {"nearest": 0, "bilinear": 2, "bicubic": 3}  # Pillow's numbers


def nothing(count: int, steps: int) -> EffectTable:
    """A table (count, steps) in which nothing is done."""
    return np.zeros((count, steps), EFFECT)


def one_effect(kind: EffectKind, *values: float) -> EffectTable:
    """A table (1, 1) of one effect."""
    table = nothing(1, 1)
    table["kind"], table["values"][..., : len(values)] = kind, values
    return table


def keeps_info(effects: EffectTable) -> bool:
    """True if Pillow and torchvision leave an image its metadata, as none of the effects is done on a new image."""
    return not np.isin(effects["kind"], _ON_NEW_IMAGES).any()


def put(table: EffectTable, rows: npt.NDArray[Any], step: Any, kind: EffectKind, *values: Any) -> None:
    """Does one effect to some images, with numbers for all of them or columns of one for each; so is `step`."""
    table["kind"][rows, step] = kind
    for number, value in enumerate(values):
        table["values"][rows, step, number] = value


def warp(
    table: EffectTable,
    row: int,
    step: int,
    matrix: Sequence[float],
    *,
    interpolation: str,
    fill: Sequence[float] | None,
) -> None:
    """Moves one image's pixels.

    Args:
        table: table of effects.
        row: the image.
        step: number of the effect in the image's row.
        matrix: map from output to source pixels: six numbers of an affine map, or eight of a perspective.
        interpolation: one of `FILTERS`.
        fill: one level or three, for what comes from outside; None is black, and where the filter meets the edge,
            tensors are not mixed with black once more, as torchvision does it for a fill of 0.
    """
    levels = [_NO_FILL] if fill is None else [float(level) for level in fill]
    table["kind"][row, step] = EffectKind.AFFINE if len(matrix) == 6 else EffectKind.PERSPECTIVE
    table["filter"][row, step] = FILTERS[interpolation]
    table["values"][row, step, : len(matrix)] = matrix
    table["values"][row, step, 8:] = levels * 3 if len(levels) == 1 else levels


def has_fill(effects: EffectTable) -> npt.NDArray[np.bool_]:
    """Says for N effects that move pixels whether a fill was given, which may be 0: bool, (N,)."""
    first = effects["values"][:, 8]
    result: npt.NDArray[np.bool_] = (first != 0) | ~np.signbit(first)
    return result


def rotate(
    table: EffectTable,
    row: int,
    step: int,
    angle: float,
    size: tuple[int, int],
    *,
    interpolation: str,
    fill: Sequence[float] | None,
    center: Sequence[float] | None = None,
    expand: bool = False,
) -> None:
    """Turns one image of (height, width) as Pillow's Image.rotate does; see `warp` and `rotation`."""
    matrix, is_exact, _ = rotation(angle, size, center, expand=expand)
    if matrix is not None:
        warp(table, row, step, matrix, interpolation="nearest" if is_exact else interpolation, fill=fill)


def rotation(
    angle: float, size: tuple[int, int], center: Sequence[float] | None = None, *, expand: bool = False
) -> tuple[Matrix | None, bool, tuple[int, int]]:
    """The map of a rotation about the middle or another point, as Pillow's Image.rotate has it.

    Args:
        angle: angle in degrees, counterclockwise.
        size: (height, width).
        center: (x, y) in pixels; None for the middle.
        expand: all of the image is to be seen.

    Returns:
        The map, None if nothing moves; True if whole pixels change places, so that the nearest is exact; and the
        result's (height, width).
    """
    height, width = size
    angle %= 360.0
    if not center:
        quarters: dict[float, Matrix] = {180: (-1, 0, width, 0, -1, height)}
        if height == width or expand:
            quarters.update({90: (0, -1, width, 1, 0, 0), 270: (0, 1, 0, -1, 0, height)})
        if angle == 0:
            return None, True, size
        if angle in quarters:
            return quarters[angle], True, size if angle == 180 else (width, height)
    x, y = center if center else (width / 2, height / 2)
    radians = -math.radians(angle)
    cosine, sine = round(math.cos(radians), 15), round(math.sin(radians), 15)
    negative = round(-math.sin(radians), 15)

    def place(x: float, y: float, left: float = 0.0, top: float = 0.0) -> tuple[float, float]:
        return cosine * x + sine * y + left, negative * x + cosine * y + top

    left, top = place(-x, -y)
    left, top = left + x, top + y
    if expand:
        columns, rows = zip(
            *(place(*corner, left, top) for corner in ((0, 0), (width, 0), (width, height), (0, height))), strict=True
        )
        wide, tall = (math.ceil(max(each)) - math.floor(min(each)) for each in (columns, rows))
        left, top = place(-(wide - width) / 2.0, -(tall - height) / 2.0, left, top)
        size = tall, wide
    return (cosine, sine, left, negative, cosine, top), False, size
