"""Pillow's slow functions on RGB pixels, done by the native core with Pillow's pixels.

Steps of one's own blur by `image.filter(GaussianBlur(radius))`, which takes Pillow much longer.  An image that is still
encoded stays so: the filter is one more effect on it.
Quicker functions of Pillow's are left to it, as the copies of the pixels would cost as much as they gain.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
from PIL import ImageFilter
from PIL.Image import Image

from fastdata.augment.effects import one_effect
from fastdata.lazy.sample_context import context
from fastdata.loaders import pillow
from fastdata.loaders.pillow_effects import core_agrees
from fastdata.native import load
from fastdata.tables import EffectKind, EffectTable, Format

__all__ = ["adjusting_hue", "filtered", "filtering"]

_MOST_RADIUS = 100.0
_FEWEST_PIXELS = 64 * 64  # below, the call costs more than the filter


def filtered(image: Any, filter: Any) -> Image | None:  # noqa: A002 - Pillow's name
    """The result of an encoded image's method `filter`; None where Pillow is to do it."""
    effect = _effect_of(filter) if _takes(image) else None
    if effect is None:
        return None
    made: Image | None = image.augmented(effect, keeps_info=True)
    if made is None:
        made = _done(image, effect)
        made.info = image.info.copy()
    return made


def filtering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method `filter` of a class of PIL.ImageFilter, which Pillow calls with an image's `im`."""

    @wraps(original)
    def filter(self: Any, image: Any) -> Any:  # noqa: A001 - Pillow's name
        effect = _effect_of(self)
        if effect is not None and _takes(image):
            return _done(Image()._new(image), effect).im
        return original(self, image)

    return filter


def _effect_of(filter: Any) -> EffectTable | None:  # noqa: A002 - Pillow's name
    """The core's effect for a filter of Pillow's: GaussianBlur, and SMOOTH, with which ImageEnhance sharpens."""
    if filter is ImageFilter.SMOOTH or type(filter) is ImageFilter.SMOOTH:
        return one_effect(EffectKind.SHARPNESS, 0.0)
    radius: Any = filter.radius if type(filter) is ImageFilter.GaussianBlur else None
    if type(radius) in (int, float) and 0 < radius < _MOST_RADIUS:
        return one_effect(EffectKind.BOX_BLUR, radius)
    return None


def adjusting_hue(original: Callable[..., Image]) -> Callable[..., Image]:
    """Wraps torchvision's function for the hue of Pillow's images."""

    @wraps(original)
    def adjust_hue(img: Any, hue_factor: float) -> Image:
        if type(hue_factor) is float and -0.5 <= hue_factor <= 0.5 and pillow.is_rgb(img) and _takes(img):
            effect = one_effect(EffectKind.HUE, int(hue_factor * 255) & 255)
            made: Image | None = img.augmented(effect) if hasattr(img, "augmented") else None
            return _done(img, effect) if made is None else made
        return original(img, hue_factor)

    return adjust_hue


def _takes(image: Any) -> bool:
    """True while a sample is made, for RGB that is not small, if the core has the installed Pillow's pixels."""
    if not context.opens_encoded or image.mode != "RGB":
        return False
    width, height = image.size
    return bool(width * height >= _FEWEST_PIXELS) and core_agrees()


def _done(image: Image, effect: EffectTable) -> Image:
    """Returns a plain image of the pixels after one effect."""
    pixels = np.array(image)
    load().convert(pixels, pixels.ctypes.data, Format(), effect)
    return pillow.from_pixels(pixels)
