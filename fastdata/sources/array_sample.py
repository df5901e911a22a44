"""What the samples of a dataset in memory are made of: an image, labels, and the form that holds them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = ["PILLOWS", "ArrayImage", "Attribute", "Form", "Label", "Place", "Row", "SampleCode"]

PILLOWS = "Pillow's"


@dataclass(frozen=True)
class Attribute:
    """An attribute of a dataset."""

    owner: Any
    name: str

    @property
    def value(self) -> Any:
        """Its value as it is now."""
        return getattr(self.owner, self.name)


@dataclass(frozen=True)
class Place:
    """The index of a sample, looked up in lists of indices.

    Attributes:
        lists: the lists, in the order in which indices are looked up.
    """

    lists: tuple[Sequence[int], ...] = ()

    def through(self, indices: Sequence[int]) -> Place:
        """Returns the place that is found at this one in another list."""
        return Place((*self.lists, indices))

    def of(self, indices: Sequence[int]) -> list[int]:
        """The places of samples."""
        found = list(indices)
        for each in self.lists:
            found = [operator.index(each[index]) for index in found]
        return found


@dataclass(frozen=True)
class Row:
    """The row of an attribute at a place."""

    of: Attribute
    at: Place
    as_int: bool = False
    moved: bool = False  # from (C, H, W) to (H, W, C)

    def values(self, indices: Sequence[int]) -> list[Any]:
        """The rows of samples, of a list or a one-dimensional array."""
        column, rows = self.of.value, self.at.of(indices)
        if column is None:  # STL10's unlabelled images
            return [None] * len(rows)
        if not self.as_int:
            return [column[row] for row in rows]
        if isinstance(column, np.ndarray | torch.Tensor) and column.ndim == 1:
            return [int(value) for value in column[rows].tolist()]
        return [int(column[row]) for row in rows]


Value: TypeAlias = Row | Place


@dataclass(frozen=True)
class ArrayImage:
    """A row of an array, or of a list of PIL images, as a PIL image, with a transform called on it.

    Attributes:
        row: the row.
        axes: axes of the array, as letters: "NHWC", "NHW" (grey) or "NCHW"; or `PILLOWS` for a list of PIL images.
        transform: the transform; None if none is called.
    """

    row: Row
    axes: str
    transform: Attribute | None = None


@dataclass(frozen=True)
class Label:
    """What is returned beside the image: a row or an index, perhaps transformed or made a tensor.

    Attributes:
        value: the row or the index.
        transform: is called on it; None for nothing.
        is_tensor: it is given to `torch.tensor` at last.
    """

    value: Value
    transform: Callable[[Any], Any] | None = None
    is_tensor: bool = False

    def values(self, indices: Sequence[int]) -> list[Any]:
        """The labels of samples."""
        value = self.value
        found = value.values(indices) if isinstance(value, Row) else value.of(indices)
        if self.transform is not None:
            found = list(map(self.transform, found))
        if self.is_tensor:  # integers are collated to what their tensors are
            found = [each if type(each) in (int, torch.Tensor) else torch.tensor(each) for each in found]
        return found


@dataclass(frozen=True)
class Form:
    """The form of samples that are no pair of an image and a label.

    Attributes:
        image_at: place of the image among all parts.
        keys: the parts' names, if a sample is a dictionary; None for a tuple or a list.
    """

    image_at: int
    keys: tuple[Any, ...] | None

    def batch(self, images: Any, labels: Any) -> Any:
        """A batch as torch's `default_collate` makes it of such samples, from their images and collated labels."""
        parts = [*labels[: self.image_at], images, *labels[self.image_at :]]
        return parts if self.keys is None else dict(zip(self.keys, parts, strict=True))


@dataclass(frozen=True)
class SampleCode:
    """How a dataset makes a sample.

    Attributes:
        image: its image.
        labels: what is returned beside it.
        form: how they are put together; None for (image, label).
    """

    image: ArrayImage
    labels: tuple[Label, ...]
    form: Form | None = None
