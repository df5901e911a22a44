"""Effects on whole batches: a table of effects as operations in torch, with torchvision's arithmetic for tensors.

The table is the one that the native core reads, where each image has a list of effects.  In each place of the lists,
effects of one family are one operation on all images that have it: brightness, solarising and three more are a look-up
in a table of levels; contrast, saturation and grey one blend; all affine maps one grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastdata.augment import ops
from fastdata.augment.batch_program import Operation
from fastdata.augment.effects import FILTERS, has_fill
from fastdata.errors import OptionError
from fastdata.tables import EffectKind, EffectTable

__all__ = ["FILTERS_ON_BATCHES", "operations"]

Size: TypeAlias = tuple[int, int]
_Function: TypeAlias = Callable[..., torch.Tensor]
_Compiled: TypeAlias = tuple[_Function, tuple[torch.Tensor, ...]]
_Floats: TypeAlias = npt.NDArray[np.float64]

FILTERS_ON_BATCHES = ("nearest", "bilinear")  # torch's bicubic filter is another one than Pillow's
_MODES = {FILTERS[name]: name for name in FILTERS_ON_BATCHES}
_GREY = (EffectKind.GREY, EffectKind.TENSOR_GREY)
_CONTRAST = (EffectKind.CONTRAST, EffectKind.TENSOR_CONTRAST)
_NOTHING, _UNKNOWN = -1, -2  # instead of the number of a family
_MOST_TAPS = 1 << 16
_VARIANTS = _MOST_TAPS**2


def operations(effects: EffectTable, size: Size) -> list[Operation]:
    """The operations that do the effects of N images of (height, width).

    Raises:
        OptionError: no operation on batches does one of them.
    """
    found = []
    for turn in range(effects.shape[1]):
        own = effects[:, turn]
        families = _FAMILY_OF[own["kind"]]
        if np.any(families == _UNKNOWN):
            kind = EffectKind(own["kind"][families == _UNKNOWN][0])
            raise OptionError(f"{kind.name} is done by the native core to PIL images, not to tensors or whole batches")
        if np.any(own["filter"] > max(_MODES)):  # bicubic
            raise OptionError(f"without the native core and PIL images, filters are {' and '.join(FILTERS_ON_BATCHES)}")
        keys = families * _VARIANTS + _variants(own)
        for key in sorted(set(keys[families != _NOTHING].tolist())):
            rows = np.flatnonzero(keys == key)
            function, values = _FAMILIES[key // _VARIANTS][0](own[rows], size)
            found.append(Operation(function, values, None if len(rows) == len(own) else torch.from_numpy(rows)))
    return found


def _variants(effects: EffectTable) -> npt.NDArray[np.int64]:
    """Numbers that differ for effects of one family that need operations of their own."""
    kinds, values = effects["kind"], effects["values"]
    taps, flips = values[:, 0] * _MOST_TAPS + values[:, 1], values[:, 0] * 2 + values[:, 1]
    variants = np.zeros(len(effects))
    for these, numbers in (
        (kinds == EffectKind.BLUR, taps),
        (kinds == EffectKind.FLIP, flips),
        ((kinds == EffectKind.AFFINE) | (kinds == EffectKind.PERSPECTIVE), effects["filter"] * 2 + has_fill(effects)),
    ):
        variants[these] = numbers[these]
    return variants.astype(np.int64)


def _tensors(*columns: npt.NDArray[Any]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(column)) for column in columns)


def _levels(effects: EffectTable, size: Size) -> _Compiled:
    kinds, values = effects["kind"], effects["values"]
    tables = np.empty((len(effects), 256), np.uint8)
    for kind in set(kinds.tolist()):
        rows = kinds == kind
        tables[rows] = _TABLES[kind](values[rows, 0:1], values[rows, 1:2])
    return ops.map_levels, _tensors(tables)


def _scaled(factor: _Floats, _: _Floats) -> npt.NDArray[Any]:
    return np.clip(_LEVELS.astype(np.float32) * factor.astype(np.float32), 0, 255)


def _without_low_bits(kept: _Floats, _: _Floats) -> npt.NDArray[Any]:
    return _LEVELS & (256 - (1 << (8 - kept.astype(np.int64))))


def _solarized(threshold: _Floats, _: _Floats) -> npt.NDArray[Any]:
    return np.where(threshold.astype(np.float32) <= _LEVELS, 255 - _LEVELS, _LEVELS)


def _added_below(added: _Floats, threshold: _Floats) -> npt.NDArray[Any]:
    return np.where(threshold > _LEVELS, np.clip(_LEVELS + added, 0, 255), _LEVELS)


# The new level of each level, (n, 256), from two columns of numbers, (n, 1).
_LEVELS = np.arange(256)
_TABLES: dict[int, Callable[[_Floats, _Floats], npt.NDArray[Any]]] = {
    EffectKind.BRIGHTNESS: _scaled,
    EffectKind.INVERT: lambda *_: 255 - _LEVELS,
    EffectKind.POSTERIZE: _without_low_bits,
    EffectKind.SOLARIZE: _solarized,
    EffectKind.SOLARIZE_ADD: _added_below,
}


def _own_and_rest(factors: _Floats) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A factor and 1 - factor, computed in double precision, as torchvision does."""
    return factors.astype(np.float32), (1.0 - factors).astype(np.float32)


