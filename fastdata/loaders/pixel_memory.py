"""Scratch memory, the scale of a decode, and NumPy's order of axes: helpers of several backends."""

from __future__ import annotations

import threading

import numpy as np

from fastdata.loaders.backend import Pixels
from fastdata.views.view import View

__all__ = ["Scratch", "as_numpy", "dct_denominator"]

_SCRATCH_KEPT_BYTES = 64 << 20


class Scratch(threading.local):
    """Memory that each thread reuses for every image."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> Pixels:
        """Returns a flat uint8 array of exactly `size_bytes`, valid until this thread's next call."""
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if self._bytes.size < size_bytes:
            self._bytes = np.empty(size_bytes, np.uint8)
        return self._bytes[:size_bytes]


def dct_denominator(view: View) -> int:
    """Returns the largest of 8, 4, 2, 1 by which the window can shrink without being smaller than the result."""
    left, top, right, bottom = view.window_px
    width, height = view.resize_px
    for denominator in (8, 4, 2):
        if right - left >= denominator * width and bottom - top >= denominator * height:
            return denominator
    return 1


def as_numpy(pixels: Pixels) -> Pixels:
    """Returns RGB pixels (height, width, 3) as timm's ToNumpy gives them: (3, height, width), in the same memory."""
    return np.moveaxis(pixels, 2, 0)
