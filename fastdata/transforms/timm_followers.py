"""Draws of timm's transforms: the calls of random functions that their own code makes, in its order.

Sources: timm.data.transforms, timm.data.auto_augment and timm.data.random_erasing, function by function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fastdata.augment.timm_auto_augment import Operation, TimmsAutoAugment
from fastdata.transforms.plan_builder import NotFusable
from fastdata.views.generators import Generators
from fastdata.views.plan import Op, Size

__all__ = ["TIMMS_GEOMETRY", "TIMMS_PARAMETERS", "DrawsGeometry", "DrawsParameters", "Parameters", "middle_window"]

# Of a library's step and its counterpart; gives up to GIVEN_NUMBERS.
DrawsGeometry: TypeAlias = Callable[[Any, Any, Generators, Size], Sequence[int]]
Parameters: TypeAlias = dict[str, Any]  # one row each
DrawsParameters: TypeAlias = Callable[[Generators, Size], Parameters]

_TRIES = 10  # of a window, or of a box that is erased


def middle_window(ratio: Sequence[float], size: Size) -> Sequence[int]:
    """The window of a random crop for which none of ten tries fits: the largest of such a ratio, in the middle."""
    height, width = size
    h, w = height, width
    if width / height < min(ratio):
        h = round(width / min(ratio))
    elif width / height > max(ratio):
        w = round(height * max(ratio))
    top, left = (height - h) // 2, (width - w) // 2
    return left, top, left + w, top + h


def _filter(step: Any, drawn: Generators) -> int:
    """The number of one of timm's filters."""
    several = step.interpolation
    return drawn.python.choice(range(len(several))) if isinstance(several, tuple | list) else 0


def _timms_resized_crop(step: Any, op: Op, drawn: Generators, size: Size) -> Sequence[int]:
    height, width = size
    python, area = drawn.python, width * height
    log_ratio = math.log(step.ratio[0]), math.log(step.ratio[1])
    window = None
    for _ in range(_TRIES):
        target_area = python.uniform(*step.scale) * area
        aspect_ratio = math.exp(python.uniform(*log_ratio))
        w = round(math.sqrt(target_area * aspect_ratio))
        h = round(math.sqrt(target_area / aspect_ratio))
        if w <= width and h <= height:
            top, left = python.randint(0, height - h), python.randint(0, width - w)
            window = (left, top, left + w, top + h)
            break
    return (*(window or middle_window(step.ratio, size)), _filter(step, drawn))


def _timms_crop_or_pad(step: Any, op: Op, drawn: Generators, size: Size) -> Sequence[int]:
    down, across = size[0] - step.size[0], size[1] - step.size[1]
    top = int(math.copysign(drawn.python.randint(0, abs(down)), down))
    left = int(math.copysign(drawn.python.randint(0, abs(across)), across))
    return left, top


def _timms_keep_ratio(step: Any, op: Op, drawn: Generators, size: Size) -> Sequence[int]:
    python = drawn.python
    ratios = size[0] / step.size[0], size[1] / step.size[1]
    ratio = max(ratios) * step.longest + min(ratios) * (1.0 - step.longest)
    down = across = 1.0
    if step.random_scale_prob > 0 and python.random() < step.random_scale_prob:
        factor = python.uniform(step.random_scale_range[0], step.random_scale_range[1])
        down = across = 1.0 / math.sqrt(factor) if step.random_scale_area else factor
    if step.random_aspect_prob > 0 and python.random() < step.random_aspect_prob:
        low, high = (math.log(each) for each in step.random_aspect_range)
        aspect = math.sqrt(math.exp(python.uniform(low, high)))
        down, across = down / aspect, across * aspect
    return round(size[1] * across / ratio), round(size[0] * down / ratio), 0, 0, _filter(step, drawn)


TIMMS_GEOMETRY: dict[str, DrawsGeometry] = {
    "RandomCropOrPad": _timms_crop_or_pad,
    "RandomResizedCropAndInterpolation": _timms_resized_crop,
    "ResizeKeepRatio": _timms_keep_ratio,
}


