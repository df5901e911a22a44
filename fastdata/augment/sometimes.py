"""Augmentations that are done or not: single operations with a probability, and torchvision's RandomApply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from fastdata.augment import ops
from fastdata.augment.base import Augmentation, Parameters, as_tensor, check_probability
from fastdata.augment.effects import nothing, put
from fastdata.errors import OptionError
from fastdata.native import EffectKind, EffectTable
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = [
    "Grayscale",
    "RandomAdjustSharpness",
    "RandomApply",
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


class RandomApply(Augmentation):
    """Several augmentations, all done with probability `p`, or none.

    Args:
        transforms: the augmentations, in order.
        p: probability.
    """

    def __init__(self, transforms: Sequence[Augmentation], p: float = 0.5) -> None:
        self.transforms, self.p = list(transforms), check_probability(p)
        if not self.transforms or not all(isinstance(each, Augmentation) for each in self.transforms):
            raise OptionError(f"transforms={self.transforms}; accepted: augmentations that work on batches")
        if len(self.transforms) > _INNER_STEPS:
            raise OptionError(f"{len(self.transforms)} transforms; accepted: at most {_INNER_STEPS}")
        self.on_batches = all(each.on_batches for each in self.transforms)

    @property
    def on_host(self) -> bool:
        """See `Augmentation.on_host`."""
        return all(each.on_host for each in self.transforms)

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        drawn = {"chosen": draws.four(0)[0] < self.p}
        for number, each in enumerate(self.transforms):
            inner = replace(draws, step=_INNER_STEPS * (draws.step + 1) + number)  # numbers that no other step has
            drawn.update({f"{number} {name}": values for name, values in each.draw(inner, size).items()})
        return drawn

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        rows = np.flatnonzero(parameters["chosen"])
        if len(rows) == 0:
            return images
        at = ops.on_device_of(images, as_tensor(rows))
        some = images.index_select(0, at)
        for number, each in enumerate(self.transforms):
            own = {name: values[rows] for name, values in self._own(parameters, number).items()}
            some = each.apply(some, own)
        return images.index_copy(0, at, some)

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        tables = [each.effects(self._own(parameters, number), size) for number, each in enumerate(self.transforms)]
        table = np.concatenate(tables, axis=1)
        table["kind"][~parameters["chosen"]] = EffectKind.NONE
        return table

    def _own(self, parameters: Parameters, number: int) -> dict[str, Floats]:
        """Those of one of the augmentations."""
        prefix = f"{number} "
        return {name.removeprefix(prefix): each for name, each in parameters.items() if name.startswith(prefix)}


_INNER_STEPS = 64
