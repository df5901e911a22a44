"""Protocols of a plan's steps after its geometry, random ones for the most part; fastdata/augment has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import numpy.typing as npt

from fastdata.tables import EffectTable
from fastdata.views.streams import Draws

__all__ = ["BatchStep", "EraseStep", "HostStep", "Size", "SizeStep"]

Size: TypeAlias = tuple[int, int]  # (height, width) in pixels, as torchvision orders them


class BatchStep(Protocol):
    """A step, usually random, on whole batches of decoded images; `fastdata.augment.base.Augmentation` is one."""

    @property
    def label(self) -> str:
        """The display name."""
        ...

    @property
    def is_random(self) -> bool:
        """False if it does the same to all images, and draws no random numbers."""
        ...

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """Draws the parameters of N samples, N rows each."""
        ...

    def batch_operations(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> list[Any]:
        """Returns the operations (`fastdata.augment.batch_program.Operation`) that do it to a batch of N images."""
        ...


class EraseStep(BatchStep, Protocol):
    """A random step on finished float images; `fastdata.augment.erasing.Eraser` is one."""

    def erased(self, parameters: Mapping[str, npt.NDArray[Any]]) -> list[list[Any]]:
        """Returns the rectangles to fill in each of N images; each has a method `apply(image)`."""
        ...


class HostStep(Protocol):
    """A step, usually random, that the native core does on the host; `fastdata.augment.base.Augmentation` is one."""

    @property
    def is_random(self) -> bool:
        """False if it does the same to all images, and draws no random numbers."""
        ...

    def draw(self, draws: Draws, size: Size) -> Mapping[str, npt.NDArray[Any]]:
        """Draws the parameters of N samples, N rows each."""
        ...

    def effects(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> EffectTable:
        """Converts parameters to the core's effect table: (N, any number)."""
        ...


class SizeStep(HostStep, Protocol):
    """A random step that changes each image's size; a rotation that shows all of it is one."""

    def new_size(self, parameters: Mapping[str, npt.NDArray[Any]], size: Size) -> Size:
        """Returns (height, width) of one image after the step, with its parameters."""
        ...
