"""Reads transforms of torchvision, of timm and of this package into a draft, by their attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.transforms.known import is_v2
from fastdata.transforms.plan_builder import Draft, NotFusable
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Normalisation,
    Output,
    Pad,
    RandomCrop,
    RandomCropOrPad,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Size,
)
from fastdata.views.resampling import Interpolation, Outside, Padding

__all__ = ["READERS", "TIMM_READERS", "Reader"]

Reader: TypeAlias = Callable[[Any, Draft], None]

_MOST_FILTERS = 4
_V2_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _size(size: int | Sequence[int]) -> Size:
    sides = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    if min(sides) < 1:
        raise NotFusable(f"its size {size} has no pixels")
    return sides


def _filters(step: Any) -> tuple[Interpolation, ...]:
    """Interpolation filters, from which each sample draws one; nearly always there is only one."""
    modes = step.interpolation
    several = tuple(modes) if isinstance(modes, tuple | list) else (modes,)
    if not 0 < len(several) <= _MOST_FILTERS:
        raise NotFusable(f"{len(several)} interpolations are not understood")
    return tuple(_interpolation(mode) for mode in several)


def _interpolation(mode: Any) -> Interpolation:
    value = getattr(mode, "value", mode)
    if value == "nearest-exact":  # of PIL images the same
        return Interpolation.NEAREST
    try:
        return Interpolation[value.upper()] if isinstance(value, str) else Interpolation(int(value))
    except (KeyError, ValueError):
        raise NotFusable(f"interpolation {mode!r} is not one of Pillow's filters") from None


def _pair(values: Sequence[float]) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _read_random_resized_crop(step: Any, draft: Draft) -> None:
    draft.add_geometry(
        RandomResizedCrop(
            size=_size(step.size),
            scale=_pair(step.scale),
            ratio=_pair(step.ratio),
            filters=_filters(step),
        ),
        on_tensors=_keeps_uint8(step),
    )


def _keeps_uint8(step: Any) -> bool:
    """True for resizes that leave a uint8 tensor one; v1's compute with floats."""
    return is_v2(step) and getattr(step, "antialias", None) is True


def _read_resize(step: Any, draft: Draft) -> None:
    filters, on_tensors = _filters(step), _keeps_uint8(step)
    size, longest = step.size, getattr(step, "max_size", None)
    if size is None:
        raise NotFusable("it has no size, only max_size")
    if not isinstance(size, int) and len(size) == 2:
        draft.add_geometry(Resize(size=_size(size), filters=filters), on_tensors=on_tensors)
        return
    shorter, _ = _size(size)
    if longest is not None and longest <= shorter:
        raise NotFusable(f"max_size={longest} is not above size={shorter}")
    draft.add_geometry(Resize(shorter=shorter, longest=longest, filters=filters), on_tensors=on_tensors)


def _read_random_crop(step: Any, draft: Draft) -> None:
    op = RandomCrop(size=_size(step.size), padding=_padding(step), pad_if_needed=bool(step.pad_if_needed))
    if op.pads:
        op = replace(op, outside=_outside(step))
    if op.outside.padding is not Padding.CONSTANT and op.pad_if_needed and any(op.padding):
        raise NotFusable("it pads twice, and not with one colour")
    height, width = op.size
    if min(op.padding) < 0 or any(side >= limit for side, limit in zip(op.padding, (width, height) * 2, strict=True)):
        raise NotFusable(f"with padding={step.padding} a crop could lie outside of the image")
    draft.add_geometry(op)


