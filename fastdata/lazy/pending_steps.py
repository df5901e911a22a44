"""Steps on a pending image that need no pixels: arithmetic with constants, conversions, slices, flips, torchvision's.

Each gives the description of the result.  The results' strides, and what shares memory with what, are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastdata.lazy.undecoded import PartOf, Undecoded
from fastdata.loaders.resample import has_tensors_bits
from fastdata.patches.torchvision_kernels import resized_size, returns_tv_tensors
from fastdata.views.levels import Constant, Levels
from fastdata.views.resampling import BLACK, Interpolation, Outside

__all__ = ["TORCHVISIONS", "after_call", "outside_of", "same_memory", "sides_of"]

_STEPS: dict[Any, tuple[str, bool]] = {}  # function: (step of `Levels`, True if in place)
for _name, _spellings in {
    "add": ("add", "__add__", "__radd__"),
    "sub": ("sub", "__sub__"),
    "mul": ("mul", "__mul__", "__rmul__"),
    "div": ("div", "__truediv__"),
}.items():
    _STEPS.update({getattr(torch.Tensor, spelling): (_name, False) for spelling in _spellings})
    _STEPS[getattr(torch, _name)] = (_name, False)
    for _in_place in (f"{_name}_", {"div": "__itruediv__"}.get(_name, f"__i{_name}__")):
        _STEPS[getattr(torch.Tensor, _in_place)] = (_name, True)

_COPIES = (torch.Tensor.clone, torch.clone)
_FLIPS = (torch.Tensor.flip, torch.flip)
_UNSQUEEZES = (torch.Tensor.unsqueeze, torch.unsqueeze)
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
# Functions whose results keep torchvision's class; all others give plain tensors.
_KEEP_CLASS = (torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach)


def after_call(func: Callable[..., Any], own: Undecoded, more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns what a function of torch makes of a pending image.

    Args:
        func: the function.
        own: the image, its first argument.
        more: its other arguments.
        named: its keyword arguments.

    Returns:
        The description of the result: `own` itself if the result is the tensor itself; NotImplemented if pixels are
        needed.
    """
    if func is torch.Tensor.requires_grad_:
        return own if more == (False,) and not named else NotImplemented
    if func is torch.Tensor.detach and not more and not named:
        return same_memory(own, own.tensor_class)
    if func is torch.Tensor.contiguous and not more and not named:
        is_so = own.is_dense and not own.channels_last
        return own if is_so else _copied(own, tensor_class=None, channels_last=False)
    result = _transformed(func, own, more, named)
    if result is NotImplemented or result is own or own.tensor_class is None:
        return result
    return result if func in _KEEP_CLASS or returns_tv_tensors() else replace(result, tensor_class=None)


