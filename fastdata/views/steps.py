"""What a plan needs of random steps behind its geometry; the augmentations of fastdata/augment are such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt
import torch

from fastdata.native import EffectTable
from fastdata.views.streams import Draws

__all__ = ["BatchStep", "EraseStep", "HostStep", "Size", "SizeStep"]

Size: TypeAlias = tuple[int, int]  # (height, width) in pixels, as torchvision orders them


class BatchStep(Protocol):
    """A random step on whole batches of decoded images; `fastdata.augment.base.Augmentation` is one."""

    @property
    def label(self) -> str:
        """What people call it."""
        ...

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """The parameters of N samples, N rows each."""
        ...

    def apply(self, images: torch.Tensor, parameters: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
        """The step done to images (N, 3, H, W)."""
        ...


class EraseStep(BatchStep, Protocol):
    """A random step on finished float images; `fastdata.augment.erasing.Eraser` is one."""

    def erased(self, parameters: Mapping[str, npt.NDArray[Any]]) -> list[list[Any]]:
        """What is filled in each of N images; each has a method `apply(image)`."""
        ...


class HostStep(Protocol):
    """A random step that the native core does; `fastdata.augment.base.Augmentation` is one."""

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """The parameters of N samples, N rows each."""
        ...

    def effects(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> EffectTable:
        """The same in the core's terms: (N, any number)."""
        ...


class SizeStep(HostStep, Protocol):
    """A random step that maps each image to one of another size; a rotation that shows all of it is one."""

    def new_size(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> Size:
        """(height, width) of one image after the step, with its parameters."""
        ...
