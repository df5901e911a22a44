"""From transforms to a plan, by reading class names and attributes, so torchvision need not be importable.

The longest prefix of the shape in views/plan.py is fused; a transform that would break that shape ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fastdata.augment import single as augment
from fastdata.augment.base import Augmentation
from fastdata.errors import OptionError
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Interpolation,
    Normalisation,
    Op,
    Output,
    Plan,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Size,
)

__all__ = ["BEGIN_WITH", "PlanResult", "compile_transform", "has_batch_form", "is_known_transform"]

_OWN_MODULES = ("fastdata.transforms", "fastdata.augment.single", "fastdata.augment.policies")
_V2_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A plan, or in words why there is none, and why it ends where it ends; and what to change about it."""

    plan: Plan | None
    reason: str
    advice: str | None = None


BEGIN_WITH = (
    "use a transform that begins with RandomResizedCrop, Resize, CenterCrop, RandomCrop or a flip of "
    "torchvision.transforms; your own steps can follow in the same Compose"
)


class _NotFusable(Exception):
    """Ends the fused prefix; its text goes into `explain()`."""


@dataclass
class _Draft:
    """The prefix built so far."""

    ops: list[Op] = field(default_factory=list)
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    augmentations: list[Augmentation] = field(default_factory=list)
    float_augmentations: list[Augmentation] = field(default_factory=list)
    tensor_class: type[torch.Tensor] | None = None

    def add_augmentation(self, augmentation: Augmentation) -> None:
        if self.normalisation is None:
            self.augmentations.append(augmentation)
        elif isinstance(augmentation, augment.RandomErasing):
            self.float_augmentations.append(augmentation)
        else:
            raise _NotFusable("the image is already float; put it before ToTensor, then it is done on batches")

    def add_geometry(self, op: Op) -> None:
        if self.augmentations or self.float_augmentations:
            raise _NotFusable("it comes after an augmentation; put crops, resizes and flips first")
        resizes = isinstance(op, RandomResizedCrop | Resize)
        if resizes and self.output is not Output.PIL:
            raise _NotFusable("it resizes a tensor, which torchvision filters differently from a PIL image")
        if resizes and any(isinstance(o, RandomResizedCrop | Resize) for o in self.ops):
            raise _NotFusable("the image has already been resized")
        if resizes and any(isinstance(o, CenterCrop) for o in self.ops):
            raise _NotFusable("it comes after a CenterCrop, which may have padded")
        if resizes and any(isinstance(o, RandomCrop) and o.pads for o in self.ops):
            raise _NotFusable("it comes after a RandomCrop that pads")
        if self.ops and _reaches_outside(op, self.ops[-1]):
            raise _NotFusable("it pads what another crop has left")
        if not isinstance(op, Flip) and any(isinstance(o, Flip) for o in self.ops):
            raise _NotFusable("it comes after a flip")
        self.ops.append(op)


def compile_transform(transform: object, *, augment_on: str = "host") -> PlanResult:
    """Compiles a transform into a plan.

    Args:
        transform: a transform of torchvision (v1 or v2) or `fastdata.transforms`, a Compose of them, or anything
            callable.
        augment_on: "device" takes augmentations into the plan, as operations on whole batches; "host" calls them per
            sample.

    Returns:
        A plan and the reason its prefix ended, or no plan and the reason nothing could be fused.
    """
    if transform is None:
        reason = "the dataset has no transform, so its samples are PIL images"
        return PlanResult(plan=None, reason=reason, advice=BEGIN_WITH)
    steps = _flatten(transform)
    draft, fused, reason = _Draft(), 0, "everything is fused"
    for step in steps:
        try:
            _read_step(step, draft, augment_on)
        except _NotFusable as stop:
            reason = f"{_name(step)} is called per sample: {stop}"
            break
        fused += 1
    if fused == 0:
        return PlanResult(plan=None, reason=f"nothing can be fused: {reason}", advice=BEGIN_WITH)
    if (draft.augmentations or draft.float_augmentations) and (fused < len(steps) or draft.output is Output.PIL):
        why = reason if fused < len(steps) else "the transform does not end with a tensor"
        return replace(compile_transform(transform), reason=f"augmentations stay on the host, since {why}")
    plan = Plan(
        ops=tuple(draft.ops),
        output=draft.output,
        normalisation=draft.normalisation,
        augmentations=tuple(draft.augmentations),
        float_augmentations=tuple(draft.float_augmentations),
        tail=tuple(steps[fused:]),
        tensor_class=draft.tensor_class,
        fused=tuple(_name(step) for step in steps[:fused]),
    )
    return PlanResult(plan=plan, reason=reason)


