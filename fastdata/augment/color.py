"""Augmentations of colours, and GaussianBlur; augment/base.py says what augmentations have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.augment.base import Augmentation, Ints, Parameters, check_probability
from fastdata.augment.effects import nothing, put
from fastdata.errors import OptionError
from fastdata.tables import EffectKind, EffectTable
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = [
    "ColorJitter",
    "FlipLater",
    "Grayscale",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "GaussianBlur",
    "RandomChannelPermutation",
    "RandomPhotometricDistort",
]


class ColorJitter(Augmentation):
    """Changes brightness, contrast, saturation and hue by random amounts, in random order.

    Args:
        brightness: largest change, or the smallest and largest factor.
        contrast: largest change, or the smallest and largest factor.
        saturation: largest change, or the smallest and largest factor.
        hue: largest turn, at most 0.5, or smallest and largest.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] | None = 0,
        contrast: float | Sequence[float] | None = 0,
        saturation: float | Sequence[float] | None = 0,
        hue: float | Sequence[float] | None = 0,
    ) -> None:
        self.brightness = _range("brightness", brightness, middle=1.0, least=0.0)
        self.contrast = _range("contrast", contrast, middle=1.0, least=0.0)
        self.saturation = _range("saturation", saturation, middle=1.0, least=0.0)
        self.hue = _range("hue", hue, middle=0.0, least=-0.5, most=0.5)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        shares, order = draws.four(0), np.argsort(np.stack(draws.four(1)), axis=0, kind="stable")
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        amounts = [
            share * 0 if range_ is None else range_[0] + share * (range_[1] - range_[0])
            for share, range_ in zip(shares, ranges, strict=True)
        ]
        return {"amounts": _as_torchs(np.stack(amounts, axis=1)), "order": order.T}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        amounts, order = parameters["amounts"], parameters["order"]
        table = nothing(len(amounts), 4)
        for number, (name, kind) in enumerate(_JITTERS.items()):
            if getattr(self, name) is None:
                continue
            for turn in range(4):
                rows = np.flatnonzero(order[:, turn] == number)
                put(table, rows, turn, kind, *_amounts(kind, amounts[rows, number]))
        return table


_JITTERS = {
    "brightness": EffectKind.BRIGHTNESS,
    "contrast": EffectKind.CONTRAST,
    "saturation": EffectKind.SATURATION,
    "hue": EffectKind.HUE,
}


class GaussianBlur(Augmentation):
    """Blurs with a Gaussian of random width.

    Args:
        kernel_size: pixels, odd.
        sigma: standard deviation in pixels, or the smallest and largest.
    """

    def __init__(self, kernel_size: int | Sequence[int], sigma: float | Sequence[float] = (0.1, 2.0)) -> None:
        sizes = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(set(sizes)) != 1 or sizes[0] < 1 or sizes[0] % 2 == 0:
            raise OptionError(f"kernel_size={kernel_size!r}; accepted: one odd number of pixels for both axes")
        self.kernel_size = int(sizes[0])
        low, high = (sigma, sigma) if isinstance(sigma, int | float) else (sigma[0], sigma[1])
        if not 0 < low <= high:
            raise OptionError(f"sigma={sigma!r}; accepted: a number above 0, or two in ascending order")
        self.sigma = float(low), float(high)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"sigmas": self.sigma[0] + draws.four(0)[0] * (self.sigma[1] - self.sigma[0])}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        sigmas = parameters["sigmas"]
        if self.kernel_size // 2 >= min(size):
            raise OptionError(f"kernel_size={self.kernel_size} reaches across images of {size[0]} × {size[1]} pixels")
        table = nothing(len(sigmas), 1)
        rows = np.arange(len(sigmas))
        put(table, rows, 0, EffectKind.BLUR, self.kernel_size, self.kernel_size, sigmas, sigmas)
        return table


class RandomPhotometricDistort(Augmentation):
    """Changes brightness, contrast, saturation, hue and the order of channels, each with probability `p`.

    Args:
        brightness: smallest and largest factor.
        contrast: smallest and largest factor; applied before or after saturation and hue.
        saturation: smallest and largest factor.
        hue: smallest and largest turn.
        p: probability of each.

    Source: Liu et al., "SSD: Single shot multibox detector", 2016.
    """

    def __init__(
        self,
        brightness: Sequence[float] = (0.875, 1.125),
        contrast: Sequence[float] = (0.5, 1.5),
        saturation: Sequence[float] = (0.5, 1.5),
        hue: Sequence[float] = (-0.05, 0.05),
        p: float = 0.5,
    ) -> None:
        self.brightness, self.contrast, self.saturation, self.hue = brightness, contrast, saturation, hue
        self.p = check_probability(p)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        shares, chances, others = draws.four(0), draws.four(1), draws.four(2)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        amounts = [low + share * (high - low) for share, (low, high) in zip(shares, ranges, strict=True)]
        return {
            "amounts": _as_torchs(np.stack(amounts, axis=1)),
            "chosen": np.stack(chances, axis=1) < self.p,
            "contrast_first": others[0] < 0.5,
            "permuted": others[1] < self.p,
            "permutations": _permutations(draws, 3),
        }

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        chosen, amounts, first = parameters["chosen"], parameters["amounts"], parameters["contrast_first"]
        table = nothing(len(amounts), 6)
        turns = [  # number of the operation, and who has it there
            (0, np.ones_like(first)),
            (1, first),
            (2, np.ones_like(first)),
            (3, np.ones_like(first)),
            (1, ~first),
        ]
        for turn, (number, those) in enumerate(turns):
            rows = np.flatnonzero(those & chosen[:, number])
            kind = list(_JITTERS.values())[number]
            put(table, rows, turn, kind, *_amounts(kind, amounts[rows, number]))
        rows = np.flatnonzero(parameters["permuted"])
        put(table, rows, 5, EffectKind.PERMUTE, *parameters["permutations"][rows].T)
        return table


