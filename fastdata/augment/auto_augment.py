"""RandAugment, TrivialAugment and AutoAugment: torchvision's operations, magnitudes and distributions."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fastdata.augment.base import Augmentation, Ints, Parameters
from fastdata.augment.effects import Matrix, nothing, put, rotate, warp
from fastdata.errors import OptionError
from fastdata.tables import EffectKind, EffectTable
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = ["AutoAugment", "Policy", "RandAugment", "TrivialAugmentWide"]


class Policy(Augmentation):
    """Operations picked at random from the fourteen of RandAugment."""

    num_ops: int
    num_magnitude_bins: int
    of_v1 = False  # of torchvision's first version, whose thresholds for solarising are rounded in another way
    _symmetric = frozenset(range(1, 10))  # those whose magnitude may be negative

    def __init__(self, interpolation: Any, fill: float | Sequence[float] | None) -> None:
        self.interpolation = str(getattr(interpolation, "value", interpolation)).lower()
        if self.interpolation not in ("nearest", "bilinear"):
            raise OptionError(f"interpolation={interpolation!r}; accepted: nearest, bilinear")
        self.fill = None if fill is None else tuple(map(float, (fill,) if isinstance(fill, int | float) else fill))
        if self.fill is not None and len(self.fill) not in (1, 3):
            raise OptionError(f"fill={fill!r}; accepted: one level, or three")

    @abstractmethod
    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """Magnitudes of every operation and bin: (14, bins)."""

    def _signed(self, choices: Ints, amounts: Floats, share: Floats) -> Floats:
        """Amounts, made negative with probability 1/2 if the operation's amount may be negative."""
        return np.where(np.isin(choices, list(self._symmetric)) & (share < 0.5), -amounts, amounts)

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        choices, amounts = parameters["choices"], parameters["amounts"]
        table = nothing(*choices.shape)
        for number, name in enumerate(_ALL):
            rows, turns = np.nonzero(choices == number)
            if name in _KINDS:
                kind, first = _KINDS[name]
                put(table, rows, turns, kind, *([first + amounts[rows, turns]] if first is not None else []))
            elif name != "Identity":
                for row, turn in zip(rows.tolist(), turns.tolist(), strict=True):
                    self._move(table, row, turn, name, float(amounts[row, turn]), size)
        return table

    def _move(self, table: EffectTable, row: int, turn: int, name: str, amount: float, size: tuple[int, int]) -> None:
        """Fills in one operation that moves pixels, for one image."""
        place: dict[str, Any] = {"interpolation": self.interpolation, "fill": self.fill}
        if name == "Rotate":
            rotate(table, row, turn, amount, size, **place)
        else:
            warp(table, row, turn, _MAPS[name](amount), **place)


class _AnyOperations(Policy):
    """Applies any of the fourteen operations, all as likely, one after the other."""

    @abstractmethod
    def _bins(self, share: Floats) -> Ints:
        """Bin of magnitudes that each sample takes."""

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        table = self.magnitudes(size)
        choices, amounts = [], []
        for number in range(self.num_ops):
            which, sign, bin_, _ = draws.four(number)
            choice = (which * len(_NAMES)).astype(np.int64)
            choices.append(choice)
            amounts.append(self._signed(choice, table[choice, self._bins(bin_)], sign))
        return {"choices": np.stack(choices, axis=1), "amounts": np.stack(amounts, axis=1)}


class RandAugment(_AnyOperations):
    """Applies `num_ops` operations per sample, all of one magnitude; torchvision's operations and magnitudes.

    Args:
        num_ops: operations one after the other.
        magnitude: bin, from 0.
        num_magnitude_bins: number of magnitudes.
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
        if not isinstance(magnitude, int) or not 0 <= magnitude < num_magnitude_bins:
            raise OptionError(
                f"magnitude={magnitude}; accepted: 0 to {num_magnitude_bins - 1} (num_magnitude_bins - 1)"
            )
        self.num_ops, self.magnitude, self.num_magnitude_bins = num_ops, magnitude, num_magnitude_bins

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `Policy.magnitudes`."""
        return _moderate(size, self.num_magnitude_bins, of_v1=self.of_v1)

    def _bins(self, share: Floats) -> Ints:
        return np.full(len(share), self.magnitude, np.int64)


