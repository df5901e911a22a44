"""Plans: the steps that are done to each image, as data.

A `Plan` is compiled from a transform (fastdata/transforms/compile.py).  Steps that a backend can do while it decodes
are fused; the rest, `Plan.unfused`, is called per sample on the object that torchvision would have passed on.

The fused steps always have this order:

    crops in source pixels → at most one resize → crops → augmentations → tensor → float → normalise

with flips anywhere among the crops.  A step that would break this order (a crop behind augmentations, a second resize,
padding before a resize) begins another `Stage` of the same order, which works on the pixels of the one before.  A step
that no stage can do (a resize of a float tensor) ends the fused prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import torch

from fastdata.views.given import Following
from fastdata.views.resampling import BLACK, Interpolation, Outside
from fastdata.views.steps import BatchStep, EraseStep, HostStep, Size, SizeStep

__all__ = [
    "CenterCrop",
    "Flip",
    "Normalisation",
    "Op",
    "Output",
    "Pad",
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


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random window of the source, resized to `size`; the filter is drawn from `filters`."""

    size: Size
    scale: tuple[float, float]
    ratio: tuple[float, float]
    filters: tuple[Interpolation, ...]


@dataclass(frozen=True, kw_only=True)
class Resize:
    """A resize to `size`, or to sides of `shorter` and at most `longest` pixels; the filter is drawn from `filters`."""

    size: Size | None = None
    shorter: int | None = None
    longest: int | None = None
    filters: tuple[Interpolation, ...]

    def size_from(self, size: Size) -> Size:
        """Returns the size after the resize, (height, width).  Source: torchvision's _compute_resized_output_size."""
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
    """timm's ResizeKeepRatio: a resize that fits the image to `size`, with a random scale and aspect ratio.

    Attributes:
        size: (height, width) to fit the image to.
        longest: 0 to 1: 0 fits the relatively shorter side, 1 the longer one.
        scale: range of a random factor, of the area that is seen or of the size.
        scale_chance: probability that the factor is applied.
        scale_is_of_area: `scale` is a factor of the area; else of the size.
        ratio: range of a random factor of width to height.
        ratio_chance: probability that this factor is applied.
        filters: filters of the resize, of which one is drawn.
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
    """A crop of `size` pixels; a smaller image is padded."""

    size: Size
    outside: Outside = BLACK

    @property
    def pads(self) -> bool:
        """True when the crop may reach outside of the image."""
        return True


class CenterCrop(_CropOrPad):
    """A crop of the middle `size` pixels; smaller images are padded."""


class RandomCropOrPad(_CropOrPad):
    """timm's RandomCropOrPad: a crop at a random place; a smaller image is padded, at a random place."""


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A crop of `size` pixels at a random place of the padded image.

    Attributes:
        size: (height, width) of the crop.
        padding: columns and rows added at the left, top, right and bottom.
        pad_if_needed: add the missing pixels on both sides if the padded image is smaller than the crop.
        outside: fill of the added pixels.
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
    """Padding of columns and rows at the left, top, right and bottom."""

    padding: tuple[int, int, int, int]
    outside: Outside = BLACK

    @property
    def pads(self) -> bool:
        """True when the padding is not zero."""
        return any(self.padding)

    def size_from(self, size: Size) -> Size:
        """Returns (height, width) of the padded image."""
        left, top, right, bottom = self.padding
        return size[0] + top + bottom, size[1] + left + right


@dataclass(frozen=True, kw_only=True)
class Flip:
    """A mirroring with probability `p`, left to right ("horizontal") or top to bottom ("vertical")."""

    axis: str
    p: float


Resizing: TypeAlias = RandomResizedCrop | Resize | ResizeKeepRatio
Op: TypeAlias = Resizing | CenterCrop | RandomCrop | RandomCropOrPad | Pad | Flip


class Output(Enum):
    """The type that the fused prefix yields for each sample."""

    PIL = "PIL image"
    UINT8 = "uint8 tensor (C, H, W)"
    NUMPY = "uint8 array (C, H, W)"
    FLOAT = "float tensor (C, H, W)"


