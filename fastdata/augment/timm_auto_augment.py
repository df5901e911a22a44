"""timm's policies of operations on PIL images: its RandAugment, AutoAugment, 3-Augment and AugMix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.augment.base import Augmentation, Ints, Parameters
from fastdata.augment.batch_effects import FILTERS_ON_BATCHES
from fastdata.augment.effects import FILTERS, nothing, rotate
from fastdata.errors import OptionError
from fastdata.tables import EffectKind, EffectTable
from fastdata.views.philox import Floats, normal
from fastdata.views.streams import Draws

__all__ = ["Operation", "TimmsAugMix", "TimmsAutoAugment", "TimmsRandAugment"]

Float32s: TypeAlias = npt.NDArray[np.float32]

_LEVELS = 10.0  # of timm's magnitudes, unless it is told otherwise


@dataclass(frozen=True, kw_only=True)
class Operation:
    """timm's AugmentOp.

    Attributes:
        name: name in timm's table.
        prob: probability that it is done.
        magnitude: magnitude from 0 to `magnitude_max`.
        magnitude_std: deviation of a normal distribution around the magnitude; infinite for a uniform one below it.
        magnitude_max: None for 10.
        translate_const: largest move in pixels.
        translate_pct: largest move as a share of the size.
        filters: names of filters; one is drawn for each operation that moves pixels.
        draws_filter: timm draws among the filters, also if there is only one.
        fill: red, green and blue of what comes from outside.
    """

    name: str
    prob: float = 0.5
    magnitude: float = _LEVELS
    magnitude_std: float = 0.0
    magnitude_max: float | None = None
    translate_const: float = 250.0
    translate_pct: float = 0.45
    filters: tuple[str, ...] = ("bilinear", "bicubic")
    draws_filter: bool = True
    fill: tuple[int, int, int] = (128, 128, 128)

    def __post_init__(self) -> None:
        if self.name not in _PUTS:
            raise OptionError(f"operation {self.name!r}; accepted: {', '.join(_PUTS)}")
        if not self.filters or any(each not in FILTERS for each in self.filters):
            raise OptionError(f"filters={self.filters}; accepted: {', '.join(FILTERS)}")

    def levels(self, share: Floats, other: Floats) -> Floats:
        """Magnitudes of N samples, from two numbers of [0, 1) for each."""
        if self.magnitude_std == math.inf:
            levels = share * self.magnitude
        elif self.magnitude_std > 0:
            levels = self.magnitude + self.magnitude_std * normal(share, other)
        else:
            levels = np.full(len(share), float(self.magnitude))
        return np.clip(levels, 0.0, self.magnitude_max or _LEVELS)


class _Operations(Augmentation):
    """Applies operations one after the other, by number; -1 is none."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = list(operations)

    @property
    def on_batches(self) -> bool:
        """See `Augmentation.on_batches`."""
        return all(set(each.filters) <= set(FILTERS_ON_BATCHES) and each.name not in _BLURS for each in self.operations)

    def _drawn(self, draws: Draws, choices: Ints, first: int) -> dict[str, Any]:
        """Parameters of the operations that are chosen, (N, turns), from the step's draws beginning with `first`."""
        levels = np.zeros(choices.shape)
        done, signs, filters, radii = (np.zeros(choices.shape) for _ in range(4))
        for turn in range(choices.shape[1]):
            done[:, turn], share, other, signs[:, turn] = draws.four(first + 2 * turn)
            filters[:, turn], radii[:, turn], *_ = draws.four(first + 2 * turn + 1)
            for number, operation in enumerate(self.operations):
                rows = np.flatnonzero(choices[:, turn] == number)
                levels[rows, turn] = operation.levels(share[rows], other[rows])
                missed = rows[done[rows, turn] > operation.prob] if operation.prob < 1.0 else rows[:0]
                choices[missed, turn] = -1
        negative = np.where(signs > 0.5, -1.0, 1.0)
        return {"choices": choices, "levels": levels, "signs": negative, "filters": filters, "radii": radii}

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        choices = parameters["choices"]
        table = nothing(*choices.shape)
        for number, operation in enumerate(self.operations):
            rows, turns = np.nonzero(choices == number)
            if len(rows):
                shares, signs, filters, radii = (
                    parameters[name][rows, turns] for name in ("levels", "signs", "filters", "radii")
                )
                chosen = (filters * len(operation.filters)).astype(np.int64)
                place = _Place(table, rows, turns, size, operation, chosen, radii)
                _PUTS[operation.name](place, shares / _LEVELS, signs)
        return table