class TrivialAugmentWide(_AnyOperations):
    """Applies one operation per sample, of a random magnitude from a wide range, as in torchvision.

    Args:
        num_magnitude_bins: number of magnitudes.
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
        """See `Policy.magnitudes`."""
        tops = (0, 0.99, 0.99, 32.0, 32.0, 135.0, 0.99, 0.99, 0.99, 0.99)
        return _table(tops, self.num_magnitude_bins, fewest_bits=2, of_v1=self.of_v1)

    def _bins(self, share: Floats) -> Ints:
        return (share * self.num_magnitude_bins).astype(np.int64)


class AutoAugment(Policy):
    """Applies one of several learnt pairs of operations per sample, each operation with its own probability.

    Args:
        policies: for each pair the two operations' names, probabilities, and bins of their magnitudes out of ten, as
            torchvision's AutoAugment has them.
        interpolation: "nearest" or "bilinear".
        fill: level, or three, for what comes from outside of the image; None is black.

    Source: Cubuk et al., "AutoAugment: Learning augmentation strategies from data", CVPR 2019.
    """

    num_ops = 2
    num_magnitude_bins = 10

    def __init__(
        self,
        policies: Sequence[Sequence[tuple[str, float, int | None]]],
        interpolation: Any = "nearest",
        fill: float | Sequence[float] | None = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.policies = policies
        self._choices = np.array([[_ALL.index(name) for name, *_ in pair] for pair in policies])
        self._shares = np.array([[share for _, share, _ in pair] for pair in policies])
        self._magnitudes = np.array([[bin_ if bin_ is not None else 0 for *_, bin_ in pair] for pair in policies])

    @property
    def numbers(self) -> list[list[tuple[int, float, int]]]:
        """For each pair of operations their numbers, probabilities, and bins of their magnitudes."""
        columns = (self._choices.tolist(), self._shares.tolist(), self._magnitudes.tolist())
        return [list(zip(*pair, strict=True)) for pair in zip(*columns, strict=True)]

    def magnitudes(self, size: tuple[int, int]) -> Floats:
        """See `Policy.magnitudes`."""
        return _moderate(size, self.num_magnitude_bins, of_v1=self.of_v1)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        which, *shares = draws.four(0)[:3]
        signs = np.stack(draws.four(1)[:2], axis=1)
        pair = (which * len(self.policies)).astype(np.int64)
        choices = self._choices[pair]
        table = np.vstack([self.magnitudes(size), np.zeros((1, self.num_magnitude_bins))])
        amounts = table[choices, self._magnitudes[pair]]
        done = np.stack(shares, axis=1) <= self._shares[pair]
        return {
            "choices": np.where(done, choices, _ALL.index("Identity")),
            "amounts": self._signed(choices, amounts, signs),
        }


_NAMES = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


_ALL = (*_NAMES, "Invert")  # which only AutoAugment has


def _moderate(size: tuple[int, int], bins: int, *, of_v1: bool) -> Floats:
    """Magnitudes of RandAugment and AutoAugment."""
    height, width = size
    tops = (0, 0.3, 0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height, 30.0, 0.9, 0.9, 0.9, 0.9)
    return _table(tops, bins, fewest_bits=4, of_v1=of_v1)


@lru_cache(maxsize=64)
def _table(tops: tuple[float, ...], bins: int, *, fewest_bits: int, of_v1: bool) -> Floats:
    """Magnitudes (14, bins): from 0 to each top, then bits kept, thresholds, and two operations without any.

    Bits and thresholds are rounded as in v1, which for example divides 255 into bins, or as in v2, which multiplies
    a share by 255.
    """
    rows = [torch.linspace(0.0, top, bins) for top in tops]
    fewer = torch.arange(bins) / ((bins - 1) / (8 - fewest_bits))
    bits = 8 - fewer.round() if of_v1 else (8 - fewer).round()
    thresholds = torch.linspace(255.0, 0.0, bins).double() if of_v1 else 255.0 * torch.linspace(1.0, 0.0, bins).double()
    rows += [bits, thresholds, torch.zeros(bins), torch.zeros(bins)]
    table = torch.stack([row.double() for row in rows]).numpy()
    table.flags.writeable = False  # is given to every batch
    return table


# The effect of each operation, and what its amount is added to; None where it has no amount.
_KINDS: dict[str, tuple[EffectKind, float | None]] = {
    "Brightness": (EffectKind.BRIGHTNESS, 1.0),
    "Color": (EffectKind.SATURATION, 1.0),
    "Contrast": (EffectKind.CONTRAST, 1.0),
    "Sharpness": (EffectKind.SHARPNESS, 1.0),
    "Posterize": (EffectKind.POSTERIZE, 0.0),
    "Solarize": (EffectKind.SOLARIZE, 0.0),
    "AutoContrast": (EffectKind.AUTOCONTRAST, None),
    "Equalize": (EffectKind.EQUALIZE, None),
    "Invert": (EffectKind.INVERT, None),
}


def _slopes(amount: float) -> tuple[float, float]:
    """The slope along rows and along columns, as torchvision computes them for PIL images."""
    angle = math.radians(math.degrees(math.atan(amount)))
    return math.tan(angle), math.sin(angle) / math.cos(angle)


# Where each pixel comes from, as torchvision tells Pillow.
_MAPS: dict[str, Callable[[float], Matrix]] = {
    "ShearX": lambda amount: (1.0, _slopes(amount)[0], 0.0, 0.0, 1.0, 0.0),
    "ShearY": lambda amount: (1.0, 0.0, 0.0, _slopes(amount)[1], 1.0, 0.0),
    "TranslateX": lambda amount: (1.0, 0.0, -float(int(amount)), 0.0, 1.0, 0.0),
    "TranslateY": lambda amount: (1.0, 0.0, 0.0, 0.0, 1.0, -float(int(amount))),
}