@dataclass(frozen=True, kw_only=True)
class Normalisation:
    """The float arithmetic after decoding, operation by operation, so that every bit can be repeated.

    Attributes:
        dtype: float32; float16 or bfloat16 if v2's ToDtype names it.
        scaling: "divide" (ToTensor: x / 255), "multiply" (v2 ToDtype: x * (1 / 255)) or "none".
        mean: one value per channel or one for all, subtracted after scaling; None when there is no Normalize.
        std: one value per channel or one for all, divided by last; None when there is no Normalize.
    """

    dtype: torch.dtype = torch.float32
    scaling: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def suits(self, channels: int) -> bool:
        """True for images of this number of channels; for others torch would broadcast, or raise."""
        return all(values is None or len(values) in (1, channels) for values in (self.mean, self.std))


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Geometry on the pixels of an earlier stage, followed by augmentations.

    Attributes:
        turn: a step before the geometry that changes sizes; None if there is none, as in the first stage.
        ops: geometric steps, in order.
        effects: steps that the native core does on the host after the geometry.
    """

    turn: SizeStep | None = None
    ops: tuple[Op, ...] = ()
    effects: tuple[HostStep, ...] = ()

    @property
    def steps(self) -> tuple[HostStep, ...]:
        """The stage's random steps except the geometry, in order."""
        return (*(() if self.turn is None else (self.turn,)), *self.effects)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps that a backend and the pipeline do to each image.

    Attributes:
        ops: geometric steps, in order.
        effects: steps on each image's pixels after the geometry, done by the native core on the host.
        later: further stages after that.
        output: the type that the fused prefix yields.
        normalisation: float arithmetic, for `Output.FLOAT`.
        augmentations: steps for the whole batch after decoding, on uint8 images.
        float_augmentations: steps after the float arithmetic; on the host in the batch's own memory.
        unfused: callables run per sample on the prefix's result.
        runs: these once more, in order: runs of known steps behind others, each with its plan, and single steps
            without one; empty where nobody asks for them.
        tensor_class: class to view tensors as before those (torchvision's tv_tensors.Image), if any.
        channels_last: in memory a tensor has the channels of a pixel side by side, as torchvision's PILToTensor leaves
            them; what is seen of it are its strides, in steps of the user's own.
        fused: names of the transforms in the prefix.
        source_size: (height, width) of every image before the prefix; None if it differs from image to image.
        following: draws what the transform's own code would draw; None draws by (seed, epoch, sample).
    """

    ops: tuple[Op, ...] = ()
    effects: tuple[HostStep, ...] = ()
    later: tuple[Stage, ...] = ()
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    augmentations: tuple[BatchStep, ...] = ()
    float_augmentations: tuple[EraseStep, ...] = ()
    unfused: tuple[Callable[[Any], Any], ...] = ()
    runs: tuple[tuple[tuple[Callable[[Any], Any], ...], Plan | None], ...] = ()
    tensor_class: type[torch.Tensor] | None = None
    channels_last: bool = False
    fused: tuple[str, ...] = ()
    source_size: Size | None = None
    following: Following | None = field(default=None, compare=False)

    @property
    def filters(self) -> tuple[Interpolation, ...]:
        """The filters from which the one resize draws; bilinear if there is no resize."""
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
    def behind(self) -> tuple[Callable[[Any], Any], ...]:
        """The steps that are fused behind others."""
        return tuple(step for steps, plan in self.runs if plan is not None for step in steps)

    @property
    def left(self) -> tuple[Callable[[Any], Any], ...]:
        """The steps that are called as they are."""
        return tuple(step for steps, plan in self.runs if plan is None for step in steps) if self.runs else self.unfused

    @property
    def saves_steps(self) -> bool:
        """True if it crops, resizes, flips or augments: conversions to tensors alone save little."""
        return bool(self.ops) or self.augments or any(plan.saves_steps for _, plan in self.runs if plan is not None)

    @property
    def all_effects(self) -> tuple[HostStep, ...]:
        """The host steps of all stages, in order."""
        return (*self.effects, *(step for stage in self.later for step in stage.steps))

    @property
    def in_one_pass(self) -> bool:
        """True when all fused steps can be done while decoding, for images of one size in one call."""
        return not self.later and (not self.effects or _size_after(self.ops, self.source_size) is not None)

    @property
    def output_dtype(self) -> torch.dtype:
        """The dtype of finished images that are tensors."""
        return self.normalisation.dtype if self.normalisation is not None else torch.uint8

    @property
    def augments(self) -> bool:
        """True when there are augmentations, of single images or of whole batches."""
        return bool(self.all_effects or self.augmentations or self.float_augmentations)

    @property
    def draws(self) -> bool:
        """True when a step is random."""
        ops = (*self.ops, *(op for stage in self.later for op in stage.ops))
        steps: tuple[HostStep | BatchStep, ...] = (*self.all_effects, *self.augmentations, *self.float_augmentations)
        return any(step.is_random for step in steps) or any(
            not isinstance(op, Resize | CenterCrop | Pad) or _is_choice(op) for op in ops
        )

    @property
    def batchable(self) -> bool:
        """True when decoded images go straight into one batch tensor."""
        return self.size is not None and self.output in (Output.UINT8, Output.FLOAT) and not self.unfused


def _size_after(ops: tuple[Op, ...], size: Size | None) -> Size | None:
    """Returns (height, width) of all images after geometric steps; None if it differs from image to image."""
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
