"""Random rotations, affine maps and perspectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fastdata.augment.base import Augmentation, Parameters, check_probability
from fastdata.augment.batch_effects import FILTERS_ON_BATCHES
from fastdata.augment.effects import FILTERS, Matrix, nothing, rotate, rotation, warp
from fastdata.errors import OptionError
from fastdata.tables import EffectTable
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = ["RandomAffine", "RandomPerspective", "RandomRotation"]


class _Warp(Augmentation):
    """Augmentation that moves pixels."""

    def __init__(self, interpolation: Any, fill: Any, center: Sequence[float] | None) -> None:
        values = {0: "nearest", 2: "bilinear", 3: "bicubic"}
        self.interpolation = str(getattr(interpolation, "value", values.get(interpolation, interpolation))).lower()
        if self.interpolation not in FILTERS:
            raise OptionError(f"interpolation={interpolation!r}; accepted: {', '.join(FILTERS)}")
        levels = (fill,) if isinstance(fill, int | float) else fill
        if levels is not None and (not isinstance(levels, list | tuple) or len(levels) not in (1, 3)):
            raise OptionError(f"fill={fill!r}; accepted: one level, or three")
        self.fill = None if levels is None else tuple(map(float, levels))
        self.center = center

    @property
    def on_batches(self) -> bool:
        """See `Augmentation.on_batches`."""
        return self.interpolation in FILTERS_ON_BATCHES and not self.changes_size


class RandomRotation(_Warp):
    """Rotates by a random angle about the middle or another point.

    Args:
        degrees: smallest and largest angle, counterclockwise.
        interpolation: "nearest", "bilinear" or "bicubic".
        expand: images become so large that all of them is seen; not on whole batches, nor inside of others.
        center: (x, y) in pixels; None is the middle.
        fill: level, or three, for what comes from outside of the image; None is black.
    """

    def __init__(
        self,
        degrees: Sequence[float],
        interpolation: Any = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Any = 0,
    ) -> None:
        super().__init__(interpolation, fill, center)
        self.degrees, self.expand = (float(degrees[0]), float(degrees[1])), bool(expand)

    @property
    def changes_size(self) -> bool:
        """See `Augmentation.changes_size`."""
        return self.expand

    def new_size(self, parameters: Parameters, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) of one augmented image, from its size and its parameters."""
        (angle,) = parameters["angles"].tolist()
        return rotation(angle, size, self.center, expand=self.expand)[2]

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"angles": _between(self.degrees, draws.four(0)[0])}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        angles = parameters["angles"].tolist()
        table = nothing(len(angles), 1)
        for row, angle in enumerate(angles):
            own: dict[str, Any] = {"interpolation": self.interpolation, "fill": self.fill}
            rotate(table, row, 0, angle, size, center=self.center, expand=self.expand, **own)
        return table


class RandomAffine(_Warp):
    """Rotates, moves, scales and shears by random amounts.

    Args:
        degrees: smallest and largest angle.
        translate: largest shares of the width and height by which the image is moved; None does not move it.
        scale: smallest and largest factor; None does not scale.
        shear: smallest and largest angle along rows, and along columns if there are four; None does not shear.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: level, or three, for what comes from outside of the image; None is black.
        center: (x, y) in pixels; None is the middle.
    """

    of_v2 = False  # of torchvision's second version, which rounds the matrix in another order

    def __init__(
        self,
        degrees: Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: Sequence[float] | None = None,
        interpolation: Any = "nearest",
        fill: Any = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill, center)
        self.degrees, self.translate, self.scale = tuple(degrees), translate, scale
        self.shear = None if shear is None else (*map(float, shear), 0.0, 0.0)[:4]

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        height, width = size
        (angle, scale, across, down), (right, lower, *_) = draws.four(0), draws.four(1)
        shear = self.shear if self.shear is not None else (0.0,) * 4
        share_x, share_y = self.translate if self.translate is not None else (0.0, 0.0)
        most = share_x * width, share_y * height
        moves = [np.rint(limit * (2 * share - 1)) for limit, share in zip(most, (right, lower), strict=True)]
        return {
            "angles": _between(self.degrees, angle),
            "scales": _between(self.scale if self.scale is not None else (1.0, 1.0), scale),
            "shears": np.stack([_between(shear[:2], across), _between(shear[2:], down)], axis=1),
            "moves": np.stack(moves, axis=1).astype(np.int64),
        }

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        names = ("angles", "moves", "scales", "shears")
        rows = list(zip(*(parameters[name].tolist() for name in names), strict=True))
        table = nothing(len(rows), 1)
        height, width = size
        center = self.center if self.center is not None else (width * 0.5, height * 0.5)
        for row, (angle, move, scale, shear) in enumerate(rows):
            matrix = (_inverse_of_v2 if self.of_v2 else _inverse)(center, angle, move, scale, shear)
            warp(table, row, 0, matrix, interpolation=self.interpolation, fill=self.fill)
        return table