_BLURS = ("GaussianBlur", "GaussianBlurRand")  # Pillow's, by boxes


class TimmsRandAugment(_Operations):
    """Applies `num_layers` operations per sample, drawn uniformly or by weights.

    Args:
        operations: the operations.
        num_layers: number of operations applied to each image.
        choice_weights: relative probability of each operation; with weights no operation is applied twice.

    Source: Cubuk et al., "RandAugment: Practical automated data augmentation with a reduced search space", 2019.
    """

    def __init__(
        self, operations: Sequence[Operation], num_layers: int = 2, choice_weights: Sequence[float] | None = None
    ) -> None:
        super().__init__(operations)
        self.num_layers = num_layers
        self.choice_weights = None if choice_weights is None else [float(weight) for weight in choice_weights]
        if self.choice_weights is not None and (
            len(self.choice_weights) != len(self.operations) or num_layers > np.count_nonzero(self.choice_weights)
        ):
            raise OptionError(f"choice_weights={self.choice_weights}; expected one for each operation")

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        wanted = self.num_layers if self.choice_weights is None else len(self.operations)
        calls = -(-wanted // 4)
        shares = np.stack([column for number in range(calls) for column in draws.four(number)], axis=1)[:, :wanted]
        if self.choice_weights is None:
            choices = (shares * len(self.operations)).astype(np.int64)
        else:  # whoever waits least, with waiting times of these rates, is first
            with np.errstate(divide="ignore"):
                waits = -np.log(1.0 - shares) / np.array(self.choice_weights)
            choices = np.argsort(waits, axis=1)[:, : self.num_layers]
        return self._drawn(draws, choices, calls)


class TimmsAutoAugment(_Operations):
    """Applies one of several lists of operations per sample.

    Args:
        policy: the lists.

    Source: Cubuk et al., "AutoAugment: Learning augmentation strategies from data", CVPR 2019; Touvron et al., "DeiT
    III: Revenge of the ViT", 2022, for 3-Augment.
    """

    def __init__(self, policy: Sequence[Sequence[Operation]]) -> None:
        super().__init__([operation for part in policy for operation in part])
        self._parts = np.full((len(policy), max(map(len, policy))), -1, np.int64)
        first = 0
        for number, part in enumerate(policy):
            self._parts[number, : len(part)] = np.arange(first, first + len(part))
            first += len(part)

    @property
    def parts(self) -> list[list[int]]:
        """The numbers of the operations in each list, which is filled up with -1."""
        return self._parts.tolist()

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        part = (draws.four(0)[0] * len(self._parts)).astype(np.int64)
        return self._drawn(draws, self._parts[part], 1)


class TimmsAugMix(_Operations):
    """A weighted sum of chains of operations, mixed with the image itself.

    Args:
        operations: the operations.
        width: chains.
        depth: operations in each; -1 for 1 to 3.
        blended: mixes the chains into the image one after the other, with the same shares but for rounding.
        alpha: parameter, above 0, of the Dirichlet distribution of the chains' weights and of the Beta distribution of
            their share.  1 draws both uniformly.

    Source: Hendrycks et al., "AugMix: A simple data processing method to improve robustness and uncertainty", 2020.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        width: int = 3,
        depth: int = -1,
        blended: bool = False,
        alpha: float = 1.0,
    ) -> None:
        super().__init__(operations)
        if not alpha > 0:
            raise OptionError(f"alpha={alpha}; accepted: a number above 0")
        self.width, self.depth, self.blended, self.alpha = width, depth, blended, float(alpha)
        self._longest = depth if depth > 0 else 3

    @property
    def on_batches(self) -> bool:
        """See `Augmentation.on_batches`."""
        return False

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        count, longest = len(draws.indices), self._longest
        calls = 1 + self.width * (1 + -(-longest // 4))
        choices = np.full((count, self.width * longest), -1, np.int64)
        weights = np.zeros((count, self.width))
        number = 1
        for chain in range(self.width):
            weight, depth, *_ = draws.four(number)
            shares = [column for at in range(number + 1, number + 1 + -(-longest // 4)) for column in draws.four(at)]
            number += 1 + -(-longest // 4)
            weights[:, chain] = -np.log(1.0 - weight)
            depths = np.full(count, self.depth) if self.depth > 0 else 1 + (depth * 3).astype(np.int64)
            for place in range(longest):
                chosen = (shares[place] * len(self.operations)).astype(np.int64)
                choices[:, chain * longest + place] = np.where(place < depths, chosen, -1)
        drawn = self._drawn(draws, choices, calls)
        drawn["weights"] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        share, *words = draws.four(0)
        drawn["share"] = share.astype(np.float32)
        if self.alpha != 1.0:
            drawn["weights"], drawn["share"] = self._weights_and_share(words)
        if self.blended:
            drawn["weights"] = _weights_one_by_one(drawn["weights"] * drawn["share"][:, np.newaxis])
            drawn["share"] = np.ones_like(drawn["share"])
        return drawn

    def _weights_and_share(self, words: Sequence[Floats]) -> tuple[Float32s, Float32s]:
        """Weights (N, width) and shares (N,) of N images, drawn by one NumPy generator for each image."""
        count = len(words[0])
        weights, share = np.empty((count, self.width), np.float32), np.empty(count, np.float32)
        seeds = (np.stack(words, axis=1) * 2**32).astype(np.uint64).tolist()
        for row, seed in enumerate(seeds):
            generator = np.random.default_rng(seed)
            weights[row] = generator.dirichlet([self.alpha] * self.width)
            share[row] = generator.beta(self.alpha, self.alpha)
        return weights, share

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        chains = super().effects(parameters, size)
        table = nothing(len(chains), chains.shape[1] + self.width + 2)
        table["kind"][:, 0], table["kind"][:, -1] = EffectKind.MIX_BEGIN, EffectKind.MIX_END
        table["values"][:, -1, 0], table["values"][:, 0, 0] = parameters["share"], float(self.blended)
        for chain in range(self.width):
            first = 1 + chain * (self._longest + 1)
            table[:, first : first + self._longest] = chains[:, chain * self._longest : (chain + 1) * self._longest]
            table["kind"][:, first + self._longest] = EffectKind.MIX_BLEND if self.blended else EffectKind.MIX_ADD
            table["values"][:, first + self._longest, 0] = parameters["weights"][:, chain]
        return table


def _weights_one_by_one(weights: Float32s) -> Float32s:
    """Shares (N, chains) of images that are mixed in one after the other, from those in the result."""
    shares, left = np.empty_like(weights), np.ones(len(weights), np.float32)
    for chain in reversed(range(weights.shape[1])):
        shares[:, chain] = weights[:, chain] / left
        left = left * (1 - shares[:, chain])
    return shares


@dataclass(frozen=True)
class _Place:
    """Rows and turns of an effect table that one operation fills, and the values that it needs.

    Attributes:
        table: effects of all images.
        rows: the images for which the operation was drawn.
        turns: for each of `rows`, the turn in which it was drawn.
        size: (height, width).
        operation: the operation.
        filters: for each of `rows`, the index of the filter that was drawn.
        radii: random numbers of [0, 1).
    """

    table: EffectTable
    rows: Any
    turns: Any
    size: tuple[int, int]
    operation: Operation
    filters: Ints
    radii: Floats

    def put(self, kind: EffectKind, value: Any = 0.0, other: float = 0.0) -> None:
        """Fills in the same kind of effect for all rows."""
        self.table["kind"][self.rows, self.turns] = kind
        self.table["values"][self.rows, self.turns, 0] = value
        self.table["values"][self.rows, self.turns, 1] = other

    def move(self, *, x: tuple[Any, Any] = (0.0, 0.0), y: tuple[Any, Any] = (0.0, 0.0)) -> None:
        """Shears and moves: adds to each of x and y a share of the other coordinate, and a number of pixels."""
        self.table["kind"][self.rows, self.turns] = EffectKind.AFFINE
        numbers = np.array([FILTERS[name] for name in self.operation.filters])
        self.table["filter"][self.rows, self.turns] = numbers[self.filters]
        for at, value in enumerate((1.0, *x, y[0], 1.0, y[1])):
            self.table["values"][self.rows, self.turns, at] = value
        self.table["values"][self.rows, self.turns, 8:] = self.operation.fill

    def rotate(self, angles: Floats) -> None:
        """Turns each by its own angle."""
        columns = (each.tolist() for each in (self.rows, self.turns, self.filters, angles))
        for row, turn, number, angle in zip(*columns, strict=True):
            own = {"interpolation": self.operation.filters[number], "fill": self.operation.fill}
            rotate(self.table, row, turn, angle, self.size, **own)


def _posterize(place: _Place, bits: Floats) -> None:
    place.put(EffectKind.POSTERIZE, np.minimum(bits, 8))


def _enhance(kind: EffectKind) -> Any:
    return lambda place, share, sign: place.put(kind, share * 1.8 + 0.1)


def _enhance_increasing(kind: EffectKind) -> Any:
    return lambda place, share, sign: place.put(kind, np.maximum(0.1, 1.0 + sign * (share * 0.9)))


def _between(share: Floats, low: float, high: float) -> Floats:
    return np.clip(low + (high - low) * share, low, high)


def _blur_at_random(place: _Place, share: Floats, sign: Floats) -> None:
    most = 2.0 * _between(share, 0.0, 1.0)
    place.put(EffectKind.BOX_BLUR, 0.1 + (most - 0.1) * place.radii)


_ENHANCERS = {
    "Color": EffectKind.SATURATION,
    "Contrast": EffectKind.CONTRAST,
    "Brightness": EffectKind.BRIGHTNESS,
    "Sharpness": EffectKind.SHARPNESS,
}
# What each operation does at a share of the highest level, with a random sign.  Source: timm's LEVEL_TO_ARG and
# NAME_TO_OP.
_PUTS: dict[str, Any] = {
    "AutoContrast": lambda place, share, sign: place.put(EffectKind.AUTOCONTRAST),
    "Equalize": lambda place, share, sign: place.put(EffectKind.EQUALIZE),
    "Invert": lambda place, share, sign: place.put(EffectKind.INVERT),
    "Rotate": lambda place, share, sign: place.rotate(sign * (share * 30.0)),
    "Posterize": lambda place, share, sign: _posterize(place, np.floor(share * 4)),
    "PosterizeIncreasing": lambda place, share, sign: _posterize(place, 4 - np.floor(share * 4)),
    "PosterizeOriginal": lambda place, share, sign: _posterize(place, np.floor(share * 4) + 4),
    "Solarize": lambda place, share, sign: place.put(EffectKind.SOLARIZE, np.minimum(256, np.floor(share * 256))),
    "SolarizeIncreasing": lambda place, share, sign: place.put(
        EffectKind.SOLARIZE, 256 - np.minimum(256, np.floor(share * 256))
    ),
    "SolarizeAdd": lambda place, share, sign: place.put(
        EffectKind.SOLARIZE_ADD, np.minimum(128, np.floor(share * 110)), 128
    ),
    **{name: _enhance(kind) for name, kind in _ENHANCERS.items()},
    **{f"{name}Increasing": _enhance_increasing(kind) for name, kind in _ENHANCERS.items()},
    "ShearX": lambda place, share, sign: place.move(x=(sign * (share * 0.3), 0.0)),
    "ShearY": lambda place, share, sign: place.move(y=(sign * (share * 0.3), 0.0)),
    "TranslateX": lambda place, share, sign: place.move(x=(0.0, sign * (share * place.operation.translate_const))),
    "TranslateY": lambda place, share, sign: place.move(y=(0.0, sign * (share * place.operation.translate_const))),
    "TranslateXRel": lambda place, share, sign: place.move(
        x=(0.0, sign * (share * place.operation.translate_pct) * place.size[1])
    ),
    "TranslateYRel": lambda place, share, sign: place.move(
        y=(0.0, sign * (share * place.operation.translate_pct) * place.size[0])
    ),
    "Desaturate": lambda place, share, sign: place.put(
        EffectKind.SATURATION, np.clip(1.0 - _between(share, 0.5, 1.0), 0.0, 1.0)
    ),
    "GaussianBlur": lambda place, share, sign: place.put(EffectKind.BOX_BLUR, _between(share, 0.1, 2.0)),
    "GaussianBlurRand": _blur_at_random,
}
