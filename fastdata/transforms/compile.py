"""From transforms to a plan, by reading class names and attributes, so torchvision need not be importable.

The longest prefix of the stages in views/plan.py is fused; what no stage can do ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastdata.augment.base import Augmentation
from fastdata.transforms.augmentations import (
    augmentation_of,
    core_agrees,
    flip_later,
    has_tensors_arithmetic,
    is_augmentation,
)
from fastdata.transforms.followers import geometry_follower, parameters_follower
from fastdata.transforms.following import FollowedSteps
from fastdata.transforms.known import is_hooked, is_known_transform, is_timms, name_of
from fastdata.transforms.plan_builder import Draft, NotFusable
from fastdata.transforms.readers import READERS, TIMM_READERS, Reader
from fastdata.views.plan import Output, Plan

__all__ = ["ADVICE_FIRST_STEP", "PlanResult", "compile_steps", "compile_transform", "flatten"]


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """A plan, or in words why there is none, and why it ends where it ends; and what to change about it."""

    plan: Plan | None
    reason: str
    advice: str | None = None


ADVICE_FIRST_STEP = (
    "use a transform that begins with RandomResizedCrop, Resize, CenterCrop, RandomCrop or a flip of "
    "torchvision.transforms; your own steps can follow in the same Compose"
)


def compile_transform(transform: object, *, augment_on: str = "host", follow: bool = False) -> PlanResult:
    """Compiles a transform into a plan.

    Args:
        transform: a transform of torchvision (v1 or v2), timm or `fastdata.transforms`, a Compose of them, or
            anything callable.
        augment_on: "device" takes augmentations into the plan as operations on whole batches; "host" as effects that
            the native core does to each image, where it gives Pillow's pixels, else they are called per sample.
        follow: random steps draw what their own code would; those for which that is not known end the prefix.

    Returns:
        A plan and the reason its prefix ended, or no plan and the reason nothing could be fused.
    """
    if transform is None:
        reason = "the dataset has no transform, so its samples are PIL images"
        return PlanResult(plan=None, reason=reason, advice=ADVICE_FIRST_STEP)
    return compile_steps(flatten(transform), augment_on=augment_on, follow=follow)


def compile_steps(
    steps: Sequence[Any],
    *,
    augment_on: str = "host",
    effects: bool = True,
    given: type[torch.Tensor] | None = None,
    ends_with_pil: bool = False,
    follow: bool = False,
) -> PlanResult:
    """Compiles the steps of a transform, one after the other.

    Args:
        steps: result of `flatten`.
        augment_on: see `compile_transform`.
        effects: False calls augmentations per sample in any case, and allows no further stages.
        given: the class of the uint8 tensors (3, H, W) that the first is called with; None for PIL images.
        ends_with_pil: a prefix may end with an augmented PIL image.
        follow: see `compile_transform`.
    """
    draft, fused, reason = Draft(may_stage=effects and augment_on == "host"), 0, "everything is fused"
    draft.following = FollowedSteps() if follow else None
    if given is not None:
        draft.output, draft.tensor_class = Output.UINT8, None if given is torch.Tensor else given
    for step in steps:
        try:
            _read_step(step, draft, augment_on, effects)
        except NotFusable as stop:
            reason = f"{name_of(step)} is called per sample: {stop}"
            break
        fused += 1
    if fused == 0:
        return PlanResult(plan=None, reason=f"nothing can be fused: {reason}", advice=ADVICE_FIRST_STEP)
    why = reason if fused < len(steps) else "the transform does not end with a tensor"
    if (draft.effects or draft.stages) and draft.output is Output.PIL and not ends_with_pil:
        return replace(
            compile_steps(steps, effects=False, follow=follow), reason=f"augmentations are called per sample: {why}"
        )
    if follow and fused < len(steps) and draft.is_of_any_layout:
        # What follows may draw noise into the tensor's memory, whose order depends on what was drawn before.
        own = {"given": given, "ends_with_pil": ends_with_pil, "follow": True}
        return compile_steps(steps, effects=False, **own)  # type: ignore[arg-type]
    if augment_on == "device" and (fused < len(steps) or draft.output is Output.PIL):
        host = compile_steps(steps)
        on_batches = draft.augmentations or draft.float_augmentations
        if on_batches or (host.plan is not None and len(host.plan.fused) > fused):
            return replace(host, reason=f"augmentations stay on the host, since {why}")
    plan = replace(draft.plan(), unfused=tuple(steps[fused:]), fused=tuple(map(name_of, steps[:fused])))
    return PlanResult(plan=plan, reason=reason)


def flatten(transform: object) -> list[Any]:
    """The steps of a transform, those of a Compose inside of it as well."""
    if is_hooked(transform):
        return [transform]
    if type(transform) is torch.nn.Sequential:
        return [step for child in transform for step in flatten(child)]
    if type(transform).__name__ == "Compose" and is_known_transform(transform):
        return [step for child in transform.transforms for step in flatten(child)]  # type: ignore[attr-defined]
    if (type(transform).__module__, type(transform).__name__) == (
        "torchvision.transforms._presets",
        "ImageClassification",
    ):
        return _preset_steps(transform)
    return [transform]


def _preset_steps(preset: Any) -> list[Any]:
    """Steps of `weights.transforms()`.  Source: torchvision.transforms._presets.ImageClassification."""
    from torchvision import transforms  # the preset is torchvision's, so it is installed

    return [
        transforms.Resize(preset.resize_size, interpolation=preset.interpolation),
        transforms.CenterCrop(preset.crop_size),
        transforms.PILToTensor(),
        transforms.ConvertImageDtype(torch.float32),
        transforms.Normalize(preset.mean, preset.std),
    ]


def _read_step(step: Any, draft: Draft, augment_on: str, effects: bool) -> None:
    if is_hooked(step):
        raise NotFusable("it has forward hooks, or some of its functions were replaced")
    name = type(step).__name__ if is_known_transform(step) else ""
    behind = flip_later(step) if draft.effects or draft.augmentations else None
    if behind is not None or is_augmentation(step):
        if draft.output is Output.UINT8 and augment_on == "host" and not has_tensors_arithmetic(step):
            raise NotFusable("it works on a tensor, with the arithmetic of torchvision's v1; v2's is fused")
        _add(step, behind if behind is not None else augmentation_of(step), draft, augment_on, effects)
        return
    reader = (TIMM_READERS if is_timms(step) else READERS).get(name)
    if reader is None:
        raise NotFusable("fastdata cannot fuse it")
    if draft.float_augmentations and name != "ToPureTensor":  # which changes no value
        raise NotFusable("it comes after RandomErasing")
    try:
        _read_geometry(reader, step, draft)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise NotFusable(f"its arguments are not understood ({error})") from error


def _read_geometry(reader: Reader, step: Any, draft: Draft) -> None:
    """Reads a step that is no augmentation, and how it draws."""
    if draft.following is None:
        reader(step, draft)
        return
    follow, before = geometry_follower(step), (len(draft.stages), len(draft.ops))
    reader(step, draft)
    stage = len(draft.stages)
    if (stage, len(draft.ops)) != before:
        draft.following.add_geometry(step, draft.ops[-1], stage, follow)


def _add(step: Any, augmentation: Augmentation, draft: Draft, augment_on: str, effects: bool) -> None:
    """Adds an augmentation, on whole batches or on the host, and how it draws."""
    if draft.following is not None:
        if augmentation.changes_size:
            raise NotFusable("draws='torch' has it draw in its own code")
        follow = parameters_follower(step, augmentation)
        _add_augmentation(augmentation, draft, augment_on, effects)
        draft.following.add_parameters(follow)
    else:
        _add_augmentation(augmentation, draft, augment_on, effects)


def _add_augmentation(augmentation: Augmentation, draft: Draft, augment_on: str, effects: bool) -> None:
    if augment_on == "device":
        draft.add_augmentation(augmentation)
    elif effects and core_agrees():
        draft.add_effect(augmentation)
    elif augmentation.on_batches:
        raise NotFusable("augment_on='device' would do it on whole batches")
    else:
        raise NotFusable("the native core is missing, or differs from the installed Pillow")
