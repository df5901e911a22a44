"""What happens to each image, as data.

A `Plan` is compiled from a transform (fastdata/transforms/compile.py).  What a backend can do while it decodes is
fused; the rest, `Plan.tail`, is called per sample on the very object torchvision would have handed it.

What is done while an image is decoded is always of one shape:

    crops in source pixels → at most one resize → crops → augmentations → tensor → float → normalise

with flips anywhere among the crops.  A step that would break this shape (a crop behind augmentations, a second resize,
padding before a resize) begins another `Stage` of the same shape, which works on the pixels of the one before; what no
stage can do (a resize of a float tensor) ends the prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import torch

from fastdata.views.steps import BatchStep, EraseStep, HostStep, Size, SizeStep

__all__ = [
    "BLACK",
    "CenterCrop",
    "Flip",
    "Interpolation",
    "Normalisation",
    "Op",
    "Output",
    "Outside",
    "Pad",
    "Padding",
    "Plan",
    "RandomCrop",
    "RandomCropOrPad",
    "RandomResizedCrop",
    "Resize",
    "ResizeKeepRatio",
    "Resizing",
    "Size",
    "Stage",
]


class Interpolation(Enum):
    """Pillow's resampling filters, with Pillow's numbers; and torch's antialiased ones for uint8 tensors."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5
    TENSOR_BILINEAR = 18
    TENSOR_BICUBIC = 19

    @property
    def is_tensors(self) -> bool:
        """True for torch's."""
        return self in (Interpolation.TENSOR_BILINEAR, Interpolation.TENSOR_BICUBIC)


class Padding(Enum):
    """What is seen beside an image: one colour, or the image again as NumPy's pad repeats it."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


class Outside(NamedTuple):
    """What is seen beside an image: red, green and blue count for one colour."""

    padding: Padding = Padding.CONSTANT
    red: int = 0
    green: int = 0
    blue: int = 0

    def numbers(self) -> tuple[int, int, int, int]:
        """As the native core has it."""
        return (self.padding.value, *self[1:])


BLACK = Outside()


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random window of the source, resized to `size` by one of some filters."""

    size: Size
    scale: tuple[float, float]
    ratio: tuple[float, float]
    filters: tuple[Interpolation, ...]


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Resize to `size`, or so that the sides are `shorter` and at most `longest`, by one of `filters`."""

    size: Size | None = None
    shorter: int | None = None
    longest: int | None = None
    filters: tuple[Interpolation, ...]

    def size_from(self, size: Size) -> Size:
        """What an image of some size is resized to.  Source: torchvision's _compute_resized_output_size."""
        if self.size is not None:
            return self.size
        assert self.shorter is not None
        short, long = sorted(size)
        new_short, new_long = self.shorter, int(self.shorter * long / short)
        if self.longest is not None and new_long > self.longest:
            new_short, new_long = int(self.longest * new_short / new_long), self.longest
        return (new_long, new_short) if size[1] <= size[0] else (new_short, new_long)


@dataclass(frozen=True, kw_only=True)
class ResizeKeepRatio:
    """timm's: resize so that the image fits `size`, by its longer and shorter side, and at random a bit differently.

    Attributes:
        size: pixels that are wanted.
        longest: from 0, the shorter side fits, to 1, the longer.
        scale: range of a factor, of the area that is seen or of the size.
        scale_chance: probability that there is one.
        scale_is_of_area: which of both.
        ratio: range of a change of width to height.
        ratio_chance: probability that there is one.
        filters: one of which resizes.
    """

    size: Size
    longest: float
    scale: tuple[float, float]
    scale_chance: float
    scale_is_of_area: bool
    ratio: tuple[float, float]
    ratio_chance: float
    filters: tuple[Interpolation, ...]


@dataclass(frozen=True, kw_only=True)
class _CropOrPad:
    """`size` pixels of any image: a crop of a larger one, a smaller one with something around it."""

    size: Size
    outside: Outside = BLACK

    @property
    def pads(self) -> bool:
        """True when the crop may reach outside of the image."""
        return True


class CenterCrop(_CropOrPad):
    """The middle `size` pixels; smaller images are padded."""


class RandomCropOrPad(_CropOrPad):
    """timm's: `size` pixels at a random place, or a smaller image at a random place of so many padded pixels."""


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """`size` pixels at a random place of the padded image.

    Attributes:
        size: of the crop.
        padding: columns and rows added at the left, top, right and bottom.
        pad_if_needed: where the padded image is still smaller than the crop, add what is missing on both sides.
        outside: what is added.
    """

    size: Size
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_if_needed: bool = False
    outside: Outside = BLACK

    @property
    def pads(self) -> bool:
        """True when the crop may reach outside of the image."""
        return self.pad_if_needed or any(self.padding)


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Columns and rows added at the left, top, right and bottom."""

    padding: tuple[int, int, int, int]
    outside: Outside = BLACK

    @property
    def pads(self) -> bool:
        """True when something is added."""
        return any(self.padding)

    def size_from(self, size: Size) -> Size:
        """Of a padded image."""
        left, top, right, bottom = self.padding
        return size[0] + top + bottom, size[1] + left + right


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Mirror with probability `p`, left to right ("horizontal") or top to bottom ("vertical")."""

    axis: str
    p: float


