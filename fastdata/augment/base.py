"""Random augmentations: what is drawn for each sample, and how it is done.

The classes carry torchvision's names, arguments and distributions.  What is done to an image is a row of a table of
effects (`Augmentation.effects`).  On the host the native core does each image, with Pillow's arithmetic; whole batches
are augmented by the operations of batch_effects.py, with the arithmetic of torchvision's v2 operators on uint8 tensors.
What is drawn for a sample is a function of (seed, epoch, sample, occurrence) and the step's place in the transform, so
it depends neither on the device nor on the backend nor on the place in the batch.

Parameters are drawn on the host and stay there as NumPy arrays; which samples an operation concerns is therefore known
without asking the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastdata import native
from fastdata.augment import batch_effects
from fastdata.augment.batch_program import BatchProgram, Operation
from fastdata.errors import OptionError
from fastdata.tables import EffectTable, Format
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

__all__ = [
    "Augmentation",
    "Ints",
    "Parameters",
    "Printable",
    "check_probability",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Parameters: TypeAlias = Mapping[str, npt.NDArray[Any]]  # each of N rows


class Printable:
    """Prints as it is made."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in vars(self).items())})"


class Augmentation(Printable, ABC):
    """Draws parameters for samples, and applies them to a batch.

    Called on one uint8 image (3, H, W) or a PIL image, it augments that, drawn from torch's generator; tensors with
    torchvision's arithmetic for tensors, PIL images with Pillow's where the native core has it.
    """

    @abstractmethod
    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """Parameters of N samples whose images are (height, width)."""

    def batch_operations(self, parameters: Parameters, size: tuple[int, int]) -> list[Operation]:
        """Operations that do it to a batch of N images of (height, width), on any device; see `on_batches`."""
        return batch_effects.operations(self.effects(parameters, size), size)

    def apply(self, images: torch.Tensor, parameters: Parameters) -> torch.Tensor:
        """The augmented batch (N, 3, H, W), on the images' device; the images themselves are not changed."""
        height, width = images.shape[-2:]
        return BatchProgram(self.batch_operations(parameters, (height, width))).run(images)

    @property
    def on_batches(self) -> bool:
        """True if `batch_operations` does it."""
        return self.on_host

    @property
    def is_random(self) -> bool:
        """False if it does the same to all images, and draws no random numbers."""
        return True

    @property
    def changes_size(self) -> bool:
        """True if images become of another size, each of its own; such have a method `new_size`."""
        return False

    @property
    def label(self) -> str:
        """Display name: the name in torchvision or timm."""
        return type(self).__name__.removeprefix("Timms")

    @property
    def on_host(self) -> bool:
        """True if the native core does it on the host, with Pillow's arithmetic; see `effects`."""
        return type(self).effects is not Augmentation.effects

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """Effects that the native core applies to N images of (height, width), in order: (N, any number)."""
        raise NotImplementedError(f"{type(self).__name__} is not done by the native core")

    def __call__(self, image: Any) -> Any:
        """Augments one image; see the class."""
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        zero = np.zeros(1, np.int64)
        draws = Draws(key=Key(seed=seed, epoch=0), indices=zero, occurrences=zero)
        if isinstance(image, torch.Tensor):
            height, width = image.shape[-2:]
            return self.apply(image.unsqueeze(0), self.draw(draws, (height, width)))[0]
        from fastdata.loaders import pillow

        pixels = np.array(image.convert("RGB"))
        height, width = pixels.shape[:2]
        parameters, core = self.draw(draws, (height, width)), native.available()
        if core is not None and self.on_host:
            core.convert(pixels, pixels.ctypes.data, Format(), self.effects(parameters, (height, width)))
            return pillow.from_pixels(pixels)
        batch = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
        return pillow.from_pixels(self.apply(batch, parameters)[0].permute(1, 2, 0).contiguous().numpy())


def check_probability(p: float) -> float:
    """Returns the probability if it is one; else raises OptionError."""
    if not 0 <= p <= 1:
        raise OptionError(f"p={p} is not a probability between 0 and 1")
    return float(p)
