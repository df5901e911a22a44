"""Rectangles of a finished image that are filled with a value or with noise, as RandomErasing does."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from fastdata.native import load

__all__ = ["Erased", "Noise"]


class Noise(NamedTuple):
    """A stream of normally distributed numbers: the generator's key, a sample, its copy, and a stream number."""

    key: int
    other_key: int
    sample: int
    occurrence: int
    stream: int

    def numbers(self, *shape: int) -> torch.Tensor:
        """Returns float32 standard normal numbers of a given shape."""
        drawn = load().normals(math.prod(shape), self.sample, self.occurrence, self.stream, (self.key, self.other_key))
        return torch.from_numpy(drawn).view(shape)


class Erased(NamedTuple):
    """A rectangle of a finished image, and its fill."""

    box: tuple[int, ...]  # left, top, right, bottom
    value: tuple[float, ...]  # one number, or one for each channel
    noise: Noise | None = None  # used instead of `value`

    def apply(self, image: torch.Tensor) -> None:
        """Fills the rectangle in an image (3, height, width)."""
        left, top, right, bottom = self.box
        if self.noise is not None:
            fill = self.noise.numbers(len(image), bottom - top, right - left)
        else:
            fill = torch.tensor(self.value, dtype=image.dtype, device="cpu").view(-1, 1, 1)
        image[:, top:bottom, left:right] = fill
