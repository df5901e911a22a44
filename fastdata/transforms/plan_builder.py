"""The plan of a transform while it is read, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.augment.base import Augmentation
from fastdata.augment.color import RandomEqualize, RandomGrayscale
from fastdata.augment.erasing import Eraser
from fastdata.augment.tensors import OfTensors, core_agrees_on_tensors, refusal
from fastdata.errors import OptionError
from fastdata.loaders.resample import has_tensors_bits
from fastdata.native import load
from fastdata.tables import Format
from fastdata.views.philox import Key
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Normalisation,
    Op,
    Output,
    Pad,
    Plan,
    RandomCrop,
    RandomCropOrPad,
    RandomResizedCrop,
    Resizing,
    Size,
    Stage,
)
from fastdata.views.resampling import BLACK, Interpolation, Padding
from fastdata.views.streams import Draws

__all__ = ["Draft", "NotFusable"]


Crop: TypeAlias = CenterCrop | RandomCrop | RandomCropOrPad | Pad

_ANY_SIZE = 48, 64  # on which effects are tried that will see many sizes
_ANY_LARGE_SIZE = 2048, 2048
_TRIALS = 256
_TRIED = Draws(key=Key(seed=0, epoch=0), indices=np.arange(_TRIALS), occurrences=np.zeros(_TRIALS, np.int64))


class NotFusable(Exception):
    """Ends the fused prefix; its text goes into `explain()`."""


@dataclass
class Draft:
    """The prefix built so far.

    Attributes:
        may_stage: further stages may begin.
        stages: stages before the one under construction.
        turn: the augmentation that begins this stage and changes sizes, if any.
        ops: geometry of this stage.
        effects: augmentations on the host after that geometry.
        is_slice: an image's tensor is a part of a larger one.
        is_of_any_layout: the order of its memory depends on what was drawn.
        output, normalisation, augmentations, float_augmentations, tensor_class, channels_last, following: see `Plan`.
    """

    may_stage: bool = True
    stages: list[Stage] = field(default_factory=list)
    turn: Any = None
    ops: list[Op] = field(default_factory=list)
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    effects: list[Augmentation] = field(default_factory=list)
    augmentations: list[Augmentation] = field(default_factory=list)
    float_augmentations: list[Eraser] = field(default_factory=list)
    tensor_class: type[torch.Tensor] | None = None
    channels_last: bool = False
    is_slice: bool = False
    is_of_any_layout: bool = False
    following: Any = None

    def add_augmentation(self, augmentation: Augmentation) -> None:
        """A step on whole batches."""
        if not augmentation.on_batches:
            raise NotFusable("it has no form for whole batches; augment_on='host' does it")
        if self.normalisation is None:
            self.augmentations.append(augmentation)
        elif isinstance(augmentation, Eraser):
            self.float_augmentations.append(augmentation)
        else:
            raise NotFusable("the image is already float; put it before ToTensor, then it is done on batches")

    def add_effect(self, augmentation: Augmentation) -> None:
        """A step that the native core does to the pixels of each image, or RandomErasing on float images."""
        size = self.plan().size
        if isinstance(augmentation, Eraser) and self.normalisation is not None:
            if size is None:
                raise NotFusable("images differ in size where it stands; put a crop before it")
            self.float_augmentations.append(augmentation)
            return
        if self.output is Output.UINT8:
            if isinstance(augmentation, Eraser):
                raise NotFusable("it erases from a uint8 tensor; put it behind the conversion to float")
            if not core_agrees_on_tensors():
                raise NotFusable("it works on a tensor, and the native core does not do that with torch's bits")
            if (problem := refusal(augmentation, size if size is not None else _ANY_LARGE_SIZE)) is not None:
                raise NotFusable(problem)
            grey_or_equal = isinstance(augmentation, RandomGrayscale | RandomEqualize)  # which make contiguous tensors
            self.channels_last &= not (self.is_slice or grey_or_equal)
            self.is_slice, self.is_of_any_layout = False, not grey_or_equal
            augmentation = OfTensors(augmentation)
        elif self.output is not Output.PIL:
            raise NotFusable("it works on an array or a float image; put it before that")
        if not augmentation.on_host:
            raise NotFusable("the native core does not do it")
        any_size = _ANY_SIZE if self.output is Output.PIL else _ANY_LARGE_SIZE
        if (problem := _refusal(_Printed(augmentation), size if size is not None else any_size)) is not None:
            raise NotFusable(problem)
        if augmentation.changes_size:
            if not self.may_stage:
                raise NotFusable("it gives images of many sizes")
            self._begin_stage(augmentation)
        else:
            self.effects.append(augmentation)

    def plan(self) -> Plan:
        """Plan of the steps read so far."""
        first, *later = (*self.stages, self.stage)
        return Plan(
            ops=first.ops,
            effects=first.effects,
            later=tuple(later),
            output=self.output,
            normalisation=self.normalisation,
            augmentations=tuple(self.augmentations),
            float_augmentations=tuple(self.float_augmentations),
            tensor_class=self.tensor_class,
            channels_last=self.channels_last,
            following=self.following,
        )

    @property
    def stage(self) -> Stage:
        """The stage under construction."""
        return Stage(turn=self.turn, ops=tuple(self.ops), effects=tuple(self.effects))

    def _begin_stage(self, turn: Any = None) -> None:
        self.stages.append(self.stage)
        self.turn, self.ops, self.effects = turn, [], []

    def add_geometry(self, op: Op, *, on_tensors: bool = False) -> None:
        """A crop, padding, a resize or a flip.

        Args:
            op: the step.
            on_tensors: a uint8 tensor stays one while it is resized, antialiased.

        Raises:
            NotFusable: it would break the shape that views/plan.py describes.
        """
        if self.augmentations or self.float_augmentations:
            raise NotFusable("it comes after an augmentation; put crops, resizes and flips first")
        if self.output is Output.NUMPY:
            raise NotFusable("the image is already an array")
        if isinstance(op, Resizing) and self.output is not Output.PIL:
            op = self._for_tensors(op, on_tensors)
        pads = not isinstance(op, Resizing | Flip) and op.pads and (self._is_normalised or op.outside != BLACK)
        if pads and self.output is Output.FLOAT:
            raise NotFusable("it pads a float image; put it before the conversion to float")
        if (why := self._not_here(op)) is not None:
            if not self.may_stage or self.output is Output.FLOAT:
                raise NotFusable(why)
            self._begin_stage()
        self.ops.append(op)
        if self.output is Output.UINT8:
            self._note_layout(op)

    def _note_layout(self, op: Op) -> None:
        """Follows the order of a tensor's memory through a geometric step, as torchvision's v2 leaves it."""
        if isinstance(op, Resizing):
            self.channels_last &= not (self.is_slice or isinstance(op, RandomResizedCrop))
        elif not isinstance(op, Flip | CenterCrop):
            self.channels_last &= not op.pads
        self.is_slice = not isinstance(op, Resizing | Flip)

    def _not_here(self, op: Op) -> str | None:
        """Reason why the stage under construction cannot do a step; None if it can."""
        if self.effects:
            return "it comes after an augmentation; put crops, resizes and flips first"
        if isinstance(op, Flip):
            return None
        if isinstance(op, Resizing):
            if any(isinstance(o, Resizing) for o in self.ops):
                return "the image has already been resized"
            if any(not isinstance(o, Flip) and o.pads for o in self._crops()):
                return "it comes after a crop that pads, or may do so"
            return None
        if (isinstance(op, Pad) or op.pads) and any(_reaches_outside(op, before) for before in self._crops()):
            return "it pads what another crop has left"
        if not isinstance(op, Pad) and self._hides(op.size):
            return "behind so much padding it could lie outside of the image"
        return None

    def _hides(self, size: Size) -> bool:
        """True if pixels of this size may show nothing of the image, because of what was padded."""
        pads = [op.padding for op in self._crops() if isinstance(op, Pad)]
        left, top, right, bottom = (sum(sides) for sides in zip((0, 0, 0, 0), *pads, strict=True))
        return bool(max(left, right) >= size[1] or max(top, bottom) >= size[0])

    def _crops(self) -> list[Crop]:
        """Crops and padding since the resize."""
        resized = max((number for number, op in enumerate(self.ops) if isinstance(op, Resizing)), default=-1)
        return [op for op in self.ops[resized + 1 :] if not isinstance(op, Flip | Resizing)]

    @property
    def _is_normalised(self) -> bool:
        return self.normalisation is not None and self.normalisation.mean is not None

    def _for_tensors(self, op: Resizing, on_tensors: bool) -> Resizing:
        """A resize with torch's filters."""
        filters = tuple(_OF_TENSORS[each] for each in op.filters if each in _OF_TENSORS)
        if self.output is not Output.UINT8 or not on_tensors or len(filters) < len(op.filters):
            raise NotFusable("it resizes a tensor, which torchvision filters differently from a PIL image")
        if not has_tensors_bits():
            raise NotFusable("it resizes a tensor, and the native core is missing or differs from the installed torch")
        return replace(op, filters=filters)


