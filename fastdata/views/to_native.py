"""Converts a plan's geometry to the native core's structs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fastdata.native import COp, Geometry, OpKind
from fastdata.views.philox import Key
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Op,
    Pad,
    RandomCrop,
    RandomCropOrPad,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Resizing,
    Size,
)

__all__ = ["geometry"]


def geometry(ops: Sequence[Op], key: Key) -> Geometry:
    """Converts geometric steps and a key to the core's struct, for views as `fastdata.views.draw` draws them."""
    return Geometry([_op_to_c(op) for op in ops], key.words())


def _op_to_c(op: Op) -> COp:
    match op:
        case RandomResizedCrop():
            log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))
            ranges = {"scale": op.scale, "ratio": op.ratio, "log_ratio": log_ratio}
            return COp(OpKind.RANDOM_RESIZED_CROP, *_width_height(op.size), **ranges, **_filters(op))
        case Resize():
            return COp(OpKind.RESIZE, *_width_height(op.size), op.shorter or 0, op.longest or 0, **_filters(op))
        case ResizeKeepRatio():
            return COp(
                OpKind.RESIZE_KEEP_RATIO,
                *_width_height(op.size),
                scale=op.scale,
                scale_is_of_area=op.scale_is_of_area,
                log_ratio=(math.log(op.ratio[0]), math.log(op.ratio[1])),
                p=op.longest,
                chances=(op.scale_chance, op.ratio_chance),
                **_filters(op),
            )
        case CenterCrop():
            return COp(OpKind.CENTER_CROP, *_width_height(op.size), outside=op.outside.numbers())
        case RandomCrop():
            padding = {"pad_if_needed": op.pad_if_needed, "padding": op.padding, "outside": op.outside.numbers()}
            return COp(OpKind.RANDOM_CROP, *_width_height(op.size), **padding)
        case RandomCropOrPad():
            return COp(OpKind.RANDOM_CROP_OR_PAD, *_width_height(op.size), outside=op.outside.numbers())
        case Pad():
            return COp(OpKind.PAD, padding=op.padding, outside=op.outside.numbers())
        case Flip():
            return COp(OpKind.FLIP_HORIZONTAL if op.axis == "horizontal" else OpKind.FLIP_VERTICAL, p=op.p)


def _filters(op: Resizing) -> dict[str, Any]:
    return {"filters": tuple(each.value for each in op.filters), "filter_count": len(op.filters)}


def _width_height(size: Size | None) -> tuple[int, int]:
    """Returns a size as (width, height), the order of the C interface; zeros for None."""
    return (0, 0) if size is None else (size[1], size[0])
