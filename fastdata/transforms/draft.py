"""The plan of a transform while it is read, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from fastdata.augment import single as augment
from fastdata.augment.base import Augmentation
from fastdata.errors import OptionError
from fastdata.native import Format, load
from fastdata.views.philox import Key
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Normalisation,
    Op,
    Output,
    Plan,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    Size,
)
from fastdata.views.streams import Draws

__all__ = ["Draft", "NotFusable"]


_TRIALS = 256
_TRIED = Draws(key=Key(seed=0, epoch=0), indices=np.arange(_TRIALS), copies=np.zeros(_TRIALS, np.int64))


class NotFusable(Exception):
    """Ends the fused prefix; its text goes into `explain()`."""


@dataclass
class Draft:
    """The prefix built so far."""

    ops: list[Op] = field(default_factory=list)
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    effects: list[Augmentation] = field(default_factory=list)
    augmentations: list[Augmentation] = field(default_factory=list)
    float_augmentations: list[Augmentation] = field(default_factory=list)
    tensor_class: type[torch.Tensor] | None = None

    def add_augmentation(self, augmentation: Augmentation) -> None:
        """A step on whole batches."""
        if not augmentation.on_batches:
            raise NotFusable("it has no form for whole batches; augment_on='host' does it")
        if self.normalisation is None:
            self.augmentations.append(augmentation)
        elif isinstance(augmentation, augment.RandomErasing):
            self.float_augmentations.append(augmentation)
        else:
            raise NotFusable("the image is already float; put it before ToTensor, then it is done on batches")

    def add_effect(self, augmentation: Augmentation) -> None:
        """A step that the native core does to the pixels of each image, or RandomErasing on float images."""
        size = Plan(ops=tuple(self.ops)).size
        if size is None:
            raise NotFusable("images differ in size where it stands; put a crop before it")
        if isinstance(augmentation, augment.RandomErasing) and self.normalisation is not None:
            self.float_augmentations.append(augmentation)
            return
        if self.output is not Output.PIL:
            raise NotFusable("it works on a tensor, whose arithmetic is another than a PIL image's; put it before that")
        if not augmentation.on_host:
            raise NotFusable("the native core does not do it")
        if (problem := _refusal(_Printed(augmentation), size)) is not None:
            raise NotFusable(problem)
        self.effects.append(augmentation)

    def add_geometry(self, op: Op) -> None:
        """A crop, resize or flip.

        Raises:
            NotFusable: it would break the shape that views/plan.py describes.
        """
        if self.effects or self.augmentations or self.float_augmentations:
            raise NotFusable("it comes after an augmentation; put crops, resizes and flips first")
        resizes = isinstance(op, RandomResizedCrop | Resize)
        if resizes and self.output is not Output.PIL:
            raise NotFusable("it resizes a tensor, which torchvision filters differently from a PIL image")
        if resizes and any(isinstance(o, RandomResizedCrop | Resize) for o in self.ops):
            raise NotFusable("the image has already been resized")
        if resizes and any(isinstance(o, CenterCrop) for o in self.ops):
            raise NotFusable("it comes after a CenterCrop, which may have padded")
        if resizes and any(isinstance(o, RandomCrop) and o.pads for o in self.ops):
            raise NotFusable("it comes after a RandomCrop that pads")
        if self.ops and _reaches_outside(op, self.ops[-1]):
            raise NotFusable("it pads what another crop has left")
        if not isinstance(op, Flip) and any(isinstance(o, Flip) for o in self.ops):
            raise NotFusable("it comes after a flip")
        self.ops.append(op)


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
        load().convert(pixel, pixel.ctypes.data, Format(), table.reshape(1, -1))
    except OptionError as error:
        return str(error)
    except ValueError:
        return "the native core does not do it with these arguments"
    return None


def _reaches_outside(op: Op, before: Op) -> bool:
    """True for a crop that pads the result of another crop, beyond which a view would show the image."""
    if not isinstance(before, CenterCrop | RandomCrop):
        return False
    if isinstance(op, CenterCrop):
        return op.size[0] > before.size[0] or op.size[1] > before.size[1]
    return isinstance(op, RandomCrop) and op.pads