_OF_TENSORS = {
    Interpolation.BILINEAR: Interpolation.TENSOR_BILINEAR,
    Interpolation.BICUBIC: Interpolation.TENSOR_BICUBIC,
}


class _Printed:
    """An augmentation, equal to every other that prints alike: all its arguments are in that."""

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation, self._text = augmentation, f"{augmentation!r} {type(augmentation).__module__}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Printed) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


@lru_cache(maxsize=256)
def _refusal(printed: _Printed, size: Size) -> str | None:
    """Draws some samples' effects and has the core look at them; why it refuses them, or None.

    Transforms are compiled several times in an epoch, and drawing takes milliseconds.
    """
    augmentation = printed.augmentation
    try:
        table = augmentation.effects(augmentation.draw(_TRIED, size), size)
        pixel = np.zeros((1, 1, 3), np.uint8)
        for row in range(len(table)):
            load().convert(pixel, pixel.ctypes.data, Format(), table[row : row + 1])
    except OptionError as error:
        return str(error)
    except (ValueError, RuntimeError):  # torch's errors of linear algebra among them
        return "the native core does not do it with these arguments"
    return None


def _reaches_outside(op: Crop, before: Crop) -> bool:
    """True for a crop that pads the result of another crop, beyond which a view would show the image."""
    if isinstance(before, Pad):
        return op.outside != before.outside or op.outside.padding is not Padding.CONSTANT
    if isinstance(op, CenterCrop | RandomCropOrPad):
        return op.size[0] > before.size[0] or op.size[1] > before.size[1]
    return op.pads