Resizing: TypeAlias = RandomResizedCrop | Resize | ResizeKeepRatio
Op: TypeAlias = Resizing | CenterCrop | RandomCrop | RandomCropOrPad | Pad | Flip


class Output(Enum):
    """What the fused prefix hands on for each sample."""

    PIL = "PIL image"
    UINT8 = "uint8 tensor (C, H, W)"
    NUMPY = "uint8 array (C, H, W)"
    FLOAT = "float tensor (C, H, W)"


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """The float arithmetic after decoding, operation by operation, so that every bit can be repeated.

    Attributes:
        dtype: float32, or what v2's ToDtype names: float16 or bfloat16.
        scaling: "divide" (ToTensor: x / 255), "multiply" (v2 ToDtype: x * (1 / 255)) or "none".
        mean: one for each channel or one for all, subtracted after scaling; None when there is no Normalize.
        std: likewise, divided by last; None when there is no Normalize.
    """

    dtype: torch.dtype = torch.float32
    scaling: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def suits(self, channels: int) -> bool:
        """True for images of so many channels; others would be broadcast, or refused."""
        return all(values is None or len(values) in (1, channels) for values in (self.mean, self.std))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Geometry that works on the pixels of an earlier stage, and augmentations of what it shows.

    Attributes:
        turn: what comes before the geometry, and changes sizes; never in the first stage.
        ops: geometry, in order.
        effects: what the native core does on the host after that.
    """

    turn: SizeStep | None = None
    ops: tuple[Op, ...] = ()
    effects: tuple[HostStep, ...] = ()

    @property
    def steps(self) -> tuple[HostStep, ...]:
        """Its random steps, but for the geometry, in order."""
        return (*(() if self.turn is None else (self.turn,)), *self.effects)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a backend and the pipeline do to each image.

    Attributes:
        ops: geometry, in order.
        effects: what the native core does on the host to the pixels of each image after that.
        later: further stages behind that.
        output: what the fused prefix yields.
        normalisation: float arithmetic, for `Output.FLOAT`.
        augmentations: steps for the whole batch after decoding, on uint8 images.
        float_augmentations: likewise, after the float arithmetic; on the host in the batch's own memory.
        tail: callables run per sample on what the prefix yields.
        tensor_class: class to view tensors as before the tail (torchvision's tv_tensors.Image), if any.
        fused: names of the transforms in the prefix.
        source_size: (height, width) of every image before the prefix, where it is the same for all.
    """

    ops: tuple[Op, ...] = ()
    effects: tuple[HostStep, ...] = ()
    later: tuple[Stage, ...] = ()
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    augmentations: tuple[BatchStep, ...] = ()
    float_augmentations: tuple[EraseStep, ...] = ()
    tail: tuple[Callable[[Any], Any], ...] = ()
    tensor_class: type[torch.Tensor] | None = None
    fused: tuple[str, ...] = ()
    source_size: Size | None = None

    @property
    def filters(self) -> tuple[Interpolation, ...]:
        """One of which is that of the one resize; bilinear where there is none."""
        for op in self.ops:
            if isinstance(op, Resizing):
                return op.filters
        return (Interpolation.BILINEAR,)

    @property
    def size(self) -> Size | None:
        """(height, width) of every image after the prefix, or None when it differs from image to image."""
        size = _size_after(self.ops, self.source_size)
        for stage in self.later:
            size = _size_after(stage.ops, size if stage.turn is None else None)
        return size

    @property
    def all_effects(self) -> tuple[HostStep, ...]:
        """Of all stages."""
        return (*self.effects, *(step for stage in self.later for step in stage.steps))

    @property
    def in_one_pass(self) -> bool:
        """True when all that is fused can be done while decoding, for images of one size in one call."""
        return not self.later and (not self.effects or _size_after(self.ops, self.source_size) is not None)

    @property
    def output_dtype(self) -> torch.dtype:
        """Of finished images, where they are tensors."""
        return self.normalisation.dtype if self.normalisation is not None else torch.uint8

    @property
    def augments(self) -> bool:
        """True when whole batches are augmented after decoding, or images while that is done."""
        return bool(self.all_effects or self.augmentations or self.float_augmentations)

    @property
    def draws(self) -> bool:
        """True when something of it is random."""
        ops = (*self.ops, *(op for stage in self.later for op in stage.ops))
        return self.augments or any(not isinstance(op, Resize | CenterCrop | Pad) or _is_choice(op) for op in ops)

    @property
    def batchable(self) -> bool:
        """True when decoded images go straight into one batch tensor."""
        return self.size is not None and self.output in (Output.UINT8, Output.FLOAT) and not self.tail


def _size_after(ops: tuple[Op, ...], size: Size | None) -> Size | None:
    """(height, width) of all images after some geometry; None where it is not the same for all, as before."""
    for op in ops:
        if isinstance(op, ResizeKeepRatio):
            size = None
        elif isinstance(op, Resize | Pad) and size is not None:
            size = op.size_from(size)
        elif not isinstance(op, Flip | Pad):
            size = op.size
    return size


def _is_choice(op: Op) -> bool:
    return isinstance(op, Resize) and len(op.filters) > 1
