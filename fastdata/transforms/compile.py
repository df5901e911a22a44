"""From transforms to a plan, by reading class names and attributes, so torchvision need not be importable.

The longest prefix of the shape in views/plan.py is fused; a transform that would break that shape ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from fastdata.augment import policies, single, sometimes, warps
from fastdata.augment.base import Augmentation
from fastdata.errors import OptionError
from fastdata.transforms.draft import Draft, NotFusable
from fastdata.transforms.readers import READERS, TIMM_READERS
from fastdata.views.plan import Output, Plan

__all__ = ["BEGIN_WITH", "PlanResult", "compile_transform", "has_batch_form", "is_known_transform"]

_OWN_MODULES = (
    "fastdata.transforms",
    "fastdata.augment.policies",
    "fastdata.augment.single",
    "fastdata.augment.sometimes",
)
_TIMMS_MODULE = "timm.data.transforms"


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


def compile_transform(transform: object, *, augment_on: str = "host", effects: bool = True) -> PlanResult:
    """Compiles a transform into a plan.

    Args:
        transform: a transform of torchvision (v1 or v2), timm or `fastdata.transforms`, a Compose of them, or
            anything callable.
        augment_on: "device" takes augmentations into the plan as operations on whole batches; "host" as effects that
            the native core does to each image, where it gives Pillow's pixels, else they are called per sample.
        effects: False calls them per sample in any case.

    Returns:
        A plan and the reason its prefix ended, or no plan and the reason nothing could be fused.
    """
    if transform is None:
        reason = "the dataset has no transform, so its samples are PIL images"
        return PlanResult(plan=None, reason=reason, advice=BEGIN_WITH)
    steps = _flatten(transform)
    draft, fused, reason = Draft(), 0, "everything is fused"
    for step in steps:
        try:
            _read_step(step, draft, augment_on, effects)
        except NotFusable as stop:
            reason = f"{_name(step)} is called per sample: {stop}"
            break
        fused += 1
    if fused == 0:
        return PlanResult(plan=None, reason=f"nothing can be fused: {reason}", advice=BEGIN_WITH)
    if draft.effects and draft.output is Output.PIL:
        why = reason if fused < len(steps) else "the transform does not end with a tensor"
        return replace(
            compile_transform(transform, effects=False), reason=f"augmentations are called per sample: {why}"
        )
    on_batches = augment_on == "device" and (draft.augmentations or draft.float_augmentations)
    if on_batches and (fused < len(steps) or draft.output is Output.PIL):
        why = reason if fused < len(steps) else "the transform does not end with a tensor"
        return replace(compile_transform(transform), reason=f"augmentations stay on the host, since {why}")
    plan = Plan(
        ops=tuple(draft.ops),
        effects=tuple(draft.effects),
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
    if type(transform) is torch.nn.Sequential:
        return [step for child in transform for step in _flatten(child)]
    if type(transform).__name__ == "Compose" and is_known_transform(transform):
        return [step for child in transform.transforms for step in _flatten(child)]  # type: ignore[attr-defined]
    if (type(transform).__module__, type(transform).__name__) == (
        "torchvision.transforms._presets",
        "ImageClassification",
    ):
        return _preset_steps(transform)
    return [transform]


def _is_hooked(step: object) -> bool:
    """True for a module that does something else than its class says: by hooks, or by functions that were replaced."""
    if not isinstance(step, torch.nn.Module):
        return False
    everywhere = torch.nn.modules.module
    hooks = (
        step._forward_hooks,
        step._forward_pre_hooks,
        everywhere._global_forward_hooks,
        everywhere._global_forward_pre_hooks,
    )
    library = type(step).__module__.partition(".")[0]
    replaced = (getattr(type(step), name, None) for name in _INSIDES)
    return (
        any(hooks)
        or any(name in vars(step) for name in _INSIDES)
        or any(getattr(each, "__module__", library).partition(".")[0] not in (library, "torch") for each in replaced)
    )


# What decides what a transform does, besides its arguments, and what people replace in an object or a class.
_INSIDES = (
    "__call__",
    "forward",
    "get_params",
    "make_params",
    "transform",
    "_augmentation_space",
    "_AUGMENTATION_SPACE",
    "_apply_image_or_video_transform",
)


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
    return module.startswith("torchvision.transforms.") or module in (*_OWN_MODULES, _TIMMS_MODULE)


def _is_timms(step: object) -> bool:
    """True for classes of timm's, whose names may be torchvision's for something else."""
    return type(step).__module__ == _TIMMS_MODULE


def _name(step: object) -> str:
    return getattr(step, "__name__", type(step).__name__)


def _read_step(step: Any, draft: Draft, augment_on: str, effects: bool) -> None:
    if _is_hooked(step):
        raise NotFusable("it has forward hooks")
    name = type(step).__name__ if is_known_transform(step) else ""
    if _is_augmentation(step):
        augmentation = _augmentation(step)
        if augment_on == "device":
            draft.add_augmentation(augmentation)
        elif effects and _core_agrees():
            draft.add_effect(augmentation)
        elif augmentation.on_batches:
            raise NotFusable("augment_on='device' would do it on whole batches")
        else:
            raise NotFusable("the native core is missing, or differs from the installed Pillow")
        return
    reader = (TIMM_READERS if _is_timms(step) else READERS).get(name)
    if reader is None:
        raise NotFusable("fastdata cannot fuse it")
    if draft.float_augmentations and name != "ToPureTensor":  # which changes no value
        raise NotFusable("it comes after RandomErasing")
    reader(step, draft)


# Augmentations that work on batches, and the attributes that are their arguments, in torchvision as here.
_AUGMENTATIONS: dict[str, tuple[type[Augmentation], tuple[str, ...]]] = {
    "AutoAugment": (policies.AutoAugment, ("policies", "interpolation", "fill")),
    "ColorJitter": (single.ColorJitter, ("brightness", "contrast", "saturation", "hue")),
    "GaussianBlur": (single.GaussianBlur, ("kernel_size", "sigma")),
    "Grayscale": (sometimes.Grayscale, ("num_output_channels",)),
    "RandAugment": (policies.RandAugment, ("num_ops", "magnitude", "num_magnitude_bins", "interpolation", "fill")),
    "RandomAffine": (
        warps.RandomAffine,
        ("degrees", "translate", "scale", "shear", "interpolation", "fill", "center"),
    ),
    "RandomRotation": (warps.RandomRotation, ("degrees", "interpolation", "expand", "center", "fill")),
    "RandomAdjustSharpness": (sometimes.RandomAdjustSharpness, ("sharpness_factor", "p")),
    "RandomApply": (sometimes.RandomApply, ("transforms", "p")),
    "RandomAutocontrast": (sometimes.RandomAutocontrast, ("p",)),
    "RandomEqualize": (sometimes.RandomEqualize, ("p",)),
    "RandomErasing": (single.RandomErasing, ("p", "scale", "ratio", "value")),
    "RandomGrayscale": (sometimes.RandomGrayscale, ("p",)),
    "RandomInvert": (sometimes.RandomInvert, ("p",)),
    "RandomPosterize": (sometimes.RandomPosterize, ("bits", "p")),
    "RandomSolarize": (sometimes.RandomSolarize, ("threshold", "p")),
    "TrivialAugmentWide": (policies.TrivialAugmentWide, ("num_magnitude_bins", "interpolation", "fill")),
}
_OTHER_NAMES = {"policies": "_policies", "fill": "_fill"}  # of attributes, in torchvision's v2


def has_batch_form(step: object) -> bool:
    """True for augmentations that `augment_on="device"` would do on whole batches."""
    return _is_augmentation(step) and _AUGMENTATIONS[type(step).__name__][0].on_batches


def _is_augmentation(step: object) -> bool:
    return is_known_transform(step) and not _is_timms(step) and type(step).__name__ in _AUGMENTATIONS


def _augmentation(step: Any) -> Augmentation:
    if isinstance(step, Augmentation):
        return step
    if _is_hooked(step) or not _is_augmentation(step):
        raise NotFusable(f"{_name(step)} inside of it has no form for batches")
    cls, names = _AUGMENTATIONS[type(step).__name__]
    try:
        arguments = {name: _attribute(step, name) for name in names}
        if "transforms" in arguments:
            arguments["transforms"] = [_augmentation(each) for each in arguments["transforms"]]
        made = cls(**arguments)
    except (AttributeError, OptionError, TypeError, ValueError) as error:
        raise NotFusable(f"it cannot be done on batches ({error})") from error
    if isinstance(made, policies.Policy) and ".v2." not in type(step).__module__:
        made.of_v1 = True
    return made


def _core_agrees() -> bool:
    from fastdata.loaders.pillow_effects import core_agrees  # which imports Pillow

    return core_agrees()


def _attribute(step: Any, name: str) -> Any:
    return getattr(step, name) if hasattr(step, name) else getattr(step, _OTHER_NAMES.get(name, name))
