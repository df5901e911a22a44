"""Pillow's slow functions on RGB pixels, done by the native core with Pillow's pixels.

Steps of one's own blur by `image.filter(GaussianBlur(radius))`, which takes Pillow much longer.
Quicker functions of Pillow's are left to it, as the copies of the pixels would cost as much as they gain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from PIL import ImageFilter
from PIL.Image import Image

from fastdata.augment.effects import nothing
from fastdata.lazy.sample_context import context
from fastdata.loaders import pillow
from fastdata.loaders.pillow_effects import core_agrees
from fastdata.native import load
from fastdata.tables import EffectKind, Format

__all__ = ["adjusting_hue", "filtering"]

_MOST_RADIUS = 100.0
_FEWEST_PIXELS = 64 * 64  # below, the call costs more than the filter


def filtering(original: Callable[..., Image]) -> Callable[..., Image]:
    """Wraps PIL.Image.Image.filter, for GaussianBlur and for SMOOTH, with which ImageEnhance sharpens."""

    @wraps(original)
    def filter(self: Image, filter: Any) -> Image:  # noqa: A001, A002 - Pillow's names
        if context.opens_encoded and _is_worth_it(self):
            radius = filter.radius if type(filter) is ImageFilter.GaussianBlur else None
            if isinstance(radius, int | float) and 0 < radius < _MOST_RADIUS:
                return _done(self, EffectKind.BOX_BLUR, radius, self.info)
            if filter is ImageFilter.SMOOTH or type(filter) is ImageFilter.SMOOTH:
                return _done(self, EffectKind.SHARPNESS, 0.0, self.info)
        return original(self, filter)

    return filter


def adjusting_hue(original: Callable[..., Image]) -> Callable[..., Image]:
    """Wraps torchvision's function for the hue of Pillow's images."""

    @wraps(original)
    def adjust_hue(img: Image, hue_factor: float) -> Image:
        if context.opens_encoded and type(hue_factor) is float and -0.5 <= hue_factor <= 0.5 and _is_worth_it(img):
            return _done(img, EffectKind.HUE, int(hue_factor * 255) & 255, {})
        return original(img, hue_factor)

    return adjust_hue


def _is_worth_it(image: Any) -> bool:
    """True for an RGB image that is not small, if the core has the installed Pillow's pixels."""
    return pillow.is_rgb(image) and image.width * image.height >= _FEWEST_PIXELS and core_agrees()


def _done(image: Image, kind: EffectKind, value: float, info: dict[Any, Any]) -> Image:
    """Returns a plain image of the pixels after one effect, with a copy of the metadata."""
    effect, pixels = nothing(1, 1), np.array(image)
    effect["kind"], effect["values"][..., 0] = kind, value
    load().convert(pixels, pixels.ctypes.data, Format(), effect)
    made = pillow.from_pixels(pixels)
    made.info = info.copy()
    return made
