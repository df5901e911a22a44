"""RandAugment and TrivialAugment for batches: torchvision's operations, magnitudes and distributions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.augment import ops
from fastdata.augment.base import Augmentation, Ints, Levels, Parameters, as_tensor, by_choice
from fastdata.errors import OptionError
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = ["RandAugment", "TrivialAugmentWide"]


class _Policy(Augmentation):
    """Operations picked at random from the fourteen of RandAugment."""

    num_ops: int
    num_magnitude_bins: int
    _symmetric = frozenset(range(1, 10))  # those whose magnitude may be negative

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None) -> None:
        self.interpolation = str(getattr(interpolation, "value", interpolation)).lower()
        if self.interpolation not in ("nearest", "bilinear"):
            raise OptionError(f"interpolation={interpolation!r}; accepted: nearest, bilinear")
        self.fill = None if fill is None else tuple(map(float, (fill,) if isinstance(fill, int | float) else fill))

    @abstractmethod
    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """Of every operation and bin: (14, bins)."""

    @abstractmethod
    def _bins(self, share: Floats) -> Ints:
        """Which bin each sample takes."""

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        table = self.magnitudes(size)
        choices, amounts = [], []
        for number in range(self.num_ops):
            which, sign, bin_, _ = draws.four(number)
            choice = (which * len(_NAMES)).astype(np.int64)
            amount = table[choice, self._bins(bin_)]
            negative = np.isin(choice, list(self._symmetric)) & (sign < 0.5)
            choices.append(choice)
            amounts.append(np.where(negative, -amount, amount))
        return {"choices": np.stack(choices, axis=1), "amounts": np.stack(amounts, axis=1)}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        for turn in range(self.num_ops):
            amounts = parameters["amounts"][:, turn]
            operations = [None if name == "Identity" else partial(self._do, name, amounts) for name in _NAMES]
            images = by_choice(images, parameters["choices"][:, turn], operations)
        return images

    def _do(self, name: str, amounts: Floats, images: torch.Tensor, rows: Ints) -> torch.Tensor:
        amounts = amounts[rows]
        if name in _MAPS:
            height, width = images.shape[-2:]
            matrices = torch.tensor([_MAPS[name](amount, height, width) for amount in amounts.tolist()])
            return ops.affine(images, matrices, mode=self.interpolation, fill=self.fill)
        return _LEVELS[name](images, as_tensor(amounts))


class RandAugment(_Policy):
    """`num_ops` operations per sample, all of one magnitude; torchvision's operations and magnitudes.

    Args:
        num_ops: operations one after the other.
        magnitude: bin, from 0.
        num_magnitude_bins: how many there are.
        interpolation: "nearest" or "bilinear".
        fill: level, or three, for what comes from outside of the image; None is black.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2019.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        if not 0 <= magnitude < num_magnitude_bins:
            raise OptionError(
                f"magnitude={magnitude}; accepted: 0 to {num_magnitude_bins - 1} (num_magnitude_bins - 1)"
            )
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `_Policy.magnitudes`."""
        height, width = size
        tops = (0, 0.3, 0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height, 30.0, 0.9, 0.9, 0.9, 0.9)
        return _table(tops, self.num_magnitude_bins, fewest_bits=4)

    def _bins(self, share: Floats) -> Ints:
        return np.full(len(share), self.magnitude, np.int64)


class TrivialAugmentWide(_Policy):
    """One operation per sample, of a random magnitude from a wide range; torchvision's operations and magnitudes.

    Args:
        num_magnitude_bins: how many magnitudes there are.
        interpolation: "nearest" or "bilinear".
        fill: level, or three, for what comes from outside of the image; None is black.

    Source: Müller and Hutter, "TrivialAugment: Tuning-free yet state-of-the-art data augmentation", ICCV 2021.
    """

    num_ops = 1

    def __init__(
        self,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = num_magnitude_bins

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `_Policy.magnitudes`."""
        tops = (0, 0.99, 0.99, 32.0, 32.0, 135.0, 0.99, 0.99, 0.99, 0.99)
        return _table(tops, self.num_magnitude_bins, fewest_bits=2)

    def _bins(self, share: Floats) -> Ints:
        return (share * self.num_magnitude_bins).astype(np.int64)


_NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def _table(tops: Sequence[float], bins: int, *, fewest_bits: int) -> Floats:
    """Magnitudes (14, bins): from 0 to each top, then bits kept, thresholds, and two operations without any."""
    rows = [torch.linspace(0.0, top, bins) for top in tops]
    bits = (8 - torch.arange(bins) / ((bins - 1) / (8 - fewest_bits))).round()
    rows += [bits, torch.linspace(1.0, 0.0, bins), torch.zeros(bins), torch.zeros(bins)]
    return torch.stack(rows).double().numpy()


Matrix: TypeAlias = tuple[float, float, float, float, float, float]


def _shear_x(amount: float, height: int, width: int) -> Matrix:
    slope = math.tan(math.radians(math.degrees(math.atan(amount))))
    return 1.0, slope, slope * height * 0.5, 0.0, 1.0, 0.0  # the upper edge stays


def _shear_y(amount: float, height: int, width: int) -> Matrix:
    slope = math.tan(math.radians(math.degrees(math.atan(amount))))
    return 1.0, 0.0, 0.0, slope, 1.0, slope * width * 0.5


def _translate_x(amount: float, height: int, width: int) -> Matrix:
    return 1.0, 0.0, -float(int(amount)), 0.0, 1.0, 0.0


def _translate_y(amount: float, height: int, width: int) -> Matrix:
    return 1.0, 0.0, 0.0, 0.0, 1.0, -float(int(amount))


def _rotate(amount: float, height: int, width: int) -> Matrix:
    angle = math.radians(-(amount % 360))
    return math.cos(angle), math.sin(angle), 0.0, -math.sin(angle), math.cos(angle), 0.0


_MAPS: dict[str, Callable[[float, int, int], Matrix]] = {
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
}
_LEVELS: dict[str, Levels] = {
    "Brightness": lambda images, amounts: ops.adjust_brightness(images, 1.0 + amounts),
    "Color": lambda images, amounts: ops.adjust_saturation(images, 1.0 + amounts),
    "Contrast": lambda images, amounts: ops.adjust_contrast(images, 1.0 + amounts),
    "Sharpness": lambda images, amounts: ops.adjust_sharpness(images, 1.0 + amounts),
    "Posterize": lambda images, amounts: ops.posterize(images, amounts.to(torch.int64)),
    "Solarize": lambda images, amounts: ops.solarize(images, 255.0 * amounts),
    "AutoContrast": lambda images, amounts: ops.autocontrast(images, torch.ones_like(amounts, dtype=torch.bool)),
    "Equalize": lambda images, amounts: ops.equalize(images, torch.ones_like(amounts, dtype=torch.bool)),
}
