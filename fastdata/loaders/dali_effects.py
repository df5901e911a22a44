"""Augmentations of decoded images inside DALI's pipeline, by DALI's operators.

The table of effects that the native core reads (`fastdata.tables.EffectTable`) is the pipeline's input, too: each step
of each image has a kind and numbers, drawn as for every backend.  For each step the pipeline has one branch for each
kind that may be drawn there; DALI gives an image to its branch.  No Python runs for an operation.

The arithmetic is DALI's; `MEAN_TOLERANCE` says by how much pixels may differ from Pillow's.  An image with an effect
that DALI lacks is decoded beside the pipeline, with the core's arithmetic: a kind that is not in `MEAN_TOLERANCE`,
pixels moved by a bicubic filter, or from outside an image that is not black there.

Source of the operators' meaning: the documentation of DALI 2.4, `nvidia.dali.fn`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.tables import EFFECT, EffectKind, EffectTable

__all__ = ["MEAN_TOLERANCE", "DaliEffects"]

Branches: TypeAlias = tuple[tuple[int, ...], ...]  # for each step the branches that it has

_VALUES = 6  # numbers for each step: those of an affine map
_NEAREST, _BILINEAR = 0, 2  # filters of `fastdata.augment.effects`
_BY_FILTER = 100  # the branch of a kind that moves pixels is its number and so many times 1 + its filter
_ENOUGH = 0.5  # share of the images whose effects DALI must have; the others are decoded beside its pipeline

# Mean difference from Pillow's pixels, over photographs, that each kind may have, in grey levels.
MEAN_TOLERANCE = MappingProxyType(
    {
        EffectKind.BRIGHTNESS: 0.8,
        EffectKind.CONTRAST: 0.6,
        EffectKind.SATURATION: 0.6,
        EffectKind.HUE: 1.5,
        EffectKind.SHARPNESS: 0.6,
        EffectKind.GREY: 0.1,
        EffectKind.INVERT: 0.0,
        EffectKind.POSTERIZE: 0.0,
        EffectKind.SOLARIZE: 0.0,
        EffectKind.AUTOCONTRAST: 0.6,
        EffectKind.EQUALIZE: 8.0,  # other levels for an image that has much of one
        EffectKind.BLUR: 0.1,
        EffectKind.AFFINE: 1.0,
    }
)
_WITHOUT_NUMBERS = (EffectKind.GREY, EffectKind.INVERT, EffectKind.AUTOCONTRAST, EffectKind.EQUALIZE)
_SMOOTH = np.full((3, 3), 1 / 13, np.float32)
_SMOOTH[1, 1] = 5 / 13


@dataclass(frozen=True)
class DaliEffects:
    """The effects that a pipeline does; see `fastdata.loaders.backend.BatchEffects`.

    Attributes:
        branches: for each step the branches that the pipeline has, by `_branch_of`.
    """

    branches: Branches

    @classmethod
    def like(cls, drawn: EffectTable) -> DaliEffects | None:
        """The effects that occur in a table and that DALI has; None if it has all those of few rows only."""
        does = _is_known(drawn)
        if np.mean(does) < _ENOUGH:
            return None
        return cls(
            tuple(tuple(sorted(set(column.tolist()) - {EffectKind.NONE})) for column in _branch_of(drawn[does]).T)
        )

    def does(self, effects: EffectTable) -> npt.NDArray[np.bool_]:
        """Says for N rows whether the pipeline does all effects; `like` may not have seen a rare kind."""
        result, numbers = _is_known(effects), _branch_of(effects)
        for column, known in zip(numbers.T, self.branches, strict=True):
            result &= np.isin(column, [EffectKind.NONE, *known])
        return result

    @property
    def inputs(self) -> list[tuple[int, bool]]:
        """The pipeline's inputs: step of each, and True for its numbers, False for its branches; none is unused."""
        found = []
        for step, known in enumerate(self.branches):
            found += [(step, False)] if known else []
            found += [(step, True)] if set(known) - set(_WITHOUT_NUMBERS) else []
        return found

    def columns(self, effects: EffectTable | None, count: int) -> list[npt.NDArray[Any]]:
        """Values of `inputs` for `count` images: branches are int32 (N,), numbers float32 (N, 9)."""
        if effects is None:
            effects = np.zeros((count, len(self.branches)), EFFECT)
        branches, values = _branch_of(effects), _values_of(effects)
        return [np.ascontiguousarray((values if numbers else branches)[:, step]) for step, numbers in self.inputs]

    def define(self, pixels: Any, inputs: Sequence[Any]) -> Any:
        """Adds the effects to a pipeline with conditionals.

        Args:
            pixels: node of uint8 images (H, W, 3), on the CPU or the GPU.
            inputs: nodes of what `columns` gives, on the CPU.

        Returns:
            Node of images like these.
        """
        nodes = dict(list(zip(self.inputs, inputs)))  # noqa: B905 - DALI rewrites this function, and knows no strict
        for step in range(len(self.branches)):
            for branch in self.branches[step]:
                if nodes[step, False] == branch:  # a node: DALI takes the batch apart
                    pixels = _operation(branch)(pixels, nodes.get((step, True)))
        return pixels