def _flatten(transform: object) -> list[Any]:
    if _is_hooked(transform):
        return [transform]
    if type(transform).__name__ == "Compose" and is_known_transform(transform):
        return [step for child in transform.transforms for step in _flatten(child)]  # type: ignore[attr-defined]
    if (type(transform).__module__, type(transform).__name__) == (
        "torchvision.transforms._presets",
        "ImageClassification",
    ):
        return _preset_steps(transform)
    return [transform]


def _is_hooked(step: object) -> bool:
    """True for a module that does more than its class says: it has forward hooks, or a forward of its own."""
    if not isinstance(step, torch.nn.Module):
        return False
    everywhere = torch.nn.modules.module
    hooks = (
        step._forward_hooks,
        step._forward_pre_hooks,
        everywhere._global_forward_hooks,
        everywhere._global_forward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(step)


def _preset_steps(preset: Any) -> list[Any]:
    """What `weights.transforms()` does.  Source: torchvision.transforms._presets.ImageClassification."""
    from torchvision import transforms  # the preset is torchvision's, so it is installed

    return [
        transforms.Resize(preset.resize_size, interpolation=preset.interpolation),
        transforms.CenterCrop(preset.crop_size),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float32),
        transforms.Normalize(preset.mean, preset.std),
    ]


def is_known_transform(step: object) -> bool:
    """True for an instance of a library's own class; a subclass in the user's own module may do anything."""
    module = type(step).__module__
    return module.startswith("torchvision.transforms.") or module in _OWN_MODULES


def _name(step: object) -> str:
    return getattr(step, "__name__", type(step).__name__)


def _read_step(step: Any, draft: _Draft, augment_on: str) -> None:
    if _is_hooked(step):
        raise _NotFusable("it has forward hooks")
    name = type(step).__name__ if is_known_transform(step) else ""
    if name in _AUGMENTATIONS:
        if augment_on != "device":
            raise _NotFusable("augment_on='device' would do it on whole batches")
        draft.add_augmentation(_augmentation(step))
        return
    reader = _READERS.get(name)
    if reader is None:
        raise _NotFusable("fastdata cannot fuse it")
    reader(step, draft)


def _size(size: int | Sequence[int]) -> Size:
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[0])) if len(size) == 1 else (int(size[0]), int(size[1]))


def _interpolation(step: Any) -> Interpolation:
    mode = step.interpolation
    value = getattr(mode, "value", mode)
    try:
        return Interpolation[value.upper()] if isinstance(value, str) else Interpolation(int(value))
    except (KeyError, ValueError):
        raise _NotFusable(f"interpolation {mode!r} is not one of Pillow's filters") from None


def _pair(values: Sequence[float]) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _read_random_resized_crop(step: Any, draft: _Draft) -> None:
    draft.add_geometry(
        RandomResizedCrop(
            size=_size(step.size),
            scale=_pair(step.scale),
            ratio=_pair(step.ratio),
            interpolation=_interpolation(step),
        )
    )


def _read_resize(step: Any, draft: _Draft) -> None:
    filter_ = _interpolation(step)
    size, longest = step.size, getattr(step, "max_size", None)
    if size is None:
        raise _NotFusable("it has no size, only max_size")
    if not isinstance(size, int) and len(size) == 2:
        draft.add_geometry(Resize(size=_size(size), interpolation=filter_))
        return
    shorter = size if isinstance(size, int) else int(size[0])
    if longest is not None and longest <= shorter:
        raise _NotFusable(f"max_size={longest} is not above size={shorter}")
    draft.add_geometry(Resize(shorter=shorter, longest=longest, interpolation=filter_))


def _read_center_crop(step: Any, draft: _Draft) -> None:
    draft.add_geometry(CenterCrop(size=_size(step.size)))


def _reaches_outside(op: Op, before: Op) -> bool:
    """True for a crop that pads the result of another crop, beyond which a view would show the image."""
    if not isinstance(before, CenterCrop | RandomCrop):
        return False
    if isinstance(op, CenterCrop):
        return op.size[0] > before.size[0] or op.size[1] > before.size[1]
    return isinstance(op, RandomCrop) and op.pads


def _read_random_crop(step: Any, draft: _Draft) -> None:
    op = RandomCrop(size=_size(step.size), padding=_padding(step), pad_if_needed=bool(step.pad_if_needed))
    if op.pads and not (getattr(step, "padding_mode", "constant") == "constant" and _is_black(step)):
        raise _NotFusable("it pads with something else than black")
    height, width = op.size
    if min(op.padding) < 0 or any(side >= limit for side, limit in zip(op.padding, (width, height) * 2, strict=True)):
        raise _NotFusable(f"with padding={step.padding} a crop could lie outside of the image")
    draft.add_geometry(op)