class RandomPerspective(_Warp):
    """Changes the perspective with probability `p`: the corners move inwards.

    Args:
        distortion_scale: largest way of a corner as a share of half the width or height.
        p: probability.
        interpolation: "nearest", "bilinear" or "bicubic".
        fill: level, or three, for what comes from outside of the image; None is black.
    """

    def __init__(
        self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear", fill: Any = 0
    ) -> None:
        super().__init__(interpolation, fill, None)
        if not 0 <= distortion_scale <= 1:
            raise OptionError(f"distortion_scale={distortion_scale}; accepted: 0 to 1")
        self.distortion_scale, self.p = float(distortion_scale), check_probability(p)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        height, width = size
        most = np.array([int(self.distortion_scale * (width // 2)), int(self.distortion_scale * (height // 2))])
        shares = np.stack([*draws.four(1), *draws.four(2)], axis=1).reshape(-1, 4, 2)
        inwards = (shares * (most + 1)).astype(np.int64)
        corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]])
        directions = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]])
        return {"chosen": draws.four(0)[0] < self.p, "corners": corners + directions * inwards}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        height, width = size
        table = nothing(len(parameters["chosen"]), 1)
        whole = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        for row in np.flatnonzero(parameters["chosen"]).tolist():
            matrix = _perspective(whole, parameters["corners"][row].tolist())
            warp(table, row, 0, matrix, interpolation=self.interpolation, fill=self.fill)
        return table


def _perspective(starts: Sequence[Sequence[int]], ends: Sequence[Sequence[int]]) -> list[float]:
    """The map under which four points come from four others.  Source: torchvision's _get_perspective_coeffs."""
    rows = []
    for (x, y), (from_x, from_y) in zip(ends, starts, strict=True):
        rows.append([x, y, 1, 0, 0, 0, -from_x * x, -from_x * y])
        rows.append([0, 0, 0, x, y, 1, -from_y * x, -from_y * y])
    matrix = torch.tensor(rows, dtype=torch.float64, device="cpu")
    wanted = torch.tensor(starts, dtype=torch.float64, device="cpu").view(8)
    solution: list[float] = torch.linalg.lstsq(matrix, wanted, driver="gels").solution.to(torch.float32).tolist()
    return solution


def _between(range_: Sequence[float], share: Floats) -> Floats:
    low, high = range_
    return low + share * (high - low)


def _inverse(
    center: Sequence[float], angle: float, move: Sequence[float], scale: float, shear: Sequence[float]
) -> Matrix:
    """Inverse affine matrix, output to source pixels, of an image turned, scaled and sheared about a point, and moved.

    Source: torchvision's _get_inverse_affine_matrix, with the same order of rounding.
    """
    turn, along_x, along_y = (math.radians(each) for each in (angle, *shear))
    cosine = math.cos(along_y)
    a = math.cos(turn - along_y) / cosine
    b = -math.cos(turn - along_y) * math.tan(along_x) / cosine - math.sin(turn)
    c = math.sin(turn - along_y) / cosine
    d = -math.sin(turn - along_y) * math.tan(along_x) / cosine + math.cos(turn)
    first, second, third, fourth = d / scale, -b / scale, -c / scale, a / scale
    x, y = -center[0] - move[0], -center[1] - move[1]
    left = 0.0 / scale + (first * x + second * y) + center[0]
    top = 0.0 / scale + (third * x + fourth * y) + center[1]
    return first, second, left, third, fourth, top


def _inverse_of_v2(
    center: Sequence[float], angle: float, move: Sequence[float], scale: float, shear: Sequence[float]
) -> Matrix:
    """Inverse affine matrix of `_inverse`, rounded as in torchvision's v2.  Source: v2's _get_inverse_affine_matrix."""
    turn, along_x, along_y = (math.radians(each) for each in (angle, *shear))
    cosine, tangent = math.cos(along_y), math.tan(along_x)
    a = math.cos(turn - along_y) / cosine
    b = -(a * tangent + math.sin(turn))
    c = math.sin(turn - along_y) / cosine
    d = math.cos(turn) - c * tangent
    first, second, third, fourth = d / scale, -b / scale, -c / scale, a / scale
    x, y = center[0] + move[0], center[1] + move[1]
    left = center[0] - first * x - second * y
    top = center[1] - third * x - fourth * y
    return first, second, left, third, fourth, top
