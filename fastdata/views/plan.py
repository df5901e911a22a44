"""What happens to each image, as data.

A `Plan` is compiled from a transform (fastdata/transforms/compile.py).  What a backend can do while it decodes is
fused; the rest, `Plan.tail`, is called per sample on the very object torchvision would have handed it.

The fused prefix is always of one shape:

    crops in source pixels → at most one resize → crops → flips → tensor → float → normalise

A transform that would break this shape (a second resize, a flip before a resize, a resize after the image has become
a tensor, where torchvision uses another filter) ends the prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt
import torch

from fastdata.native import EffectTable
from fastdata.views.streams import Draws

__all__ = [
    "BatchStep",
    "CenterCrop",
    "Flip",
    "HostStep",
    "Interpolation",
    "Normalisation",
    "Op",
    "Output",
    "Plan",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Size",
]

Size: TypeAlias = tuple[int, int]  # (height, width) in pixels, as torchvision orders them


class Interpolation(Enum):
    """Pillow's resampling filters, with Pillow's numbers."""

    NEAREST = 0
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3
    BOX = 4
    HAMMING = 5


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A random window of the source, resized to `size`."""

    size: Size
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: Interpolation


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Resize to `size`, or so that the shorter side is `shorter` and the longer at most `longest`."""

    size: Size | None = None
    shorter: int | None = None
    longest: int | None = None
    interpolation: Interpolation

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
class CenterCrop:
    """The middle `size` pixels; smaller images are padded with black."""

    size: Size


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """`size` pixels at a random place of the image with black around it.

    Attributes:
        size: of the crop.
        padding: columns and rows of black added at the left, top, right and bottom.
        pad_if_needed: where the padded image is still smaller than the crop, add what is missing on both sides.
    """

    size: Size
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    pad_if_needed: bool = False

    @property
    def pads(self) -> bool:
        """True when the crop may reach outside of the image."""
        return self.pad_if_needed or any(self.padding)


@dataclass(frozen=True, kw_only=True)
class Flip:
    """Mirror with probability `p`, left to right ("horizontal") or top to bottom ("vertical")."""

    axis: str
    p: float


Op: TypeAlias = RandomResizedCrop | Resize | CenterCrop | RandomCrop | Flip


class Output(Enum):
    """What the fused prefix hands on for each sample."""

    PIL = "PIL image"
    UINT8 = "uint8 tensor (C, H, W)"
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


class BatchStep(Protocol):
    """A random step on whole batches of decoded images; `fastdata.augment.base.Augmentation` is one."""

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """The parameters of N samples, N rows each."""
        ...

    def apply(self, images: torch.Tensor, parameters: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
        """The step done to images (N, 3, H, W)."""
        ...


class HostStep(Protocol):
    """A random step that the native core does; `fastdata.augment.base.Augmentation` is one."""

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """The parameters of N samples, N rows each."""
        ...

    def effects(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> EffectTable:
        """The same in the core's terms: (N, any number)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a backend and the pipeline do to each image.

    Attributes:
        ops: geometry, in order.
        effects: what the native core does on the host to the pixels of each image after that.
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
    output: Output = Output.PIL
    normalisation: Normalisation | None = None
    augmentations: tuple[BatchStep, ...] = ()
    float_augmentations: tuple[BatchStep, ...] = ()
    tail: tuple[Callable[[Any], Any], ...] = ()
    tensor_class: type[torch.Tensor] | None = None
    fused: tuple[str, ...] = ()
    source_size: Size | None = None

    @property
    def interpolation(self) -> Interpolation:
        """The filter of the one resize, bilinear where there is none."""
        for op in self.ops:
            if isinstance(op, RandomResizedCrop | Resize):
                return op.interpolation
        return Interpolation.BILINEAR

    @property
    def size(self) -> Size | None:
        """(height, width) of every image after the prefix, or None when it differs from image to image."""
        size = self.source_size
        for op in self.ops:
            if isinstance(op, Resize) and size is not None:
                size = op.size_from(size)
            elif not isinstance(op, Flip):
                size = op.size
        return size

    @property
    def output_dtype(self) -> torch.dtype:
        """Of finished images, where they are tensors."""
        return self.normalisation.dtype if self.normalisation is not None else torch.uint8

    @property
    def augments(self) -> bool:
        """True when whole batches are augmented after decoding, or images while that is done."""
        return bool(self.effects or self.augmentations or self.float_augmentations)

    @property
    def batchable(self) -> bool:
        """True when decoded images go straight into one batch tensor."""
        return self.size is not None and self.output is not Output.PIL and not self.tail