def _padding(step: Any) -> tuple[int, int, int, int]:
    """(left, top, right, bottom), which v1 keeps as given and v2 as left, right, top, bottom."""
    given = step.padding
    sides = [] if given is None else [given] if isinstance(given, int) else list(given)
    if len(sides) == 4 and ".v2." in type(step).__module__:
        left, right, top, bottom = sides
        sides = [left, top, right, bottom]
    if len(sides) not in (0, 1, 2, 4) or not all(isinstance(side, int) for side in sides):
        raise _NotFusable(f"padding={given!r} is not understood")
    left, top, right, bottom = sides * (4 // len(sides)) if sides else [0] * 4
    return left, top, right, bottom


def _is_black(step: Any) -> bool:
    """True when what is added has the value 0 in every channel, for images of every class."""
    fill = getattr(step, "fill", 0)
    fills = list(fill.values()) if isinstance(fill, dict) else [fill]
    return all(isinstance(value, int | float | Sequence) and not np.any(np.asarray(value)) for value in fills)


def _read_horizontal_flip(step: Any, draft: _Draft) -> None:
    draft.add_geometry(Flip(axis="horizontal", p=float(step.p)))


def _read_vertical_flip(step: Any, draft: _Draft) -> None:
    draft.add_geometry(Flip(axis="vertical", p=float(step.p)))


def _read_pil_to_tensor(step: Any, draft: _Draft) -> None:
    if draft.output is not Output.PIL:
        raise _NotFusable("the image is already a tensor")
    draft.output = Output.UINT8


def _read_to_image(step: Any, draft: _Draft) -> None:
    _read_pil_to_tensor(step, draft)
    from torchvision import tv_tensors  # the step is torchvision's, so it is installed

    draft.tensor_class = tv_tensors.Image


def _read_to_pure_tensor(step: Any, draft: _Draft) -> None:
    if draft.output is Output.PIL:
        raise _NotFusable("the image is not a tensor yet")
    draft.tensor_class = None


def _become_float(draft: _Draft, scaling: str, dtype: torch.dtype = torch.float32) -> None:
    draft.output = Output.FLOAT
    draft.normalisation = Normalisation(scaling=scaling, dtype=dtype)


def _read_to_tensor(step: Any, draft: _Draft) -> None:
    if draft.output is not Output.PIL:
        raise _NotFusable("the image is already a tensor")
    if torch.get_default_dtype() != torch.float32:
        raise _NotFusable("torch's default dtype is not float32")
    _become_float(draft, "divide")


def _read_to_dtype(step: Any, draft: _Draft) -> None:
    is_v2 = ".v2." in type(step).__module__ or type(step).__name__ == "ToDtype"
    if draft.output is not Output.UINT8 or step.dtype not in (_V2_FLOATS if is_v2 else (torch.float32,)):
        raise _NotFusable("only uint8 to float32 is fused (with v2 also to float16 and bfloat16)")
    if type(step).__name__ == "ToDtype":
        _become_float(draft, "multiply" if step.scale else "none", step.dtype)
    else:
        _become_float(draft, "multiply" if is_v2 else "divide", step.dtype)


def _read_normalize(step: Any, draft: _Draft) -> None:
    normalisation = draft.normalisation
    if normalisation is None or normalisation.mean is not None:
        raise _NotFusable("it must come directly after the conversion to float")
    mean, std = (np.ravel(np.asarray(v, dtype=np.float64)).tolist() for v in (step.mean, step.std))
    if not {len(mean), len(std)} <= {1, 3}:
        raise _NotFusable("mean and std have neither one value nor three")
    if 0 in std:
        raise _NotFusable("std has a zero")
    draft.normalisation = replace(normalisation, mean=tuple(mean), std=tuple(std))


# Augmentations that work on batches, and the attributes that are their arguments, in torchvision as here.
_AUGMENTATIONS: dict[str, tuple[type[Augmentation], tuple[str, ...]]] = {
    "ColorJitter": (augment.ColorJitter, ("brightness", "contrast", "saturation", "hue")),
    "GaussianBlur": (augment.GaussianBlur, ("kernel_size", "sigma")),
    "RandAugment": (
        augment.RandAugment,
        ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill"),
    ),
    "RandomErasing": (augment.RandomErasing, ("p", "scale", "ratio", "value")),
    "RandomGrayscale": (augment.RandomGrayscale, ("p",)),
    "TrivialAugmentWide": (augment.TrivialAugmentWide, ("num_magnitude_bins", "interpolation", "fill")),
}


def has_batch_form(step: object) -> bool:
    """True for augmentations that `augment_on="device"` would do on whole batches."""
    return is_known_transform(step) and type(step).__name__ in _AUGMENTATIONS


def _augmentation(step: Any) -> Augmentation:
    if isinstance(step, Augmentation):
        return step
    cls, names = _AUGMENTATIONS[type(step).__name__]
    try:
        return cls(**{name: getattr(step, name) for name in names})
    except (OptionError, TypeError, ValueError) as error:
        raise _NotFusable(f"it cannot be done on batches ({error})") from error


_READERS: dict[str, Callable[[Any, _Draft], None]] = {
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
