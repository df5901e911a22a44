"""A plan's geometry in the terms of the native core."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastdata.native import COp, Geometry, OpKind
from fastdata.views.philox import Key
from fastdata.views.plan import CenterCrop, Flip, Op, RandomCrop, RandomResizedCrop, Resize, Size

__all__ = ["geometry"]


def geometry(ops: Sequence[Op], key: Key) -> Geometry:
    """What the core needs to draw views as `fastdata.views.draw` does."""
    return Geometry([_op_to_c(op) for op in ops], key.words())


def _op_to_c(op: Op) -> COp:
    match op:
        case RandomResizedCrop():
            log_ratio = (math.log(op.ratio[0]), math.log(op.ratio[1]))
            return COp(
                OpKind.RANDOM_RESIZED_CROP, *_width_height(op.size), scale=op.scale, ratio=op.ratio, log_ratio=log_ratio
            )
        case Resize():
            return COp(OpKind.RESIZE, *_width_height(op.size), op.shorter or 0, op.longest or 0)
        case CenterCrop():
            return COp(OpKind.CENTER_CROP, *_width_height(op.size))
        case RandomCrop():
            size = _width_height(op.size)
            return COp(OpKind.RANDOM_CROP, *size, pad_if_needed=op.pad_if_needed, padding=op.padding)
        case Flip():
            return COp(OpKind.FLIP_HORIZONTAL if op.axis == "horizontal" else OpKind.FLIP_VERTICAL, p=op.p)


def _width_height(size: Size | None) -> tuple[int, int]:
    """A size in the order of the C interface; zeros for none."""
    return (0, 0) if size is None else (size[1], size[0])
