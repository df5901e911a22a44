"""Draws of torchvision's transforms: the calls of random functions that their own code makes, in its order.

One function for each class; `geometry_follower` and `parameters_follower` find it, timm's as well.  What is drawn is
given in the terms of this package's plans: the numbers of a geometric step, or the parameters of an augmentation.
Sources: torchvision.transforms (v1) and torchvision.transforms.v2, function by function.  `fastdata.lazy.follow_trial`
compares them with the installed version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from fastdata.augment.auto_augment import AutoAugment, Policy
from fastdata.augment.base import Augmentation
from fastdata.augment.color import Grayscale
from fastdata.augment.container import parts_of
from fastdata.augment.tensors import OfTensors
from fastdata.transforms.known import is_timms, is_v2, name_of
from fastdata.transforms.plan_builder import NotFusable
from fastdata.transforms.timm_followers import (
    TIMMS_GEOMETRY,
    TIMMS_PARAMETERS,
    DrawsGeometry,
    DrawsParameters,
    Parameters,
    middle_window,
)
from fastdata.views.draw import ImageTooSmall
from fastdata.views.generators import Generators, float32
from fastdata.views.philox import Key
from fastdata.views.plan import Op, RandomCrop, Size
from fastdata.views.streams import Draws

__all__ = ["geometry_follower", "parameters_follower"]

_TRIES = 10  # of a window, or of a box that is erased
_ONE = Draws(key=Key(seed=0, epoch=0), indices=np.zeros(1, np.int64), occurrences=np.zeros(1, np.int64))


def geometry_follower(step: Any) -> DrawsGeometry | None:
    """Returns the draws of a geometric step; None if it draws nothing.

    Raises:
        NotFusable: they are not known.
    """
    known = TIMMS_GEOMETRY if is_timms(step) else _GEOMETRY
    follower = known.get(type(step).__name__)
    if follower is not None and type(step).__module__.startswith("fastdata."):
        raise NotFusable(f"draws='torch' has {name_of(step)} draw in its own code")
    return follower


def parameters_follower(step: Any, augmentation: Augmentation) -> DrawsParameters:
    """Returns the draws of an augmentation, for the counterpart that this package has of it.

    Raises:
        NotFusable: they are not known.
    """
    augmentation = augmentation.augmentation if isinstance(augmentation, OfTensors) else augmentation
    known = TIMMS_PARAMETERS if is_timms(step) else _PARAMETERS
    make = None if isinstance(step, Augmentation) else known.get(type(step).__name__)
    if make is None:
        raise NotFusable(f"draws='torch' has {name_of(step)} draw in its own code")
    return make(step, augmentation)


# ---- geometry


@lru_cache(maxsize=64)
def _logarithms(ratio: tuple[float, float]) -> tuple[float, float]:
    """Logarithms of float32, as torchvision computes them."""
    low, high = torch.log(torch.tensor(ratio)).tolist()
    return low, high


def _resized_crop(step: Any, op: Op, drawn: Generators, size: Size) -> Sequence[int]:
    height, width = size
    area, (low, high) = height * width, _logarithms((float(step.ratio[0]), float(step.ratio[1])))
    for _ in range(_TRIES):
        target_area = area * drawn.uniform(step.scale[0], step.scale[1])
        aspect_ratio = drawn.exp_uniform(low, high)
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            top = drawn.integer(0, height - h + 1)
            left = drawn.integer(0, width - w + 1)
            return left, top, left + w, top + h
    return middle_window(step.ratio, size)


def _random_crop(step: Any, op: RandomCrop, drawn: Generators, size: Size) -> Sequence[int]:
    (h, w), (left, top, right, bottom) = op.size, op.padding
    height, width = size[0] + top + bottom, size[1] + left + right
    if op.pad_if_needed:
        more_rows, more_columns = max(0, h - height), max(0, w - width)
        top, height = top + more_rows, height + 2 * more_rows
        left, width = left + more_columns, width + 2 * more_columns
    if height < h or width < w:
        padded = "padded " if is_v2(step) and step.padding is not None else ""
        end = "." if is_v2(step) else ""
        raise ImageTooSmall(
            f"Required crop size {(h, w)} is larger than {padded}input image size {(height, width)}{end}"
        )
    if is_v2(step):
        y = drawn.integer(0, height - h + 1) if height > h else 0
        x = drawn.integer(0, width - w + 1) if width > w else 0
    elif (height, width) == (h, w):
        y = x = 0
    else:
        y, x = drawn.integer(0, height - h + 1), drawn.integer(0, width - w + 1)
    return x - left, y - top


def _flip(step: Any, op: Op, drawn: Generators, size: Size) -> Sequence[int]:
    return (int(drawn.is_below(step.p)),)


_GEOMETRY: dict[str, DrawsGeometry] = {
    "RandomCrop": _random_crop,
    "RandomHorizontalFlip": _flip,
    "RandomResizedCrop": _resized_crop,
    "RandomVerticalFlip": _flip,
}


# ---- augmentations of torchvision


def _chosen(step: Any, augmentation: Any) -> DrawsParameters:
    """Steps that are done with a probability; v1 compares some of them in float64."""
    p, in_float64 = step.p, not is_v2(step) and type(step).__name__ in _IN_FLOAT64
    return lambda drawn, size: {"chosen": drawn.share() < p if in_float64 else drawn.is_below(p)}


_IN_FLOAT64 = (
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
)


def _grayscale(step: Any, augmentation: Grayscale) -> DrawsParameters:
    return lambda drawn, size: {"chosen": True}


def _color_jitter(step: Any, augmentation: Any) -> DrawsParameters:
    ranges = step.brightness, step.contrast, step.saturation, step.hue

    def draw(drawn: Generators, size: Size) -> Parameters:
        order = drawn.order(4)
        amounts = [0.0 if each is None else drawn.uniform(each[0], each[1]) for each in ranges]
        return {"amounts": amounts, "order": order}

    return draw


def _gaussian_blur(step: Any, augmentation: Any) -> DrawsParameters:
    raise NotFusable("draws='torch' has it run its own code, whose convolution rounds some pixels to another level")


def _photometric(step: Any, augmentation: Any) -> DrawsParameters:
    ranges = step.brightness, step.contrast, step.saturation, step.hue

    def draw(drawn: Generators, size: Size) -> Parameters:
        amounts, chosen = [], []
        for low, high in ranges:
            chosen.append(drawn.is_below(step.p))
            amounts.append(drawn.uniform(low, high) if chosen[-1] else 0.0)
        contrast_first = drawn.share() < 0.5
        permuted = drawn.is_below(step.p)
        order = drawn.order(3) if permuted else [0, 1, 2]
        return {
            "amounts": amounts,
            "chosen": chosen,
            "contrast_first": contrast_first,
            "permuted": permuted,
            "permutations": order,
        }

    return draw


def _channels(step: Any, augmentation: Any) -> DrawsParameters:
    return lambda drawn, size: {"permutations": drawn.order(3)}


def _rotation(step: Any, augmentation: Any) -> DrawsParameters:
    return lambda drawn, size: {"angles": drawn.uniform(float(step.degrees[0]), float(step.degrees[1]))}


def _affine(step: Any, augmentation: Any) -> DrawsParameters:
    def draw(drawn: Generators, size: Size) -> Parameters:
        angle = drawn.uniform(float(step.degrees[0]), float(step.degrees[1]))
        moves = [0, 0]
        if step.translate is not None:
            across, down = float(step.translate[0] * size[1]), float(step.translate[1] * size[0])
            moves = [round(drawn.uniform(-most, most)) for most in (across, down)]
        scale = drawn.uniform(*step.scale) if step.scale is not None else 1.0
        shears = [0.0, 0.0]
        if step.shear is not None:
            shears[0] = drawn.uniform(step.shear[0], step.shear[1])
            if len(step.shear) == 4:
                shears[1] = drawn.uniform(step.shear[2], step.shear[3])
        return {"angles": angle, "scales": scale, "shears": shears, "moves": moves}

    return draw


def _perspective(step: Any, augmentation: Any) -> DrawsParameters:
    def draw(drawn: Generators, size: Size) -> Parameters:
        height, width = size
        corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
        chosen = drawn.is_below(step.p)
        if chosen:
            across = int(step.distortion_scale * (width // 2)) + 1
            down = int(step.distortion_scale * (height // 2)) + 1
            left, right = partial(drawn.integer, 0, across), partial(drawn.integer, width - across, width)
            top, bottom = partial(drawn.integer, 0, down), partial(drawn.integer, height - down, height)
            corners = [[left(), top()], [right(), top()], [right(), bottom()], [left(), bottom()]]
        return {"chosen": chosen, "corners": corners}

    return draw


def _erasing(step: Any, augmentation: Any) -> DrawsParameters:
    if augmentation.is_noise:
        raise NotFusable("draws='torch' has it draw its noise in its own code")
    low, high = _logarithms((float(step.ratio[0]), float(step.ratio[1])))

    def draw(drawn: Generators, size: Size) -> Parameters:
        height, width = size
        box = [0, 0, 0, 0]
        for _ in range(_TRIES if drawn.is_below(step.p) else 0):
            area = height * width * drawn.uniform(step.scale[0], step.scale[1])
            aspect_ratio = drawn.exp_uniform(low, high)
            h, w = round(math.sqrt(area * aspect_ratio)), round(math.sqrt(area / aspect_ratio))
            if h < height and w < width:
                top, left = drawn.integer(0, height - h + 1), drawn.integer(0, width - w + 1)
                box = [left, top, left + w, top + h]
                break
        return {"boxes": [box], "values": [list(augmentation.value)], "noise": [[]]}

    return draw


# ---- policies of torchvision


@lru_cache(maxsize=64)
def _table(policy: Policy, size: Size) -> list[list[float]]:
    """The magnitudes of a policy for images of (height, width)."""
    return policy.magnitudes(size).tolist()  # type: ignore[no-any-return]


_SIGNED = range(1, 10)  # operations whose magnitude may be negative
_WITH_MAGNITUDE = range(1, 12)


def _is_negative(step: Any, drawn: Generators) -> bool:
    return drawn.share() <= 0.5 if is_v2(step) else drawn.integer(0, 2) == 1


def _any_operation(step: Any, policy: Any) -> DrawsParameters:
    """RandAugment, whose magnitude is fixed, and TrivialAugmentWide."""
    fixed = getattr(step, "magnitude", None)

    def draw(drawn: Generators, size: Size) -> Parameters:
        table, choices, amounts = _table(policy, size), [], []
        for _ in range(policy.num_ops):
            choice = drawn.integer(0, len(table))
            bin_ = fixed if fixed is not None else 0
            if fixed is None and choice in _WITH_MAGNITUDE:
                bin_ = drawn.integer(0, step.num_magnitude_bins)
            amount = table[choice][bin_]
            choices.append(choice)
            amounts.append(-amount if choice in _SIGNED and _is_negative(step, drawn) else amount)
        return {"choices": choices, "amounts": amounts}

    return draw


def _auto_augment(step: Any, policy: AutoAugment) -> DrawsParameters:
    pairs = policy.numbers

    def draw_v1(drawn: Generators, size: Size) -> Parameters:
        pair = pairs[drawn.integer(0, len(pairs))]
        shares = [drawn.share(), drawn.share()]
        signs = [drawn.integer(0, 2), drawn.integer(0, 2)]
        choices, amounts = [], []
        for (choice, p, bin_), share, sign in zip(pair, shares, signs, strict=True):
            choice = choice if share <= float32(p) else 0
            amount = _table(policy, size)[choice][bin_] if choice in _WITH_MAGNITUDE else 0.0
            choices.append(choice)
            amounts.append(-amount if choice in _SIGNED and sign == 0 else amount)
        return {"choices": choices, "amounts": amounts}

    def draw_v2(drawn: Generators, size: Size) -> Parameters:
        choices, amounts = [], []
        for choice, p, bin_ in pairs[drawn.integer(0, len(pairs))]:
            choice = choice if drawn.share() <= float32(p) else 0
            amount = _table(policy, size)[choice][bin_] if choice in _WITH_MAGNITUDE else 0.0
            choices.append(choice)
            amounts.append(-amount if choice in _SIGNED and drawn.share() <= 0.5 else amount)
        return {"choices": choices, "amounts": amounts}

    return draw_v2 if is_v2(step) else draw_v1


# ---- several steps


def _several(step: Any, augmentation: Any, turns: Callable[[Generators], Sequence[int]]) -> DrawsParameters:
    """Steps that apply some of others: `turns` draws their numbers, in order; -1 for none."""
    parts = list(zip(step.transforms, parts_of(augmentation), strict=True))
    followers = [parameters_follower(*part) for part in parts]
    unused = [
        {name: values[0].tolist() for name, values in own.draw(_ONE, (64, 64)).items()} for _, own in parts
    ]  # of the same shapes

    def draw(drawn: Generators, size: Size) -> Parameters:
        order = list(turns(drawn))
        rows = list(unused)
        for number in order:
            if number >= 0:
                rows[number] = followers[number](drawn, size)
        named = {f"{number} {name}": value for number, row in enumerate(rows) for name, value in row.items()}
        return {"turns": order, **named}

    return draw


def _random_apply(step: Any, augmentation: Any) -> DrawsParameters:
    count = len(augmentation.transforms)

    def turns(drawn: Generators) -> Sequence[int]:
        share = drawn.share()
        skipped = share >= float32(step.p) if is_v2(step) else share > float32(step.p)
        return [-1] * count if skipped else list(range(count))

    return _several(step, augmentation, turns)


def _random_choice(step: Any, augmentation: Any) -> DrawsParameters:
    count = range(len(augmentation.transforms))

    def turns(drawn: Generators) -> Sequence[int]:
        return [drawn.choice(step.p)] if is_v2(step) else drawn.python.choices(count, weights=step.p)

    return _several(step, augmentation, turns)


def _random_order(step: Any, augmentation: Any) -> DrawsParameters:
    count = len(augmentation.transforms)

    def turns(drawn: Generators) -> Sequence[int]:
        if is_v2(step):
            return drawn.order(count)
        order = list(range(count))
        drawn.python.shuffle(order)
        return order

    return _several(step, augmentation, turns)


_FLIPS = ("RandomHorizontalFlip", "RandomVerticalFlip")
_COLOR = ("AdjustSharpness", "Autocontrast", "Equalize", "Grayscale", "Invert", "Posterize", "Solarize")
_PARAMETERS: dict[str, Callable[[Any, Any], DrawsParameters]] = {
    **dict.fromkeys((*_FLIPS, *(f"Random{name}" for name in _COLOR)), _chosen),
    "AutoAugment": _auto_augment,
    "ColorJitter": _color_jitter,
    "GaussianBlur": _gaussian_blur,
    "Grayscale": _grayscale,
    "RandAugment": _any_operation,
    "RandomAffine": _affine,
    "RandomApply": _random_apply,
    "RandomChannelPermutation": _channels,
    "RandomChoice": _random_choice,
    "RandomErasing": _erasing,
    "RandomOrder": _random_order,
    "RandomPerspective": _perspective,
    "RandomPhotometricDistort": _photometric,
    "RandomRotation": _rotation,
    "TrivialAugmentWide": _any_operation,
}