def _is_known(effects: EffectTable) -> npt.NDArray[np.bool_]:
    """Says for N rows whether DALI has all of their effects."""
    kinds, values = effects["kind"], effects["values"]
    moves, blurs = kinds == EffectKind.AFFINE, kinds == EffectKind.BLUR
    plain = np.isin(effects["filter"], (_NEAREST, _BILINEAR)) & ~values[..., 8:].any(axis=-1)
    round_ = (values[..., 0] == values[..., 1]) & (values[..., 2] == values[..., 3])
    known = np.isin(kinds, [EffectKind.NONE, *MEAN_TOLERANCE]) & (plain | ~moves) & (round_ | ~blurs)
    result: npt.NDArray[np.bool_] = known.all(axis=1)
    return result


def _branch_of(effects: EffectTable) -> npt.NDArray[np.int32]:
    """The branch of each effect: its kind; for one that moves pixels, its filter, too."""
    kinds = effects["kind"].astype(np.int32)
    branches = np.where(kinds == EffectKind.AFFINE, kinds + _BY_FILTER * (1 + effects["filter"]), kinds)
    return branches.astype(np.int32)


def _values_of(effects: EffectTable) -> npt.NDArray[np.float32]:
    """The numbers of each effect as DALI's operators take them: (N, steps, 9)."""
    kinds, given = effects["kind"], effects["values"]
    values = np.zeros((*kinds.shape, _VALUES), np.float32)
    values[..., 0] = given[..., 0]
    hue, posterize, blur, affine = (
        kinds == kind for kind in (EffectKind.HUE, EffectKind.POSTERIZE, EffectKind.BLUR, EffectKind.AFFINE)
    )
    values[hue, 0] = 6 * given[hue, 1]  # sextants of the circle
    values[posterize, 0] = 256 - 2.0 ** (8 - given[posterize, 0])  # a mask
    values[blur, 1] = given[blur, 2]
    values[affine] = given[affine, :6]
    return values


def _operation(branch: int) -> Callable[[Any, Any], Any]:
    """An operation on nodes: of images, and of their numbers on the CPU."""
    if branch < _BY_FILTER:
        return _LEVELS[branch]
    return _to_nearest if branch // _BY_FILTER - 1 == _NEAREST else _to_bilinear