# ---- augmentations of timm


def _operation(each: Operation, drawn: Generators) -> tuple[float, float, float, float] | None:
    """Level, sign, share of the filters and of the radii for one AugmentOp; None if it is left out."""
    python = drawn.python
    if each.prob < 1.0 and python.random() > each.prob:
        return None
    level = each.magnitude
    if each.magnitude_std == math.inf:
        level = python.uniform(0, level)
    elif each.magnitude_std > 0:
        level = python.gauss(level, each.magnitude_std)
    level = max(0.0, min(level, each.magnitude_max or 10.0))
    sign = 1.0
    if each.name.startswith(_MOVES) or each.name in _INCREASING:
        sign = -1.0 if python.random() > 0.5 else 1.0
    filter_ = 0.0
    if each.name.startswith(_MOVES) and each.draws_filter:
        filter_ = (python.choice(range(len(each.filters))) + 0.5) / len(each.filters)
    radius = python.random() if each.name == "GaussianBlurRand" else 0.0
    return level, sign, filter_, radius


_MOVES = ("Rotate", "Shear", "Translate")
_INCREASING = tuple(f"{name}Increasing" for name in ("Color", "Contrast", "Brightness", "Sharpness"))


def _operations(operations: Sequence[Operation], choices: Sequence[int], drawn: Generators) -> Parameters:
    rows, done = [], []
    for choice in choices:
        row = None if choice < 0 else _operation(operations[choice], drawn)
        done.append(-1 if row is None else choice)
        rows.append(row or (0.0, 1.0, 0.0, 0.0))
    levels, signs, filters, radii = map(list, zip(*rows, strict=True))
    return {"choices": done, "levels": levels, "signs": signs, "filters": filters, "radii": radii}


def _timms_rand_augment(step: Any, augmentation: Any) -> DrawsParameters:
    operations, count = augmentation.operations, len(augmentation.operations)

    def draw(drawn: Generators, size: Size) -> Parameters:
        replace = step.choice_weights is None
        choices = drawn.numpy.choice(count, step.num_layers, replace=replace, p=step.choice_weights)
        return _operations(operations, choices.tolist(), drawn)

    return draw


def _timms_auto_augment(step: Any, augmentation: TimmsAutoAugment) -> DrawsParameters:
    parts = augmentation.parts

    def draw(drawn: Generators, size: Size) -> Parameters:
        return _operations(augmentation.operations, parts[drawn.python.choice(range(len(parts)))], drawn)

    return draw


def _timms_erasing(step: Any, augmentation: Any) -> DrawsParameters:
    if augmentation.mode == "pixel":
        raise NotFusable("draws='torch' has it draw its noise in its own code")

    def draw(drawn: Generators, size: Size) -> Parameters:
        (height, width), python, boxes, values = size, drawn.python, [], []
        count = 0
        if not python.random() > step.probability:
            few, many = step.min_count, step.max_count
            count = few if few == many else python.randint(few, many)
        for _ in range(count):
            for _ in range(_TRIES):
                area = python.uniform(step.min_area, step.max_area) * (height * width) / count
                aspect_ratio = math.exp(python.uniform(*step.log_aspect_ratio))
                h, w = round(math.sqrt(area * aspect_ratio)), round(math.sqrt(area / aspect_ratio))
                if w < width and h < height:
                    top, left = python.randint(0, height - h), python.randint(0, width - w)
                    boxes.append([left, top, left + w, top + h])
                    values.append(drawn.normals(3) if augmentation.mode == "rand" else [0.0] * 3)
                    break
        missing = step.max_count - len(boxes)
        boxes, values = boxes + [[0, 0, 0, 0]] * missing, values + [[0.0] * 3] * missing
        return {"boxes": boxes, "values": values, "noise": [[]] * step.max_count}

    return draw


TIMMS_PARAMETERS: dict[str, Callable[[Any, Any], DrawsParameters]] = {
    "AutoAugment": _timms_auto_augment,
    "RandAugment": _timms_rand_augment,
    "RandomErasing": _timms_erasing,
}