def _blend(effects: EffectTable, size: Size) -> _Compiled:
    kinds = effects["kind"]
    is_grey, by_mean = ((kinds == pair[0]) | (kinds == pair[1]) for pair in (_GREY, _CONTRAST))
    factors = np.where(is_grey, 0.0, effects["values"][:, 0])
    return ops.blend_with_grey, _tensors(*_own_and_rest(factors), by_mean)


def _hue(effects: EffectTable, size: Size) -> _Compiled:
    return ops.adjust_hue, _tensors(effects["values"][:, 1].astype(np.float32), np.array(ops.HUE_LEVELS))


def _sharpness(effects: EffectTable, size: Size) -> _Compiled:
    kernel = np.full((3, 3), 1.0 / 13, np.float32)
    kernel[1, 1] = 5.0 / 13
    return ops.adjust_sharpness, _tensors(_own_and_rest(effects["values"][:, 0])[1], kernel)


def _blur(effects: EffectTable, size: Size) -> _Compiled:
    taps = effects["values"][0, :2].astype(int).tolist()
    if any(half >= length for half, length in zip((taps[1] // 2, taps[0] // 2), size, strict=True)):
        raise OptionError(f"a blur of {taps[0]} × {taps[1]} pixels reaches across images of {size[1]} × {size[0]}")
    weights = []
    for count, sigmas in zip(taps, effects["values"][:, 2:4].T, strict=True):
        limit = (count - 1) / (2.0 * math.sqrt(2.0))
        places = torch.linspace(-limit, limit, count, device="cpu")
        column = torch.from_numpy(sigmas.astype(np.float32)).unsqueeze(1)
        weights.append(torch.softmax((places / column).square_().neg_(), dim=1))
    return ops.blur, (weights[1].unsqueeze(2) * weights[0].unsqueeze(1),)


def _permute(effects: EffectTable, size: Size) -> _Compiled:
    return ops.permute_channels, _tensors(effects["values"][:, :3].astype(np.int64))


def _flip(effects: EffectTable, size: Size) -> _Compiled:
    axes = [axis for axis, done in zip((3, 2), effects["values"][0, :2], strict=True) if done]
    return partial(torch.flip, dims=axes), ()


def _fill(effects: EffectTable) -> Sequence[npt.NDArray[np.float32]]:
    return [effects["values"][:, 8:].astype(np.float32)] if has_fill(effects)[0] else []


def _halves(maps: _Floats, size: Size) -> npt.NDArray[np.float32]:
    """Maps (N, 2, 3) to pixels as maps (N, 3, 2) to halves of the width and height."""
    height, width = size
    halves = np.array([0.5 * width, 0.5 * height], np.float32)
    divided: npt.NDArray[np.float32] = maps.astype(np.float32).transpose(0, 2, 1) / halves
    return divided


def _affine(effects: EffectTable, size: Size) -> _Compiled:
    height, width = size
    maps = effects["values"][:, :6].reshape(-1, 2, 3).copy()
    middle = np.array([width * 0.5, height * 0.5])
    maps[:, :, 2] += maps[:, :, :2] @ middle - middle  # from the middle instead of the corner
    maps[:, :, 2][np.abs(maps[:, :, 2]) < 1e-9] = 0.0  # what rounding leaves of a turn about the middle
    mode = _MODES[int(effects["filter"][0])]
    return partial(ops.affine, mode=mode), _tensors(_halves(maps, size), *_fill(effects))


def _perspective(effects: EffectTable, size: Size) -> _Compiled:
    values = effects["values"]
    below = np.concatenate([values[:, 6:8], np.ones((len(values), 1))], axis=1).astype(np.float32)
    divisors = np.repeat(below[:, :, np.newaxis], 2, axis=2)
    mode = _MODES[int(effects["filter"][0])]
    maps = _halves(values[:, :6].reshape(-1, 2, 3), size)
    return partial(ops.perspective, mode=mode), _tensors(maps, divisors, *_fill(effects))


# The families, numbered by their places: what makes their operations, and their kinds.
_FAMILIES: tuple[tuple[Callable[[EffectTable, Size], _Compiled], tuple[EffectKind, ...]], ...] = (
    (
        _levels,
        (EffectKind.BRIGHTNESS, EffectKind.INVERT, EffectKind.POSTERIZE, EffectKind.SOLARIZE, EffectKind.SOLARIZE_ADD),
    ),
    (_blend, (*_CONTRAST, *_GREY, EffectKind.SATURATION, EffectKind.TENSOR_SATURATION)),
    (_hue, (EffectKind.HUE, EffectKind.TENSOR_HUE)),
    (_sharpness, (EffectKind.SHARPNESS, EffectKind.TENSOR_SHARPNESS)),
    (lambda effects, size: (ops.autocontrast, ()), (EffectKind.AUTOCONTRAST, EffectKind.TENSOR_AUTOCONTRAST)),
    (lambda effects, size: (ops.equalize, ()), (EffectKind.EQUALIZE,)),
    (_blur, (EffectKind.BLUR,)),
    (_permute, (EffectKind.PERMUTE,)),
    (_flip, (EffectKind.FLIP,)),
    (_affine, (EffectKind.AFFINE,)),
    (_perspective, (EffectKind.PERSPECTIVE,)),
)
_FAMILY_OF = np.full(len(EffectKind), _UNKNOWN)
_FAMILY_OF[EffectKind.NONE] = _NOTHING
for _number, (_, _kinds) in enumerate(_FAMILIES):
    _FAMILY_OF[list(_kinds)] = _number