def _to_nearest(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.warp_affine(pixels, matrix=fn.reshape(v, shape=[2, 3]), interp_type=types.INTERP_NN, fill_value=0)


def _to_bilinear(pixels: Any, v: Any) -> Any:
    """Repeats the image's edge, as Pillow does, instead of mixing it with what lies outside; that is black."""
    from nvidia.dali import fn, types

    matrix = fn.reshape(v, shape=[2, 3])
    inside = fn.warp_affine(_as_levels(pixels * 0 + 1), matrix=matrix, interp_type=types.INTERP_NN, fill_value=0)
    return _as_levels(fn.warp_affine(pixels, matrix=matrix, interp_type=types.INTERP_LINEAR) * inside)


def _newest(name: str) -> Any:
    """An operator that DALI moves out of `fn.experimental` in some version."""
    from nvidia.dali import fn

    return getattr(fn, name, None) or getattr(fn.experimental, name)


def _beside(pixels: Any, value: Any) -> Any:
    """A number of each image, on the device of the images: arithmetic takes both from one."""
    return value.gpu() if pixels.device == "gpu" else value


def _as_levels(node: Any) -> Any:
    """Rounded and clipped to uint8."""
    from nvidia.dali import fn, types

    return fn.cast(node, dtype=types.UINT8)


def _grey(pixels: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.color_space_conversion(pixels, image_type=types.RGB, output_type=types.GRAY)


def _grey_as_rgb(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.color_space_conversion(_grey(pixels), image_type=types.GRAY, output_type=types.RGB)


def _brightness(pixels: Any, v: Any) -> Any:
    return _as_levels(pixels * _beside(pixels, v[0]))


def _contrast(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn

    middle = fn.reductions.mean(_grey(pixels))
    return _as_levels(middle + (pixels - middle) * _beside(pixels, v[0]))


def _saturation(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn

    return fn.saturation(pixels, saturation=v[0])


def _hue(pixels: Any, v: Any) -> Any:
    """Turns the hue in HSV, as Pillow does; DALI's own operator turns it in YIQ, several grey levels off.

    Source: https://en.wikipedia.org/wiki/HSL_and_HSV#HSV_to_RGB_alternative.
    """
    from nvidia.dali import fn, math, types

    red, green, blue = (fn.cast(pixels[:, :, at : at + 1], dtype=types.FLOAT) for at in range(3))
    value = math.max(math.max(red, green), blue)
    spread = value - math.min(math.min(red, green), blue)
    safe = spread + fn.cast(spread == 0.0, dtype=types.FLOAT)
    is_red = fn.cast(value == red, dtype=types.FLOAT)
    is_green = fn.cast(value == green, dtype=types.FLOAT) * (1.0 - is_red)
    sector = is_red * (green - blue) + is_green * (blue - red) + (1.0 - is_red - is_green) * (red - green)
    hue = sector / safe + 2.0 * is_green + 4.0 * (1.0 - is_red - is_green) + _beside(pixels, v[0])

    def channel(first: float) -> Any:
        turned = hue + first
        turned = turned - 6.0 * math.floor(turned / 6.0)
        return value - spread * math.clamp(math.min(turned, 4.0 - turned), 0.0, 1.0)

    return _as_levels(fn.cat(channel(5.0), channel(3.0), channel(1.0), axis=2))


def _sharpness(pixels: Any, v: Any) -> Any:
    from nvidia.dali import types

    kernel = types.Constant(_SMOOTH, device=pixels.device)
    smooth = _newest("filter")(pixels, kernel, dtype=types.FLOAT)
    return _as_levels(smooth + (pixels - smooth) * _beside(pixels, v[0]))


def _autocontrast(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn, types

    low, high = (
        fn.cast(each(pixels, axes=[0, 1]), dtype=types.FLOAT) for each in (fn.reductions.min, fn.reductions.max)
    )
    flat = fn.cast(high == low, dtype=types.FLOAT)
    stretched = (pixels - low) * (255.0 / (high - low + flat))
    return _as_levels(stretched * (1.0 - flat) + pixels * flat)


def _equalize(pixels: Any, v: Any) -> Any:
    return _newest("equalize")(pixels)


def _invert(pixels: Any, v: Any) -> Any:
    return _as_levels(255 - pixels)


def _posterize(pixels: Any, v: Any) -> Any:
    return _as_levels(pixels & _as_levels(_beside(pixels, v[0])))


def _solarize(pixels: Any, v: Any) -> Any:
    turned = _as_levels(pixels >= _beside(pixels, v[0]))
    return _as_levels(turned * (255 - pixels) + (1 - turned) * pixels)


def _blur(pixels: Any, v: Any) -> Any:
    from nvidia.dali import fn, types

    return fn.gaussian_blur(pixels, window_size=fn.cast(v[0], dtype=types.INT32), sigma=v[1])


_LEVELS: dict[int, Callable[[Any, Any], Any]] = {
    EffectKind.BRIGHTNESS: _brightness,
    EffectKind.CONTRAST: _contrast,
    EffectKind.SATURATION: _saturation,
    EffectKind.HUE: _hue,
    EffectKind.SHARPNESS: _sharpness,
    EffectKind.GREY: _grey_as_rgb,
    EffectKind.INVERT: _invert,
    EffectKind.POSTERIZE: _posterize,
    EffectKind.SOLARIZE: _solarize,
    EffectKind.AUTOCONTRAST: _autocontrast,
    EffectKind.EQUALIZE: _equalize,
    EffectKind.BLUR: _blur,
}