def _transformed(func: Callable[..., Any], own: Undecoded, more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if func in _FLIPS:
        return _flipped(own, more, named)
    if func in _UNSQUEEZES:
        is_first = more == (0,) and not (named or own.is_batch)
        return _derived(own, is_batch=True, part_of=PartOf(own)) if is_first else NotImplemented
    if func is torch.Tensor.__getitem__:
        return _sliced(own, more[0]) if len(more) == 1 and not named else NotImplemented
    if func in _COPIES:
        return _copied(own) if not more and not named else NotImplemented
    dtype = _only_dtype(more, named) if func is torch.Tensor.to else None if more or named else _CASTS.get(func)
    if dtype is not None and dtype is own.levels.dtype:
        return own
    levels, in_place = _levels_after(func, dtype, own.levels, more, named)
    if levels is None or (own.after is not None and own.after.erases):  # erased rectangles must be filled last
        return NotImplemented
    if not in_place:
        return _copied(own, levels=levels)
    if own.is_shared or own.tensor_class is not None:
        return NotImplemented
    own.levels = levels
    return own


def _copied(own: Undecoded, **changes: Any) -> Undecoded:
    """Returns the description of a result with memory of its own, in the order of the first one's."""
    return _derived(own, memory_px=None, part_of=None, **changes)


def _derived(own: Undecoded, **changes: Any) -> Undecoded:
    """Returns the description of another tensor."""
    fresh: dict[str, Any] = {"value": None, "is_sent": False, "tensor": None, "parts": []}
    return replace(own, is_inference=torch.is_inference_mode_enabled(), **fresh, **changes)


def same_memory(own: Undecoded, tensor_class: type[torch.Tensor] | None) -> Undecoded:
    """Returns the description of a tensor of another class that shares the image's memory."""
    return _derived(own, tensor_class=tensor_class, part_of=PartOf(own))


def _flipped(own: Undecoded, more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    dims = more[0] if len(more) == 1 and isinstance(more[0], tuple | list) else more
    if named or own.is_batch or own.after is not None or not all(type(dim) is int and -2 <= dim < 3 for dim in dims):
        return NotImplemented
    turned = sorted(dim % 3 for dim in dims)
    if turned not in ([1], [2], [1, 2]):
        return NotImplemented
    return _copied(own, view=own.view.flipped(horizontally=2 in turned, vertically=1 in turned))


def _sliced(own: Undecoded, index: Any) -> Any:
    """Returns the description of ``image[..., top:bottom, left:right]``, or of the image of a batch, ``batch[0]``."""
    if own.is_batch and type(index) is int and index == 0:
        return _derived(own, is_batch=False, part_of=PartOf(own))
    if not isinstance(index, tuple) or len(index) != 3 or own.after is not None:
        return NotImplemented
    if not (index[0] is Ellipsis or (index[0] == slice(None) and not own.is_batch)) or not all(
        type(each) is slice for each in index[1:]
    ):
        return NotImplemented
    if any(type(side) not in (int, type(None)) for each in index[1:] for side in (each.start, each.stop, each.step)):
        return NotImplemented
    height, width = own.view.size
    (top, bottom, down), (left, right, along) = index[1].indices(height), index[2].indices(width)
    view = own.view.cropped((left, top, right, bottom)) if down == along == 1 else None
    if view is None:
        return NotImplemented
    return _derived(own, view=view, memory_px=own.memory_px or own.view.size, part_of=PartOf(own, top, left))


# ---- torchvision's v2 functions on images, as they are for tensors


def cropped(own: Undecoded, top: int, left: int, height: int, width: int) -> Any:
    """Returns the description after a crop, which may reach outside, where it is black."""
    bottom, right = top + height, left + width
    if top >= 0 and left >= 0 and bottom <= own.view.size[0] and right <= own.view.size[1]:
        return _sliced(own, (..., slice(top, bottom), slice(left, right)))
    if not _is_bytes(own):
        return NotImplemented
    return _on_new_memory(own, own.view.cropped((left, top, left + width, top + height)), channels_last=False)


def padded(own: Undecoded, padding: int | Sequence[int], fill: Any = None, padding_mode: str = "constant") -> Any:
    """Returns the description after padding with a colour."""
    sides, colour = sides_of(padding), outside_of(fill)
    if not _is_bytes(own) or padding_mode != "constant" or colour is None or sides is None:
        return NotImplemented
    if min(sides) < 0 or not any(sides):
        return NotImplemented
    (left, top, right, bottom), (height, width) = sides, own.view.size
    seen = own.view.cropped((-left, -top, width + right, height + bottom), colour)
    return _on_new_memory(own, seen, channels_last=False)


def resized(
    own: Undecoded, size: Any, interpolation: Any = "bilinear", max_size: int | None = None, antialias: Any = True
) -> Any:
    """Returns the description after an antialiased resize."""
    filter_ = _FILTERS.get(getattr(interpolation, "value", interpolation))
    if not _is_bytes(own) or filter_ is None or antialias is not True or not has_tensors_bits():
        return NotImplemented
    size = resized_size(own.view.size, size, max_size)
    if size == own.view.size:
        return own
    keeps_order = own.channels_last and own.is_dense
    return _on_new_memory(own, own.view.resized((size[1], size[0]), filter_), channels_last=keeps_order)


def resized_crop(
    own: Undecoded,
    top: int,
    left: int,
    height: int,
    width: int,
    size: Any,
    interpolation: Any = "bilinear",
    antialias: Any = True,
) -> Any:
    """Returns the description after a crop and a resize."""
    part = cropped(own, top, left, height, width)
    return part if part is NotImplemented else resized(part, size, interpolation, None, antialias)


_FILTERS = {"bilinear": Interpolation.TENSOR_BILINEAR, "bicubic": Interpolation.TENSOR_BICUBIC}


def _is_bytes(own: Undecoded) -> bool:
    """True for a uint8 image without augmentations, which may be padded and resized."""
    return not own.levels.steps and own.after is None


def sides_of(border: Any) -> tuple[int, int, int, int] | None:
    """Returns (left, top, right, bottom) of a border as torchvision and Pillow take it; None if it is none."""
    given = [border] if type(border) is int else list(border) if isinstance(border, list | tuple) else []
    sides = {1: given * 4, 2: given * 2, 4: given}.get(len(given))
    if sides is None or not all(type(side) is int for side in sides):
        return None
    left, top, right, bottom = sides
    return left, top, right, bottom


def outside_of(fill: Any) -> Outside | None:
    """Returns the colour that torchvision is given as a fill, for uint8 images; None if it is no such colour."""
    values = [0] if fill is None else list(fill) if isinstance(fill, list | tuple) else [fill]
    if len(values) not in (1, 3) or not all(isinstance(each, int | float) for each in values):
        return None
    if not all(0 <= each <= 255 and each == int(each) for each in values):
        return None
    red, green, blue = (int(each) for each in (values if len(values) == 3 else values * 3))
    return Outside(BLACK.padding, red, green, blue)


def _on_new_memory(own: Undecoded, view: Any, *, channels_last: bool) -> Any:
    return NotImplemented if view is None else _copied(own, view=view, channels_last=channels_last)


# Steps by the names of torchvision's functions, with their arguments.
TORCHVISIONS: dict[str, Callable[..., Any]] = {
    "crop": cropped,
    "pad": padded,
    "resize": resized,
    "resized_crop": resized_crop,
}


# ---- arithmetic


def _levels_after(
    func: Callable[..., Any],
    dtype: torch.dtype | None,
    levels: Levels,
    more: tuple[Any, ...],
    named: dict[str, Any],
) -> tuple[Levels | None, bool]:
    """Returns the arithmetic after a function, None if it is not such; and True if it works in place."""
    if dtype is not None:
        return levels.then("to", dtype), False
    if func in _STEPS and len(more) == 1 and not named and (constant := _constant(more[0])) is not None:
        step, in_place = _STEPS[func]
        longer = levels.then(step, constant)
        fits = longer is not None and (longer.dtype is levels.dtype or not in_place)
        return longer if fits else None, in_place
    return None, False


def _only_dtype(more: tuple[Any, ...], named: dict[str, Any]) -> torch.dtype | None:
    """Returns the dtype that `Tensor.to` is called with, if it is the only request."""
    named = {name: value for name, value in named.items() if not (name in ("copy", "non_blocking") and value is False)}
    given = [*more, *named.values()]
    only = len(given) == 1 and isinstance(given[0], torch.dtype) and set(named) <= {"dtype"}
    return given[0] if only else None


def _constant(value: Any) -> Constant | None:
    """Converts a number, or a tensor with one value or one per channel, to a constant of `Levels`; None for others."""
    if isinstance(value, bool | int | float):
        return value
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.requires_grad:
        return None
    if value.shape not in ((3, 1, 1), (1, 1, 1)) or not value.is_floating_point():
        return None  # a tensor without dimensions would not decide the result's dtype
    return tuple(value.flatten().tolist()), value.dtype
