"""Rectangles filled with a colour or with noise: torchvision's RandomErasing and timm's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.augment import ops
from fastdata.augment.base import Augmentation, Ints, Parameters, check_probability
from fastdata.augment.batch_program import Operation
from fastdata.errors import OptionError
from fastdata.views.erased import Erased, Noise
from fastdata.views.philox import Floats, normal
from fastdata.views.streams import Draws, Stream

__all__ = ["Eraser", "RandomErasing", "TimmsRandomErasing"]

_TRIES = 10  # both give up after ten boxes that do not fit
_MOST_BOXES = 16


class Eraser(Augmentation):
    """Fills rectangles of finished images; parameters have the columns "boxes", (N, boxes, 4), "values" and "noise".

    Attributes:
        is_noise: rectangles are filled with noise, which is only done on the host.
    """

    is_noise: bool

    @property
    def on_batches(self) -> bool:
        """See `Augmentation.on_batches`."""
        return not self.is_noise

    def batch_operations(self, parameters: Parameters, size: tuple[int, int]) -> list[Operation]:
        """See `Augmentation.batch_operations`; the images may be float."""
        if self.is_noise:
            raise OptionError("rectangles of noise are filled image by image on the host, not in whole batches")
        boxes, values = torch.from_numpy(parameters["boxes"]), torch.tensor(parameters["values"], dtype=torch.float32)
        return [Operation(ops.erase, (boxes[:, at], values[:, at])) for at in range(boxes.shape[1])]

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """See `Augmentation.apply`."""
        if not self.is_noise:
            return super().apply(images, parameters)
        images = images.clone()
        for image, erased in zip(images, self.erased(parameters), strict=True):
            for each in erased:
                each.apply(image)
        return images

    def erased(self, parameters: Parameters) -> list[list[Erased]]:
        """Rectangles to fill in each of N images."""
        boxes, values, noises = (parameters[name].tolist() for name in ("boxes", "values", "noise"))
        return [
            [
                Erased(tuple(box), tuple(value), Noise(*noise) if noise else None)
                for box, value, noise in zip(*columns, strict=True)
                if box[2] > box[0]
            ]
            for columns in zip(boxes, values, noises, strict=True)
        ]


class RandomErasing(Eraser):
    """Fills a random rectangle with `value`, with probability `p`; also in float images, after Normalize.

    Args:
        p: probability.
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest height divided by width.
        value: a number, one for each channel, or "random" (in torchvision's v2 also None) for normally distributed
            noise, which is only done on the host.

    Source: Zhong et al., "Random erasing data augmentation", AAAI 2020.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] | None = 0,
    ) -> None:
        self.p = check_probability(p)
        self.scale, self.ratio = tuple(map(float, scale)), tuple(map(float, ratio))
        self.is_noise = value in ("random", None)
        if not self.is_noise and not isinstance(value, int | float | list | tuple):
            raise OptionError(f'value={value!r}; accepted: a number, one per channel, or "random"')
        given: Any = 0 if self.is_noise else value
        self.value = tuple(map(float, (given,) * 3 if isinstance(given, int | float) else given))
        if len(self.value) not in (1, 3):
            raise OptionError(f"value={value!r}; accepted: a number, or one for each of three channels")

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        chosen = draws.four(0)[0] < self.p
        areas = size[0] * size[1] * np.array(self.scale)
        boxes = _boxes(draws, 1, size, chosen, np.tile(areas, (len(chosen), 1)), self.ratio)[:, np.newaxis]
        values = np.broadcast_to(np.array(self.value), (len(chosen), 1, len(self.value)))
        return {"boxes": boxes, "values": values, "noise": _noise(draws, 1, none=not self.is_noise)}


