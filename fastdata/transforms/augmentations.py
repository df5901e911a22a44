"""From augmentations of torchvision and timm to those of this package, by their attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from fastdata.augment import auto_augment, color, container, erasing, geometry, timm_auto_augment
from fastdata.augment.base import Augmentation
from fastdata.errors import OptionError
from fastdata.transforms.known import is_hooked, is_known_transform, is_timms, is_v2, name_of
from fastdata.transforms.plan_builder import NotFusable

__all__ = [
    "augmentation_of",
    "core_agrees",
    "flip_later",
    "has_batch_form",
    "has_tensors_arithmetic",
    "is_augmentation",
]

_MAP = ("interpolation", "fill")
_CHANNELS = ("brightness", "contrast", "saturation", "hue")
# Augmentations and the attributes that are their arguments, in torchvision as here.
_AUGMENTATIONS: dict[str, tuple[type[Augmentation], tuple[str, ...]]] = {
    "AutoAugment": (auto_augment.AutoAugment, ("policies", *_MAP)),
    "ColorJitter": (color.ColorJitter, _CHANNELS),
    "GaussianBlur": (color.GaussianBlur, ("kernel_size", "sigma")),
    "Grayscale": (color.Grayscale, ("num_output_channels",)),
    "RandAugment": (auto_augment.RandAugment, ("num_ops", "magnitude", "num_magnitude_bins", *_MAP)),
    "RandomAdjustSharpness": (color.RandomAdjustSharpness, ("sharpness_factor", "p")),
    "RandomAffine": (geometry.RandomAffine, ("degrees", "translate", "scale", "shear", *_MAP, "center")),
    "RandomApply": (container.RandomApply, ("transforms", "p")),
    "RandomAutocontrast": (color.RandomAutocontrast, ("p",)),
    "RandomChannelPermutation": (color.RandomChannelPermutation, ()),
    "RandomChoice": (container.RandomChoice, ("transforms", "p")),
    "RandomEqualize": (color.RandomEqualize, ("p",)),
    "RandomErasing": (erasing.RandomErasing, ("p", "scale", "ratio", "value")),
    "RandomGrayscale": (color.RandomGrayscale, ("p",)),
    "RandomInvert": (color.RandomInvert, ("p",)),
    "RandomOrder": (container.RandomOrder, ("transforms",)),
    "RandomPerspective": (geometry.RandomPerspective, ("distortion_scale", "p", *_MAP)),
    "RandomPhotometricDistort": (color.RandomPhotometricDistort, (*_CHANNELS, "p")),
    "RandomPosterize": (color.RandomPosterize, ("bits", "p")),
    "RandomRotation": (geometry.RandomRotation, ("degrees", "interpolation", "expand", "center", "fill")),
    "RandomSolarize": (color.RandomSolarize, ("threshold", "p")),
    "TrivialAugmentWide": (auto_augment.TrivialAugmentWide, ("num_magnitude_bins", *_MAP)),
}
_OTHER_NAMES = {"policies": "_policies", "fill": "_fill"}  # of attributes, in torchvision's v2
_FLIPS = {"RandomHorizontalFlip": "horizontal", "RandomVerticalFlip": "vertical"}
_FILTER_NAMES = {0: "nearest", 2: "bilinear", 3: "bicubic"}

_Reader: TypeAlias = Callable[[Any], Augmentation]


def has_batch_form(step: object) -> bool:
    """True for augmentations that `augment_on="device"` would do on whole batches."""
    try:
        return is_augmentation(step) and augmentation_of(step).on_batches
    except NotFusable:
        return False


def is_augmentation(step: object) -> bool:
    """True for a library's own class that has a counterpart in this package."""
    known = _TIMMS if is_timms(step) else _AUGMENTATIONS
    return is_known_transform(step) and type(step).__name__ in known


def has_tensors_arithmetic(step: object) -> bool:
    """True if it does to uint8 tensors what torchvision's v2 does, with all that is inside of it."""
    own = isinstance(step, Augmentation) or is_v2(step)
    parts = getattr(step, "transforms", None) or ()
    return own and all(map(has_tensors_arithmetic, parts))


def flip_later(step: object) -> Augmentation | None:
    """A flip that comes behind augmentations; None for anything else."""
    axis = _FLIPS.get(type(step).__name__) if is_known_transform(step) and not is_timms(step) else None
    return None if axis is None else color.FlipLater(float(step.p), axis)  # type: ignore[attr-defined]