class RandomChannelPermutation(Augmentation):
    """Puts the channels in random order."""

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"permutations": _permutations(draws, 0)}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        permutations = parameters["permutations"]
        table = nothing(len(permutations), 1)
        put(table, np.arange(len(permutations)), 0, EffectKind.PERMUTE, *permutations.T)
        return table


def _permutations(draws: Draws, number: int) -> Ints:
    """Permutations of the channels: (N, 3)."""
    return np.argsort(np.stack(draws.four(number)[:3], axis=1), axis=1, kind="stable")


def _as_torchs(amounts: Floats) -> Floats:
    """Rounds amounts to float32, the dtype that torchvision draws."""
    return amounts.astype(np.float32).astype(np.float64)


def _amounts(kind: EffectKind, amount: Floats) -> Sequence[Any]:
    """Amounts in the native core's form; for hue a byte (Pillow's), and a share of the circle (a tensor's)."""
    return ((amount * 255).astype(np.int32) & 255, amount) if kind is EffectKind.HUE else (amount,)


def _range(
    name: str, given: float | Sequence[float] | None, *, middle: float, least: float, most: float = math.inf
) -> tuple[float, float] | None:
    """Smallest and largest value from one number or two; None when nothing would change."""
    if given is None:
        return None
    if isinstance(given, int | float):
        low, high = max(middle - given, least) if least == 0 else middle - given, middle + given
        given_ok = given >= 0
    else:
        (low, high), given_ok = map(float, given), True
    if not given_ok or not least <= low <= high <= most:
        raise OptionError(
            f"{name}={given!r}; accepted: a number of at least 0, or two in ascending order from {least} to {most}"
        )
    return None if low == high == middle else (float(low), float(high))


class _Sometimes(Augmentation):
    """One operation, done with probability `p`."""

    _effect: EffectKind

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_probability(p)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return {"chosen": draws.four(0)[0] < self.p}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        chosen = parameters["chosen"]
        table = nothing(len(chosen), 1)
        put(table, np.flatnonzero(chosen), 0, self._effect, *self._values())
        return table

    def _values(self) -> Sequence[float]:
        """Values of the effect."""
        return ()


class RandomGrayscale(_Sometimes):
    """Converts to grey with probability `p`."""

    _effect = EffectKind.GREY

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)


class Grayscale(RandomGrayscale):
    """Converts to grey, with three channels."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels != 3:
            raise OptionError(f"num_output_channels={num_output_channels}; accepted: 3")
        super().__init__(1.0)
        self.num_output_channels = num_output_channels

    @property
    def is_random(self) -> bool:
        """See `Augmentation.is_random`."""
        return False


class RandomInvert(_Sometimes):
    """Inverts the levels with probability `p`."""

    _effect = EffectKind.INVERT


class RandomPosterize(_Sometimes):
    """Keeps only the highest `bits` of each level, with probability `p`."""

    _effect = EffectKind.POSTERIZE

    def __init__(self, bits: int, p: float = 0.5) -> None:
        if not isinstance(bits, int) or not 1 <= bits <= 8:
            raise OptionError(f"bits={bits}; accepted: an integer from 1 to 8")
        self.bits, self.p = bits, check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.bits,)


class RandomSolarize(_Sometimes):
    """Inverts the levels from `threshold` on, with probability `p`."""

    _effect = EffectKind.SOLARIZE

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold, self.p = float(threshold), check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.threshold,)


class RandomAdjustSharpness(_Sometimes):
    """Sharpens (a factor above 1) or smooths, with probability `p`."""

    _effect = EffectKind.SHARPNESS

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        if not sharpness_factor >= 0:
            raise OptionError(f"sharpness_factor={sharpness_factor}; accepted: at least 0")
        self.sharpness_factor, self.p = float(sharpness_factor), check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.sharpness_factor,)


class RandomAutocontrast(_Sometimes):
    """Stretches each channel to all levels, with probability `p`."""

    _effect = EffectKind.AUTOCONTRAST


class RandomEqualize(_Sometimes):
    """Equalises the histograms, with probability `p`."""

    _effect = EffectKind.EQUALIZE


class FlipLater(_Sometimes):
    """Mirrors after other augmentations, with probability `p`; a flip before them is part of the view."""

    _effect = EffectKind.FLIP

    def __init__(self, p: float, axis: str) -> None:
        super().__init__(p)
        self.axis = axis

    @property
    def label(self) -> str:
        """See `Augmentation.label`."""
        return f"Random{self.axis.capitalize()}Flip"

    def _values(self) -> Sequence[float]:
        return float(self.axis == "horizontal"), float(self.axis == "vertical")
