"""The plan of a transform while it is read, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fastdata.augment import single as augment
from fastdata.augment.base import Augmentation
from fastdata.views.plan import CenterCrop, Flip, Normalisation, Op, Output, RandomCrop, RandomResizedCrop, Resize

__all__ = ["Draft", "NotFusable"]


class NotFusable(Exception):
    """Ends the fused prefix; its text goes into `explain()`."""


@dataclass
class Draft:
    """The prefix built so far."""

    ops: list[Op] = field(default_factory=list)
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    augmentations: list[Augmentation] = field(default_factory=list)
    float_augmentations: list[Augmentation] = field(default_factory=list)
    tensor_class: type[torch.Tensor] | None = None

    def add_augmentation(self, augmentation: Augmentation) -> None:
        """A step on whole batches."""
        if self.normalisation is None:
            self.augmentations.append(augmentation)
        elif isinstance(augmentation, augment.RandomErasing):
            self.float_augmentations.append(augmentation)
        else:
            raise NotFusable("the image is already float; put it before ToTensor, then it is done on batches")

    def add_geometry(self, op: Op) -> None:
        """A crop, resize or flip.

        Raises:
            NotFusable: it would break the shape that views/plan.py describes.
        """
        if self.augmentations or self.float_augmentations:
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


def _reaches_outside(op: Op, before: Op) -> bool:
    """True for a crop that pads the result of another crop, beyond which a view would show the image."""
    if not isinstance(before, CenterCrop | RandomCrop):
        return False
    if isinstance(op, CenterCrop):
        return op.size[0] > before.size[0] or op.size[1] > before.size[1]
    return isinstance(op, RandomCrop) and op.pads