def augmentation_of(step: Any) -> Augmentation:
    """Returns this package's augmentation that does the same as `step`.

    Raises:
        NotFusable: there is none, or not with these arguments.
    """
    if isinstance(step, Augmentation):
        return step
    flip = flip_later(step)
    if is_hooked(step) or not (flip is not None or is_augmentation(step)):
        raise NotFusable(f"{name_of(step)} inside of it is not known")
    if flip is not None:
        return flip
    try:
        return _TIMMS[type(step).__name__](step) if is_timms(step) else _torchvisions(step)
    except (AttributeError, OptionError, TypeError, ValueError, KeyError) as error:
        raise NotFusable(f"it cannot be fused ({error})") from error


def _torchvisions(step: Any) -> Augmentation:
    cls, names = _AUGMENTATIONS[type(step).__name__]
    arguments = {name: _attribute(step, name) for name in names}
    if "transforms" in arguments:
        arguments["transforms"] = [augmentation_of(each) for each in arguments["transforms"]]
    made = cls(**arguments)
    if isinstance(made, auto_augment.Policy) and not is_v2(step):
        made.of_v1 = True
    if isinstance(made, geometry.RandomAffine) and is_v2(step):
        made.of_v2 = True
    return made


def _attribute(step: Any, name: str) -> Any:
    return getattr(step, name) if hasattr(step, name) else getattr(step, _OTHER_NAMES.get(name, name))


def _timms_operation(step: Any) -> timm_auto_augment.Operation:
    """Timm's AugmentOp, if nobody has changed what it does."""
    module = sys.modules[type(step).__module__]
    own = type(step).__name__ == "AugmentOp" and is_timms(step) and not is_hooked(step)
    functions = [each.func if isinstance(each, partial) else each for each in (step.aug_fn, step.level_fn)]
    if (
        not own
        or (step.aug_fn, step.level_fn) != (module.NAME_TO_OP[step.name], module.LEVEL_TO_ARG[step.name])
        or any(each is not None and each.__module__ != module.__name__ for each in functions)
    ):
        raise NotFusable(f"{name_of(step)} inside of it is not timm's")
    filters = step.kwargs["resample"]
    several_filters = tuple(filters) if isinstance(filters, list | tuple) else (filters,)
    red, green, blue = (int(level) for level in step.kwargs["fillcolor"])
    return timm_auto_augment.Operation(
        name=step.name,
        prob=float(step.prob),
        magnitude=float(step.magnitude),
        magnitude_std=float(step.magnitude_std),
        magnitude_max=step.magnitude_max,
        translate_const=float(step.hparams.get("translate_const", 250)),
        translate_pct=float(step.hparams.get("translate_pct", 0.45)),
        filters=tuple(_FILTER_NAMES[int(each)] for each in several_filters),
        draws_filter=isinstance(filters, list | tuple),
        fill=(red, green, blue),
    )


def _timms_rand_augment(step: Any) -> Augmentation:
    return timm_auto_augment.TimmsRandAugment(
        [_timms_operation(each) for each in step.ops], step.num_layers, step.choice_weights
    )


def _timms_auto_augment(step: Any) -> Augmentation:
    return timm_auto_augment.TimmsAutoAugment([[_timms_operation(each) for each in part] for part in step.policy])


def _timms_aug_mix(step: Any) -> Augmentation:
    operations = [_timms_operation(each) for each in step.ops]
    return timm_auto_augment.TimmsAugMix(operations, step.width, step.depth, step.blended, step.alpha)


def _timms_random_erasing(step: Any) -> Augmentation:
    if str(step.device) != "cpu":
        raise NotFusable(f"it works on {step.device}")
    names = ("min_area", "max_area", "log_aspect_ratio", "mode", "min_count", "max_count")
    return erasing.TimmsRandomErasing(step.probability, *(getattr(step, name) for name in names))


_TIMMS: dict[str, _Reader] = {
    "AugMixAugment": _timms_aug_mix,
    "AutoAugment": _timms_auto_augment,
    "RandAugment": _timms_rand_augment,
    "RandomErasing": _timms_random_erasing,
}


def core_agrees() -> bool:
    """True if the native core does effects with the installed Pillow's bits."""
    from fastdata.loaders import pillow_effects  # which imports Pillow

    return pillow_effects.core_agrees()