class TimmsRandomErasing(Eraser):
    """Fills several rectangles as timm does, with 0 ("const"), a random colour ("rand") or noise ("pixel").

    Args:
        p: probability.
        min_area: smallest share of the image's area, for all rectangles together.
        max_area: largest.
        log_aspect_ratio: range of the logarithm of height divided by width.
        mode: "const", "rand" or "pixel".
        min_count: fewest rectangles.
        max_count: most.
    """

    def __init__(
        self,
        p: float,
        min_area: float,
        max_area: float,
        log_aspect_ratio: Sequence[float],
        mode: str,
        min_count: int,
        max_count: int,
    ) -> None:
        self.p = check_probability(p)
        self.min_area, self.max_area, self.log_aspect_ratio = min_area, max_area, tuple(log_aspect_ratio)
        self.mode = mode or "const"
        if self.mode not in ("const", "rand", "pixel"):
            raise OptionError(f"mode={mode!r}; accepted: const, rand, pixel")
        if not 1 <= min_count <= max_count <= _MOST_BOXES:
            raise OptionError(f"{min_count} to {max_count} boxes; accepted: 1 to {_MOST_BOXES}")
        self.min_count, self.max_count = min_count, max_count
        self.is_noise = self.mode == "pixel"

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        chance, share, *_ = draws.four(0)
        counts = self.min_count + (share * (self.max_count - self.min_count + 1)).astype(np.int64)
        areas = size[0] * size[1] * np.array([[self.min_area, self.max_area]]) / counts[:, np.newaxis]
        ratio = [math.exp(each) for each in self.log_aspect_ratio]
        boxes, values = [], []
        for number in range(self.max_count):
            first = 1 + number * (_TRIES + 2)
            boxes.append(_boxes(draws, first, size, (chance <= self.p) & (number < counts), areas, ratio))
            values.append(_colours(draws, first + _TRIES) if self.mode == "rand" else np.zeros((len(chance), 3)))
        noise = _noise(draws, self.max_count, none=not self.is_noise)
        return {"boxes": np.stack(boxes, axis=1), "values": np.stack(values, axis=1), "noise": noise}


def _boxes(
    draws: Draws, first: int, size: tuple[int, int], open_: npt.NDArray[np.bool_], areas: Floats, ratio: Sequence[float]
) -> Ints:
    """Rectangles (N, 4): left, top, right and bottom; zeros where none is wanted or none of ten fits.

    Args:
        draws: the step's.
        first: the number of the first draw.
        size: (height, width) of the images.
        open_: (N,), which images want one.
        areas: (N, 2), smallest and largest in pixels.
        ratio: smallest and largest height divided by width.
    """
    height, width = size
    boxes = np.zeros((len(open_), 4), np.int64)
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for number in range(first, first + _TRIES):
        share, shape, across, down = draws.four(number)
        area = areas[:, 0] + share * (areas[:, 1] - areas[:, 0])
        aspect = np.exp(low + shape * (high - low))
        tall, wide = (np.rint(np.sqrt(each)).astype(np.int64) for each in (area * aspect, area / aspect))
        left = (across * (width - wide + 1)).astype(np.int64)
        top = (down * (height - tall + 1)).astype(np.int64)
        fits = open_ & (tall < height) & (wide < width)
        boxes[fits] = np.stack((left, top, left + wide, top + tall), axis=1)[fits]
        open_ = open_ & ~fits
    return boxes


def _colours(draws: Draws, first: int) -> Floats:
    """Colours (N, 3) from the standard normal distribution."""
    pairs = zip(draws.four(first)[:3], draws.four(first + 1)[:3], strict=True)
    return np.stack([normal(one, other) for one, other in pairs], axis=1)


def _noise(draws: Draws, boxes: int, *, none: bool) -> Ints:
    """(N, boxes, 5), the members of `Noise`; (N, boxes, 0) for none."""
    count = len(draws.indices)
    if none:
        return np.zeros((count, boxes, 0), np.int64)
    noise = np.empty((count, boxes, 5), np.int64)
    noise[..., :2] = draws.key.words()
    noise[..., 2], noise[..., 3] = draws.indices[:, np.newaxis], draws.occurrences[:, np.newaxis]
    noise[..., 4] = Stream.ERASED + draws.step * _MOST_BOXES + np.arange(boxes)
    return noise
