"""Parts of the samples of a dataset in memory: an image, labels, and the form that holds them."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

__all__ = [
    "LISTS",
    "PILLOWS",
    "ArrayImage",
    "Attribute",
    "Form",
    "Kept",
    "Label",
    "Place",
    "Row",
    "SampleCode",
    "Trace",
    "is_list_of_images",
    "is_plain_tensor",
    "may_be_indices",
]

PILLOWS = "Pillow's"
LISTS = (list, tuple, range, np.ndarray, torch.Tensor)  # others may give out rows in their own way


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
class Kept(Attribute):
    """An attribute as it was: later changes of the dataset do not affect it."""

    was: Any = None

    @property
    def value(self) -> Any:
        """Its value as it was."""
        return self.was


@dataclass(frozen=True)
class Place:
    """The index of a sample, looked up in lists of indices.

    Attributes:
        lists: the lists, in the order in which indices are looked up, and for each if `int` is called on what it gives.
    """

    lists: tuple[tuple[Sequence[Any], bool], ...] = ()

    def through(self, indices: Sequence[Any], *, as_int: bool = False) -> Place:
        """Returns the place that is found at this one in another list."""
        return Place((*self.lists, (indices, as_int)))

    def of(self, indices: Sequence[Any]) -> list[Any]:
        """The places of samples, as the lists give them."""
        found = list(indices)
        for each, as_int in self.lists:
            found = [each[index] for index in found]
            if as_int:
                found = list(map(int, found))
        return found

    def rows_of(self, indices: Sequence[Any]) -> list[int]:
        """The places of samples, as numbers of rows.

        Raises:
            TypeError: one is no integer.
        """
        found = self.of(indices)
        if any(type(each) is bool for each in found):
            raise TypeError("an index is a bool, not an integer")
        return list(map(operator.index, found))


@dataclass(frozen=True)
class Row:
    """The row of an attribute at a place.

    Attributes:
        of: the attribute.
        at: the place.
        as_int: `int` is called on it.
        as_array: it is a tensor's row as a NumPy array.
        moved: it is moved from (C, H, W) to (H, W, C).
    """

    of: Attribute
    at: Place
    as_int: bool = False
    as_array: bool = False
    moved: bool = False

    def values(self, indices: Sequence[Any]) -> list[Any]:
        """The rows of samples, of a list or a one-dimensional array."""
        column, rows = self.of.value, self.at.rows_of(indices)
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
    """A value beside the image: a row or an index, perhaps transformed or made a tensor.

    Attributes:
        value: the row or the index.
        arithmetic: operators and the integers on their right, in turn, before all else.
        transform: is called on it; None for nothing.
        is_tensor: it is given to `torch.tensor` at last.
    """

    value: Value
    arithmetic: tuple[tuple[Callable[[Any, int], Any], int], ...] = ()
    transform: Callable[[Any], Any] | None = None
    is_tensor: bool = False

    def values(self, indices: Sequence[int]) -> list[Any]:
        """The labels of samples."""
        value = self.value
        found = value.values(indices) if isinstance(value, Row) else value.of(indices)
        for compute, number in self.arithmetic:
            found = [compute(each, number) for each in found]
        if self.transform is not None:
            found = list(map(self.transform, found))
        if self.is_tensor and any(type(each) is not int for each in found):  # integers collate to what their tensors do
            found = [each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in found]
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

    def frozen(self) -> SampleCode:
        """Returns the same with the attributes as they are now; lists are copied, arrays of images are not."""
        row, images = self.image.row, self.image.row.of.value
        images = copy.copy(images) if type(images) is list else images
        image = replace(self.image, row=replace(row, of=_kept(row.of, images), at=_copied(row.at)))
        return replace(self, image=image, labels=tuple(map(_frozen, self.labels)))


def _frozen(label: Label) -> Label:
    value = label.value
    if isinstance(value, Place):
        return replace(label, value=_copied(value))
    return replace(label, value=replace(value, of=_kept(value.of, copy.copy(value.of.value)), at=_copied(value.at)))


def _kept(attribute: Attribute, value: Any) -> Kept:
    return Kept(attribute.owner, attribute.name, value)


def _copied(place: Place) -> Place:
    return Place(tuple((copy.copy(each), as_int) for each, as_int in place.lists))


class Trace:
    """The lookups and calls in the code of one dataset, and of those inside of it: all must be in the sample.

    What is looked up or called for nothing may raise an error, draw random numbers or count.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._rows: list[tuple[Attribute, Place]] = []
        self._calls = 0

    def note_row(self, of: Attribute, at: Place) -> None:
        """Notes that a row was looked up."""
        self._rows.append((of, at))

    def note_call(self) -> None:
        """Notes that a transform was called."""
        self._calls += 1

    def is_all_in(self, code: SampleCode) -> bool:
        """True if a sample holds every row, and the result of every call."""
        transforms = [label.transform for label in code.labels]
        transforms.append(None if code.image.transform is None else code.image.transform.value)
        is_called = self._calls == sum(each is not None for each in transforms)
        return is_called and all(self._is_in(code, *row) for row in self._rows)

    def _is_in(self, code: SampleCode, of: Attribute, at: Place) -> bool:
        """True if a sample holds a row, was found by it, or the row is there wherever the image is."""
        values = [code.image.row, *(label.value for label in code.labels)]
        if any(isinstance(value, Row) and of == value.of and at == value.at for value in values):
            return True
        if any(_leads_through(value.at if isinstance(value, Row) else value, of, at) for value in values):
            return True
        is_as_long = type(of.value) in LISTS and len(of.value) >= len(code.image.row.of.value)
        return is_as_long and at == code.image.row.at


def _leads_through(place: Place, of: Attribute, at: Place) -> bool:
    """True if a place is found by looking up an attribute's row at another place."""
    here, before = len(at.lists), place.lists[: len(at.lists)]
    return before == at.lists and len(place.lists) > here and place.lists[here][0] is of.value


def is_list_of_images(value: Any) -> bool:
    """True for a list that begins with an image of Pillow's that is no opened file, in RGB."""
    pillow = sys.modules.get("PIL.Image")
    first: Any = value[0] if type(value) in (list, tuple) and value else None
    return pillow is not None and type(first) is pillow.Image and first.mode == "RGB"


def may_be_indices(value: Any) -> bool:
    """True for what gives an integer at each place, or will be asked for that."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    if isinstance(value, torch.Tensor):
        return (
            is_plain_tensor(value) and value.ndim == 1 and not (value.is_floating_point() or value.dtype is torch.bool)
        )
    return True


def is_plain_tensor(value: Any) -> bool:
    """True for a tensor in host memory that gives out rows as NumPy's arrays."""
    return type(value) is torch.Tensor and value.device.type == "cpu" and not value.requires_grad