def _padding(step: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom); v2's RandomCrop keeps left, right, top, bottom, all others what was given."""
    given = step.padding
    sides = [] if given is None else [given] if isinstance(given, int) else list(given)
    if len(sides) == 4 and is_v2(step) and type(step).__name__ == "RandomCrop":
        left, right, top, bottom = sides
        sides = [left, top, right, bottom]
    if len(sides) not in (0, 1, 2, 4) or not all(isinstance(side, int) for side in sides):
        raise NotFusable(f"padding={given!r} is not understood")
    left, top, right, bottom = sides * (4 // len(sides)) if sides else [0] * 4
    return left, top, right, bottom


def _outside(step: Any) -> Outside:
    """Padding of a crop; its fill must be the same for images of every class."""
    mode = str(getattr(step, "padding_mode", "constant")).upper()
    if mode not in Padding.__members__:
        raise NotFusable(f"padding_mode={step.padding_mode!r} is not understood")
    if Padding[mode] is not Padding.CONSTANT:
        return Outside(Padding[mode])
    fill = getattr(step, "fill", 0)
    fills = {_levels(each) for each in (fill.values() if isinstance(fill, dict) else [fill])}
    if len(fills) != 1 or None in fills:
        raise NotFusable(f"fill={fill!r} is not one colour for images of every class")
    (levels,) = fills
    assert levels is not None
    return Outside(Padding.CONSTANT, *levels)


def _levels(fill: Any) -> tuple[int, int, int] | None:
    """Red, green and blue; None for anything else."""
    if fill is None:
        return 0, 0, 0
    given = [fill] if isinstance(fill, int | float) else list(fill) if isinstance(fill, Sequence) else []
    if len(given) not in (1, 3) or any(
        not isinstance(each, int | float) or each != int(each) or not 0 <= each <= 255 for each in given
    ):
        return None
    red, green, blue = (int(each) for each in (given if len(given) == 3 else given * 3))
    return red, green, blue


def _read_pad(step: Any, draft: Draft) -> None:
    padding = _padding(step)
    if min(padding) < 0:
        raise NotFusable(f"padding={step.padding} cuts off instead of adding")
    draft.add_geometry(Pad(padding=padding, outside=_outside(step)))


def _read_resize_keep_ratio(step: Any, draft: Draft) -> None:
    none = (1.0, 1.0)  # where a range does not count
    scale = _pair(step.random_scale_range) if step.random_scale_prob > 0 else none
    ratio = _pair(step.random_aspect_range) if step.random_aspect_prob > 0 else none
    if min(*scale, *ratio) <= 0:
        raise NotFusable("its ranges are not all above 0")
    draft.add_geometry(
        ResizeKeepRatio(
            size=_size(step.size),
            longest=float(step.longest),
            scale=scale,
            scale_chance=float(step.random_scale_prob),
            scale_is_of_area=bool(step.random_scale_area),
            ratio=ratio,
            ratio_chance=float(step.random_aspect_prob),
            filters=_filters(step),
        )
    )


def _read_nothing(step: Any, draft: Draft) -> None:
    """Reads a step that leaves RGB images as they are."""


def _read_pil_to_tensor(step: Any, draft: Draft) -> None:
    if draft.output is not Output.PIL:
        raise NotFusable("the image is already a tensor")
    draft.output, draft.channels_last = Output.UINT8, True


def _read_to_image(step: Any, draft: Draft) -> None:
    if draft.output is not Output.UINT8:  # a tensor only changes its class
        _read_pil_to_tensor(step, draft)
    from torchvision import tv_tensors  # the step is torchvision's, so it is installed

    draft.tensor_class = tv_tensors.Image


def _read_to_pure_tensor(step: Any, draft: Draft) -> None:
    if draft.output is Output.PIL:
        raise NotFusable("the image is not a tensor yet")
    draft.tensor_class = None


def _read_to_numpy(step: Any, draft: Draft) -> None:
    if draft.output is not Output.PIL:
        raise NotFusable("the image is already a tensor")
    draft.output = Output.NUMPY


def _become_float(draft: Draft, scaling: str, dtype: torch.dtype = torch.float32) -> None:
    draft.output = Output.FLOAT
    draft.normalisation = Normalisation(scaling=scaling, dtype=dtype)


def _read_to_tensor(step: Any, draft: Draft) -> None:
    if draft.output is not Output.PIL:
        raise NotFusable("the image is already a tensor")
    if torch.get_default_dtype() != torch.float32:
        raise NotFusable("torch's default dtype is not float32")
    _become_float(draft, "divide")


def _read_unscaled_tensor(step: Any, draft: Draft) -> None:
    if step.dtype not in _V2_FLOATS:
        raise NotFusable("only float32, float16 and bfloat16 are fused")
    _read_pil_to_tensor(step, draft)
    _become_float(draft, "none", step.dtype)


def _read_to_dtype(step: Any, draft: Draft) -> None:
    like_v2 = is_v2(step) or type(step).__name__ == "ToDtype"
    if like_v2 and draft.output is Output.UINT8 and step.dtype is torch.uint8:
        return
    if draft.output is not Output.UINT8 or step.dtype not in (_V2_FLOATS if like_v2 else (torch.float32,)):
        raise NotFusable("only uint8 to float32 is fused (with v2 also to float16 and bfloat16)")
    if type(step).__name__ == "ToDtype":
        _become_float(draft, "multiply" if step.scale else "none", step.dtype)
    else:
        _become_float(draft, "multiply" if like_v2 else "divide", step.dtype)


def _read_normalize(step: Any, draft: Draft) -> None:
    normalisation = draft.normalisation
    if normalisation is None or normalisation.mean is not None:
        raise NotFusable("it must come directly after the conversion to float")
    mean, std = (np.ravel(np.asarray(v, dtype=np.float64)).tolist() for v in (step.mean, step.std))
    if not {len(mean), len(std)} <= {1, 3}:
        raise NotFusable("mean and std have neither one value nor three")
    if 0 in std:
        raise NotFusable("std has a zero")
    draft.normalisation = replace(normalisation, mean=tuple(mean), std=tuple(std))


READERS: dict[str, Reader] = {
    "CenterCrop": lambda step, draft: draft.add_geometry(CenterCrop(size=_size(step.size))),
    "ConvertImageDtype": _read_to_dtype,
    "Normalize": _read_normalize,
    "PILToTensor": _read_pil_to_tensor,
    "Pad": _read_pad,
    "RGB": _read_nothing,
    "RandomCrop": _read_random_crop,
    "RandomHorizontalFlip": lambda step, draft: draft.add_geometry(Flip(axis="horizontal", p=float(step.p))),
    "RandomResizedCrop": _read_random_resized_crop,
    "RandomVerticalFlip": lambda step, draft: draft.add_geometry(Flip(axis="vertical", p=float(step.p))),
    "Resize": _read_resize,
    "ToDtype": _read_to_dtype,
    "ToImage": _read_to_image,
    "ToPureTensor": _read_to_pure_tensor,
    "ToTensor": _read_to_tensor,
}

TIMM_READERS: dict[str, Reader] = {
    "CenterCropOrPad": lambda step, draft: draft.add_geometry(
        CenterCrop(size=_size(step.size), outside=_outside(step))
    ),
    "MaybePILToTensor": _read_pil_to_tensor,
    "MaybeToTensor": _read_to_tensor,
    "RandomCropOrPad": lambda step, draft: draft.add_geometry(
        RandomCropOrPad(size=_size(step.size), outside=_outside(step))
    ),
    "RandomResizedCropAndInterpolation": _read_random_resized_crop,
    "ResizeKeepRatio": _read_resize_keep_ratio,
    "ToNumpy": _read_to_numpy,
    "ToTensor": _read_unscaled_tensor,
}
