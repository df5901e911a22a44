"""Effects on pixels as Pillow computes them: the reference for the native core's effects."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import PIL.ImageFilter
import PIL.ImageOps
from PIL.Image import Image

from fastdata import native
from fastdata.loaders.backend import Pixels
from fastdata.loaders.fallback import asking_pillow
from fastdata.tables import EFFECT, EffectKind, EffectTable, Format

__all__ = ["MIXES", "NOT_PILLOWS", "apply", "core_agrees"]

_ENHANCERS = {
    EffectKind.BRIGHTNESS: PIL.ImageEnhance.Brightness,
    EffectKind.CONTRAST: PIL.ImageEnhance.Contrast,
    EffectKind.SATURATION: PIL.ImageEnhance.Color,
    EffectKind.SHARPNESS: PIL.ImageEnhance.Sharpness,
}
_MAPS = {
    EffectKind.AFFINE: (PIL.Image.Transform.AFFINE, 6),
    EffectKind.PERSPECTIVE: (PIL.Image.Transform.PERSPECTIVE, 8),
}


MIXES = {EffectKind.MIX_BEGIN, EffectKind.MIX_ADD, EffectKind.MIX_BLEND, EffectKind.MIX_END}
NOT_PILLOWS = {EffectKind.BLUR, *MIXES, *(kind for kind in EffectKind if kind.name.startswith("TENSOR_"))}


def apply(image: Image, effect: Any) -> Image:
    """Applies one effect, a row of an `EffectTable`, to an RGB image; `NOT_PILLOWS` raise NotImplementedError."""
    kind, values = EffectKind(int(effect["kind"])), effect["values"].tolist()
    if kind in _ENHANCERS:
        return _ENHANCERS[kind](image).enhance(values[0])
    if kind in _MAPS:
        method, count = _MAPS[kind]
        fill = tuple(map(int, values[8:11]))
        return image.transform(image.size, method, values[:count], int(effect["filter"]), fillcolor=fill)
    match kind:
        case EffectKind.NONE:
            return image
        case EffectKind.HUE:
            hue, *others = image.convert("HSV").split()
            turned = PIL.Image.fromarray(np.asarray(hue) + np.uint8(values[0]))
            return PIL.Image.merge("HSV", (turned, *others)).convert("RGB")
        case EffectKind.GREY:
            return image.convert("L").convert("RGB")
        case EffectKind.INVERT:
            return PIL.ImageOps.invert(image)
        case EffectKind.POSTERIZE:
            return PIL.ImageOps.posterize(image, int(values[0]))
        case EffectKind.SOLARIZE:
            return PIL.ImageOps.solarize(image, values[0])
        case EffectKind.AUTOCONTRAST:
            return PIL.ImageOps.autocontrast(image)
        case EffectKind.EQUALIZE:
            return PIL.ImageOps.equalize(image)
        case EffectKind.BOX_BLUR:
            return image.filter(PIL.ImageFilter.GaussianBlur(values[0]))
        case EffectKind.SOLARIZE_ADD:
            levels = np.arange(256)
            added = np.where(levels < values[1], np.minimum(255, levels + int(values[0])), levels)
            return image.point(added.tolist() * 3)
        case EffectKind.FLIP:
            for wanted, number in zip(values, (0, 1), strict=False):
                image = image.transpose(PIL.Image.Transpose(number)) if wanted else image
            return image
        case EffectKind.PERMUTE:
            bands = image.split()
            return PIL.Image.merge("RGB", [bands[int(band)] for band in values[:3]])
    raise NotImplementedError(f"{kind.name} is not Pillow's")


@cache
def core_agrees() -> bool:
    """True if the native core gives the installed Pillow's bits for all effects, tried on two images."""
    core = native.available()
    if core is None:
        return False
    rng = np.random.default_rng(0)
    images = [rng.integers(low, high, (23, 31, 3), dtype=np.uint8) for low, high in ((0, 256), (60, 180))]
    with asking_pillow():  # which may be asked while the core takes the place of its filters
        return all(_agrees(core, pixels, effect) for pixels in images for effect in _samples())


def _samples() -> list[EffectTable]:
    """Returns one effect of each kind, and for maps one with each filter."""
    made = []
    for kind in set(EffectKind) - NOT_PILLOWS:
        for filter_ in (0, 2, 3) if kind in _MAPS else (0,):
            effect = np.zeros((1, 1), EFFECT)
            effect["kind"], effect["filter"] = kind, filter_
            if kind in _MAPS:
                effect["values"] = (0.9, 0.1, 1.3, -0.2, 1.1, -2.0, 0.001, 0.002, 10, 20, 30)
            else:
                effect["values"][..., :3] = (2, 0, 1) if kind is EffectKind.PERMUTE else (1.37, 0, 0)
            made.append(effect)
    return made


def _agrees(core: native.Core, pixels: Pixels, effect: EffectTable) -> bool:
    ours = np.empty_like(pixels)
    core.convert(pixels, ours.ctypes.data, Format(), effect)
    theirs = np.asarray(apply(PIL.Image.fromarray(pixels), effect[0, 0]))
    return bool(np.array_equal(ours, theirs))
