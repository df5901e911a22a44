"""Random augmentations of whole batches, one class each; augment/base.py says what they have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from fastdata.augment import ops
from fastdata.augment.base import Augmentation, Ints, Levels, Parameters, as_tensor, by_choice, check_probability
from fastdata.augment.effects import nothing, put
from fastdata.errors import OptionError
from fastdata.native import EffectKind, EffectTable
from fastdata.views.philox import Floats
from fastdata.views.streams import Draws

__all__ = ["ColorJitter", "GaussianBlur", "RandomErasing"]

_TRIES = 10  # torchvision's RandomErasing gives up after ten boxes that do not fit

Range: TypeAlias = tuple[float, float] | None


def _adjust(operation: Levels, amounts: Floats, images: torch.Tensor, rows: Ints) -> torch.Tensor:
    return operation(images, as_tensor(amounts[rows]))


class ColorJitter(Augmentation):
    """Brightness, contrast, saturation and hue changed by random amounts in random order.

    Args:
        brightness: largest change, or the smallest and largest factor.
        contrast: likewise.
        saturation: likewise.
        hue: largest turn, at most 0.5, or smallest and largest.
    """

    _OPERATIONS = (ops.adjust_brightness, ops.adjust_contrast, ops.adjust_saturation, ops.adjust_hue)

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
        return {"amounts": np.stack(amounts, axis=1), "order": order.T}

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        amounts, order = parameters["amounts"], parameters["order"]
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        operations = [
            None if range_ is None else partial(_adjust, operation, amounts[:, number])
            for number, (range_, operation) in enumerate(zip(ranges, self._OPERATIONS, strict=True))
        ]
        for turn in range(4):
            images = by_choice(images, order[:, turn], operations)
        return images

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        amounts, order = parameters["amounts"], parameters["order"]
        table = nothing(len(amounts), 4)
        for number, (name, kind) in enumerate(_JITTERS.items()):
            if getattr(self, name) is None:
                continue
            amount = amounts[:, number]
            if kind is EffectKind.HUE:  # Pillow's is a byte, to which torchvision adds
                amount = (amount * 255).astype(np.int32) & 255
            for turn in range(4):
                rows = np.flatnonzero(order[:, turn] == number)
                put(table, rows, turn, kind, amount[rows])
        return table


_JITTERS = {
    "brightness": EffectKind.BRIGHTNESS,
    "contrast": EffectKind.CONTRAST,
    "saturation": EffectKind.SATURATION,
    "hue": EffectKind.HUE,
}


class GaussianBlur(Augmentation):
    """Blurred by a Gaussian of random width.

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

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.gaussian_blur(images, self.kernel_size, as_tensor(parameters["sigmas"]))

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        sigmas = parameters["sigmas"]
        if self.kernel_size // 2 >= min(size):
            raise OptionError(f"kernel_size={self.kernel_size} reaches across images of {size[0]} × {size[1]} pixels")
        table = nothing(len(sigmas), 1)
        rows = np.arange(len(sigmas))
        put(table, rows, 0, EffectKind.BLUR, self.kernel_size, self.kernel_size, sigmas, sigmas)
        return table


class RandomErasing(Augmentation):
    """A random rectangle filled with `value`, with probability `p`; also for float images, after Normalize.

    Args:
        p: probability.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height divided by width.
        value: a number, or one for each channel.

    Source: Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | Sequence[float] = 0,
    ) -> None:
        self.p = check_probability(p)
        self.scale, self.ratio = tuple(map(float, scale)), tuple(map(float, ratio))
        if not isinstance(value, int | float | list | tuple):
            raise OptionError(
                f"value={value!r}; accepted: a number, or one per channel (random noise is not supported)"
            )
        self.value = tuple(map(float, (value,) * 3 if isinstance(value, int | float) else value))
        if len(self.value) not in (1, 3):
            raise OptionError(f"value={value!r}; accepted: a number, or one for each of three channels")

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        height, width = size
        boxes = np.zeros((len(draws.indices), 4), np.int64)
        open_ = draws.four(0)[0] < self.p
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for number in range(1, 1 + _TRIES):
            share, shape, across, down = draws.four(number)
            area = height * width * (self.scale[0] + share * (self.scale[1] - self.scale[0]))
            aspect = np.exp(low + shape * (high - low))
            tall, wide = (np.rint(np.sqrt(each)).astype(np.int64) for each in (area * aspect, area / aspect))
            left = (across * (width - wide + 1)).astype(np.int64)
            top = (down * (height - tall + 1)).astype(np.int64)
            fits = open_ & (tall < height) & (wide < width)
            boxes[fits] = np.stack((left, top, left + wide, top + tall), axis=1)[fits]
            open_ &= ~fits
        return {"boxes": boxes}

    def erase(self, images: torch.Tensor, parameters: Parameters) -> None:
        """The same in the images' own memory, image by image, for a host on which most images stay as they are."""
        boxes = parameters["boxes"]
        value = torch.tensor(self.value, dtype=images.dtype, device="cpu").view(-1, 1, 1)
        for row in np.flatnonzero(boxes[:, 2] > boxes[:, 0]).tolist():
            left, top, right, bottom = boxes[row].tolist()
            images[row, :, top:bottom, left:right] = value

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        return ops.erase(images, as_tensor(parameters["boxes"]), torch.tensor(self.value).view(1, -1, 1, 1))


def _range(
    name: str, given: float | Sequence[float] | None, *, middle: float, least: float, most: float = math.inf
) -> Range:
    """Smallest and largest from one number or two; None when nothing would change."""
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
