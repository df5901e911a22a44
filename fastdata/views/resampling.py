"""Resampling filters, and the fill of pixels outside an image."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["BLACK", "Interpolation", "Outside", "Padding"]


class Interpolation(Enum):
    """Resampling filters: Pillow's, with Pillow's numbers, and torch's antialiased ones for uint8 tensors."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5
    TENSOR_BILINEAR = 18
    TENSOR_BICUBIC = 19

    @property
    def is_tensors(self) -> bool:
        """True for torch's filters."""
        return self in (Interpolation.TENSOR_BILINEAR, Interpolation.TENSOR_BICUBIC)


class Padding(Enum):
    """The fill of pixels outside an image: one colour, or the image repeated by a mode of NumPy's pad."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


class Outside(NamedTuple):
    """The fill of pixels outside an image: a padding mode, and the colour for `Padding.CONSTANT`."""

    padding: Padding = Padding.CONSTANT
    red: int = 0
    green: int = 0
    blue: int = 0

    def numbers(self) -> tuple[int, int, int, int]:
        """Returns the four numbers that the native core takes: padding mode, red, green, blue."""
        return (self.padding.value, *self[1:])


BLACK = Outside()
