"""torchvision's transform names without torchvision, for folders of images.

    transform = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), Normalize(mean, std)])

DataLoader compiles them, and does augmentations on whole batches with `augment_on="device"`.  Called on a PIL image by
hand they do the same with Pillow.  Arguments, attributes and pixels are torchvision's, so either package's transforms
can be exchanged for the other's.  `MixUp` and `CutMix` are for whole batches, in the training loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastdata.augment.auto_augment import RandAugment, TrivialAugmentWide
from fastdata.augment.base import Printable
from fastdata.augment.color import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastdata.augment.container import RandomApply, RandomChoice, RandomOrder
from fastdata.augment.erasing import RandomErasing
from fastdata.augment.mix import CutMix, MixUp
from fastdata.errors import OptionError
from fastdata.loaders import pillow
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.resampling import Interpolation
from fastdata.views.view import view_of

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ConvertImageDtype",
    "CutMix",
    "GaussianBlur",
    "Grayscale",
    "Interpolation",
    "MixUp",
    "Normalize",
    "PILToTensor",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomOrder",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToTensor",
    "TrivialAugmentWide",
]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of RGB from 0 to 1


class Compose:
    """Calls transforms one after the other.

    Args:
        transforms: callables, each taking what the one before returned.
    """

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"


class _Geometry(Printable):
    """A transform that changes where pixels are; drawn and applied as a plan of its own."""

    def __call__(self, image: Image) -> Image:
        plan = _plan_of(self)
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        size, index = np.array([image.size], np.int64), np.zeros(1, np.int64)
        views = draw_views(plan.ops, size, index, key=Key(seed=seed, epoch=0))
        return pillow.apply_view(image, view_of(views, 0))


def _plan_of(transform: object) -> Plan:
    result = compile_transform(transform)
    if result.plan is None:
        raise OptionError(result.reason)
    return result.plan


class RandomResizedCrop(_Geometry):
    """A random window of `scale` of the area and `ratio` width to height, resized to `size`.

    Args:
        size: pixels, one number for a square or (height, width).
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width divided by height.
        interpolation: Pillow's filter.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        interpolation: Interpolation = Interpolation.BILINEAR,
    ) -> None:
        self.size, self.scale, self.ratio = _size_pair(size), scale, ratio
        self.interpolation = interpolation


class Resize(_Geometry):
    """Resizes to (height, width), or so that the shorter side is `size`.

    Args:
        size: pixels.
        interpolation: Pillow's filter, antialiased.
        max_size: limit for the longer side, with a single `size`.
    """

    def __init__(
        self,
        size: int | Sequence[int],
        interpolation: Interpolation = Interpolation.BILINEAR,
        max_size: int | None = None,
    ) -> None:
        _size_pair(size)
        if max_size is not None and (not isinstance(size, int) or max_size <= size):
            raise OptionError(f"max_size={max_size} needs a single size below it, got size={size}")
        self.size, self.interpolation, self.max_size = size, interpolation, max_size


class CenterCrop(_Geometry):
    """Crops the middle `size` pixels; smaller images are padded with black."""

    def __init__(self, size: int | Sequence[int]) -> None:
        self.size = _size_pair(size)


class RandomCrop(_Geometry):
    """`size` pixels at a random place of a larger image, or of one with black around it.

    Args:
        size: pixels, one number for a square or (height, width).
        padding: black pixels added before: on all sides, (left and right, top and bottom), or (left, top, right,
            bottom); less than `size`.
        pad_if_needed: if the image is still smaller than `size`, add what is missing on both sides.
    """

    def __init__(
        self, size: int | Sequence[int], padding: int | Sequence[int] | None = None, pad_if_needed: bool = False
    ) -> None:
        self.size, self.padding, self.pad_if_needed = _size_pair(size), padding, pad_if_needed
        _plan_of(self)  # refuses what cannot be done


class _Flip(_Geometry):
    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"p={p} is not a probability between 0 and 1")
        self.p = p


class RandomHorizontalFlip(_Flip):
    """Mirrors left to right with probability `p`."""


class RandomVerticalFlip(_Flip):
    """Mirrors top to bottom with probability `p`."""


class PILToTensor(Printable):
    """A PIL image as uint8, (C, H, W): one channel for a grey image, else three."""

    def __call__(self, image: Image) -> torch.Tensor:
        pixels = np.array(image if image.mode == "L" else image.convert("RGB"))
        return torch.from_numpy(pixels.reshape(image.height, image.width, -1)).permute(2, 0, 1)


class ToTensor(Printable):
    """A PIL image as float32, (C, H, W), 0 to 1."""

    def __call__(self, image: Image) -> torch.Tensor:
        return PILToTensor()(image).contiguous().to(torch.get_default_dtype()).div(255)


class ConvertImageDtype(Printable):
    """Converts uint8 to float32 from 0 to 1.

    Args:
        dtype: torch.float32.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        if dtype is not torch.float32:
            raise OptionError(f"dtype={dtype} is not torch.float32")
        self.dtype = dtype

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.to(self.dtype).div(255)


class Normalize(Printable):
    """(x - mean) / std for each channel of a float tensor (..., C, H, W).

    Args:
        mean: one value per channel.
        std: one value per channel, none of them 0.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or 0 in std:
            raise OptionError(f"mean={mean} and std={std} must be of one length, and std without a zero")
        self.mean, self.std = mean, std

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        mean, std = (torch.tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (self.mean, self.std))
        return image.sub(mean).div_(std)


def _size_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from one number or two.

    Raises:
        OptionError: anything else, or not positive.
    """
    pair = (size, size) if isinstance(size, int) else tuple(size) * (2 if len(size) == 1 else 1)
    if len(pair) != 2 or min(pair) < 1:
        raise OptionError(f"size={size!r}; expected a positive number of pixels, or (height, width)")
    return int(pair[0]), int(pair[1])
