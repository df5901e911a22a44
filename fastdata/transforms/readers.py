"""Reads transforms of torchvision, of timm and of this package into a draft, by their attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.transforms.draft import Draft, NotFusable
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Interpolation,
    Normalisation,
    Output,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Size,
)

__all__ = ["READERS", "TIMM_READERS", "Reader"]

Reader: TypeAlias = Callable[[Any, Draft], None]

_V2_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _size(size: int | Sequence[int]) -> Size:
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[0])) if len(size) == 1 else (int(size[0]), int(size[1]))


def _interpolation(step: Any) -> Interpolation:
    mode = step.interpolation
    if isinstance(mode, tuple | list):
        raise NotFusable("its interpolation is random")
    value = getattr(mode, "value", mode)
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
            interpolation=_interpolation(step),
        )
    )


def _read_resize(step: Any, draft: Draft) -> None:
    filter_ = _interpolation(step)
    size, longest = step.size, getattr(step, "max_size", None)
    if size is None:
        raise NotFusable("it has no size, only max_size")
    if not isinstance(size, int) and len(size) == 2:
        draft.add_geometry(Resize(size=_size(size), interpolation=filter_))
        return
    shorter = size if isinstance(size, int) else int(size[0])
    if longest is not None and longest <= shorter:
        raise NotFusable(f"max_size={longest} is not above size={shorter}")
    draft.add_geometry(Resize(shorter=shorter, longest=longest, interpolation=filter_))


def _read_center_crop(step: Any, draft: Draft) -> None:
    draft.add_geometry(CenterCrop(size=_size(step.size)))


def _read_random_crop(step: Any, draft: Draft) -> None:
    op = RandomCrop(size=_size(step.size), padding=_padding(step), pad_if_needed=bool(step.pad_if_needed))
    if op.pads and not (getattr(step, "padding_mode", "constant") == "constant" and _is_black(step)):
        raise NotFusable("it pads with something else than black")
    height, width = op.size
    if min(op.padding) < 0 or any(side >= limit for side, limit in zip(op.padding, (width, height) * 2, strict=True)):
        raise NotFusable(f"with padding={step.padding} a crop could lie outside of the image")
    draft.add_geometry(op)


def _padding(step: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), which v1 keeps as given and v2 as left, right, top, bottom."""
    given = step.padding
    sides = [] if given is None else [given] if isinstance(given, int) else list(given)
    if len(sides) == 4 and ".v2." in type(step).__module__:
        left, right, top, bottom = sides
        sides = [left, top, right, bottom]
    if len(sides) not in (0, 1, 2, 4) or not all(isinstance(side, int) for side in sides):
        raise NotFusable(f"padding={given!r} is not understood")
    left, top, right, bottom = sides * (4 // len(sides)) if sides else [0] * 4
    return left, top, right, bottom


def _is_black(step: Any) -> bool:
    """True when what is added has the value 0 in every channel, for images of every class."""
    fill = getattr(step, "fill", 0)
    fills = list(fill.values()) if isinstance(fill, dict) else [fill]
    return all(isinstance(value, int | float | Sequence) and not np.any(np.asarray(value)) for value in fills)


def _read_horizontal_flip(step: Any, draft: Draft) -> None:
    draft.add_geometry(Flip(axis="horizontal", p=float(step.p)))


def _read_vertical_flip(step: Any, draft: Draft) -> None:
    draft.add_geometry(Flip(axis="vertical", p=float(step.p)))


def _read_pil_to_tensor(step: Any, draft: Draft) -> None:
    if draft.output is not Output.PIL:
        raise NotFusable("the image is already a tensor")
    draft.output = Output.UINT8


def _read_to_image(step: Any, draft: Draft) -> None:
    _read_pil_to_tensor(step, draft)
    from torchvision import tv_tensors  # the step is torchvision's, so it is installed

    draft.tensor_class = tv_tensors.Image


def _read_to_pure_tensor(step: Any, draft: Draft) -> None:
    if draft.output is Output.PIL:
        raise NotFusable("the image is not a tensor yet")
    draft.tensor_class = None


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
    is_v2 = ".v2." in type(step).__module__ or type(step).__name__ == "ToDtype"
    if draft.output is not Output.UINT8 or step.dtype not in (_V2_FLOATS if is_v2 else (torch.float32,)):
        raise NotFusable("only uint8 to float32 is fused (with v2 also to float16 and bfloat16)")
    if type(step).__name__ == "ToDtype":
        _become_float(draft, "multiply" if step.scale else "none", step.dtype)
    else:
        _become_float(draft, "multiply" if is_v2 else "divide", step.dtype)


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
    "CenterCrop": _read_center_crop,
    "ConvertImageDtype": _read_to_dtype,
    "Normalize": _read_normalize,
    "PILToTensor": _read_pil_to_tensor,
    "RandomCrop": _read_random_crop,
    "RandomHorizontalFlip": _read_horizontal_flip,
    "RandomResizedCrop": _read_random_resized_crop,
    "RandomVerticalFlip": _read_vertical_flip,
    "Resize": _read_resize,
    "ToDtype": _read_to_dtype,
    "ToImage": _read_to_image,
    "ToPureTensor": _read_to_pure_tensor,
    "ToTensor": _read_to_tensor,
}

TIMM_READERS: dict[str, Reader] = {
    "MaybePILToTensor": _read_pil_to_tensor,
    "MaybeToTensor": _read_to_tensor,
    "RandomResizedCropAndInterpolation": _read_random_resized_crop,
    "ToTensor": _read_unscaled_tensor,
}
