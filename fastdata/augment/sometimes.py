"""Augmentations that are done or not: single operations with a probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fastdata.augment import ops
from fastdata.augment.base import Augmentation, Parameters, as_tensor, by_choice, check_probability
from fastdata.augment.effects import nothing, put
from fastdata.errors import OptionError
from fastdata.native import EffectKind, EffectTable
from fastdata.views.streams import Draws

__all__ = [
    "FlipLater",
    "Grayscale",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


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
        """The effect's."""
        return ()


class RandomGrayscale(_Sometimes):
    """Grey with probability `p`."""

    _effect = EffectKind.GREY

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.grayscale(images, as_tensor(parameters["chosen"]))


class Grayscale(RandomGrayscale):
    """Grey, with three channels."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels != 3:
            raise OptionError(f"num_output_channels={num_output_channels}; accepted: 3")
        super().__init__(1.0)
        self.num_output_channels = num_output_channels


class RandomInvert(_Sometimes):
    """Levels turned round with probability `p`."""

    _effect = EffectKind.INVERT

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.solarize(images, as_tensor(np.where(parameters["chosen"], 0.0, 256.0)))


class RandomPosterize(_Sometimes):
    """The highest `bits` of each level kept, with probability `p`."""

    _effect = EffectKind.POSTERIZE

    def __init__(self, bits: int, p: float = 0.5) -> None:
        if not isinstance(bits, int) or not 1 <= bits <= 8:
            raise OptionError(f"bits={bits}; accepted: an integer from 1 to 8")
        self.bits, self.p = bits, check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.bits,)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.posterize(images, as_tensor(np.where(parameters["chosen"], self.bits, 8)))


class RandomSolarize(_Sometimes):
    """Levels from `threshold` on turned round, with probability `p`."""

    _effect = EffectKind.SOLARIZE

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        self.threshold, self.p = float(threshold), check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.threshold,)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.solarize(images, as_tensor(np.where(parameters["chosen"], self.threshold, 256.0)))


class RandomAdjustSharpness(_Sometimes):
    """Sharpened (a factor above 1) or smoothed with probability `p`."""

    _effect = EffectKind.SHARPNESS

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        if not sharpness_factor >= 0:
            raise OptionError(f"sharpness_factor={sharpness_factor}; accepted: at least 0")
        self.sharpness_factor, self.p = float(sharpness_factor), check_probability(p)

    def _values(self) -> Sequence[float]:
        return (self.sharpness_factor,)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.adjust_sharpness(images, as_tensor(np.where(parameters["chosen"], self.sharpness_factor, 1.0)))


class RandomAutocontrast(_Sometimes):
    """Each channel stretched to all levels with probability `p`."""

    _effect = EffectKind.AUTOCONTRAST

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.autocontrast(images, as_tensor(parameters["chosen"]))


class RandomEqualize(_Sometimes):
    """Histograms equalised with probability `p`."""

    _effect = EffectKind.EQUALIZE

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.equalize(images, as_tensor(parameters["chosen"]))


class FlipLater(_Sometimes):
    """Mirrored with probability `p`, behind other augmentations; a flip before them is a matter of the view."""

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

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        across = 3 if self.axis == "horizontal" else 2
        return by_choice(images, parameters["chosen"].astype(np.int64), [None, lambda some, _: some.flip(across)])
