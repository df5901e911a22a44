"""Datasets that keep their images in memory, as one array or as PIL images of one size: CIFAR, MNIST and the like.

How a dataset makes its samples is read from its code (array_code.py).  Attributes are read when they are used, so later
changes count.
"""

from __future__ import annotations

import io
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.sources.array_code import read_sample
from fastdata.sources.array_sample import PILLOWS, Attribute, Form, SampleCode
from fastdata.sources.protocol import NotASource

__all__ = ["ArraySource", "array_source", "look_again"]

_KEEP_DATA = "keep the images in one array of uint8, as torchvision's datasets do"


def array_source(dataset: Any) -> ArraySource | None:
    """Returns the source of a dataset whose images are one array or a list; None for all others.

    Raises:
        NotASource: these are no uint8 images of one size; the text says why.
    """
    code = read_sample(dataset)
    if code is None:
        return None
    if code.image.axes == PILLOWS:
        _check_list(code.image.row.of)
    else:
        _check(code)
    return ArraySource(dataset, code)


def _check(code: SampleCode) -> None:
    attribute, axes = code.image.row.of, code.image.axes
    name = f"{type(attribute.owner).__name__}.{attribute.name}"
    data: Any = getattr(attribute.owner, attribute.name, None)
    if type(data) not in (np.ndarray, np.memmap, torch.Tensor):  # others may give out rows in their own way
        raise NotASource(f"{name} is no array but of type {type(data).__name__}", _KEEP_DATA)
    if isinstance(data, torch.Tensor) and (data.device.type != "cpu" or data.layout is not torch.strided):
        raise NotASource(f"{name} is a tensor on {data.device}, not one in host memory", _KEEP_DATA)
    if str(data.dtype).removeprefix("torch.") != "uint8":
        raise NotASource(f"{name} has dtype {data.dtype}, not uint8", _KEEP_DATA)
    wrong = data.ndim != len(axes) or ("C" in axes and data.shape[axes.index("C")] != 3)
    if wrong or 0 in data.shape:
        raise NotASource(f"{name} has shape {tuple(data.shape)}, not that of images ({', '.join(axes)})", _KEEP_DATA)


_checked: weakref.WeakKeyDictionary[Any, tuple[str, int, int]] = weakref.WeakKeyDictionary()  # attributes of datasets


def look_again() -> None:
    """Has lists of images looked at wholly when they are recognised next, as for another epoch."""
    _checked.clear()


def _check_list(of: Attribute) -> None:
    """Looks at all of a list's images once; those of a batch are looked at again when they are used."""
    images, name = of.value, f"{type(of.owner).__name__}.{of.name}"
    state = of.name, id(images), len(images)
    try:
        if _checked.get(of.owner) == state:
            return
    except TypeError as error:
        raise NotASource(f"the images of {name} would be looked at for each batch: {error}", _KEEP_DATA) from error
    if not all(_is_like(image, images[0].size) for image in images):
        raise NotASource(
            f"{name} has images of many sizes, or others than RGB ones of class PIL.Image.Image", _KEEP_DATA
        )
    _checked[of.owner] = state


def _is_like(image: Any, size: tuple[int, int]) -> bool:
    return type(image) is sys.modules["PIL.Image"].Image and image.size == size and image.mode == "RGB"


@dataclass(frozen=True)
class ArraySource:
    """A source whose images are in memory; see `fastdata.sources.protocol`.

    Attributes:
        dataset: torchvision's or the user's dataset.
        code: how it makes a sample.
    """

    dataset: Any
    code: SampleCode

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The transform of its images."""
        transform = self.code.image.transform
        return None if transform is None else transform.value

    @property
    def target_transform(self) -> Callable[[Any], Any] | None:
        """A transform of its labels; None if they are left as they are."""
        return next((label.transform for label in self.code.labels if label.transform is not None), None)

    @property
    def form(self) -> Form | None:
        """The form of samples; None for (image, label)."""
        return self.code.form

    def frozen(self) -> ArraySource:
        """Returns it with the dataset's attributes as they are now; pixels are not copied."""
        return ArraySource(self.dataset, self.code.frozen())

    def holds(self, indices: Sequence[Any]) -> bool:
        """True if the images of samples are still alike, as listed ones need not be."""
        if self.code.image.axes != PILLOWS:
            return True
        size = self.image_size[::-1]
        return all(_is_like(image, size) for image in self.code.image.row.values(indices))

    def pixels(self, indices: Sequence[int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]] | None:
        """An array of images, uint8, (any, H, W, C), and the samples' rows in it; None if they are no longer alike."""
        if self.code.image.axes != PILLOWS:
            return self.images, self.rows(indices)
        if not self.holds(indices):
            return None
        images = self.code.image.row.values(indices)
        return np.stack([np.asarray(image) for image in images]), np.arange(len(images))

    @property
    def images(self) -> npt.NDArray[np.uint8]:
        """A view of all of the dataset's images: uint8, (images, H, W, C), 3 channels or 1; not for a list."""
        data, axes = self.code.image.row.of.value, self.code.image.axes
        array: npt.NDArray[np.uint8] = data.detach().numpy() if isinstance(data, torch.Tensor) else data
        if axes == "NHW":
            return array[..., None]
        return array.transpose(0, 2, 3, 1) if axes == "NCHW" else array

    @property
    def channels(self) -> int:
        """Number of channels of every image: 3, or 1 for grey."""
        return 3 if self.code.image.axes == PILLOWS else int(self.images.shape[3])

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of every image."""
        if self.code.image.axes == PILLOWS:
            width, height = self.code.image.row.of.value[0].size
            return height, width
        height, width = self.images.shape[1:3]
        return height, width

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """int64, (N,): array row of each sample; negative indices count from the end, others are not checked."""
        rows = np.array(self.code.image.row.at.rows_of(indices), np.int64)
        return np.where(rows < 0, rows + len(self.images), rows)

    def read_encoded(self, index: int) -> bytes:
        """Returns an image in NumPy's file format, (H, W, 3)."""
        if self.code.image.axes == PILLOWS:
            (image,) = self.code.image.row.values([index])
            if image.mode != "RGB":
                raise OSError(f"{self.location(index)} has become an image in mode {image.mode}, not RGB")
            pixels = np.asarray(image)
        else:
            (row,) = self.rows([index])
            pixels = self.images[row]
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))))
        return buffer.getvalue()

    def read_target(self, index: int) -> Any:
        """Returns what a sample holds beside its image: its label, or a tuple where `form` says so."""
        return self.read_targets([index])[0]

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        """Returns what many samples hold beside their images."""
        columns = [label.values(indices) for label in self.code.labels]
        return columns[0] if self.form is None else list(zip(*columns, strict=True))

    def location(self, index: int) -> str:
        """Returns the class and the row in its array, for messages."""
        row = self.code.image.row
        return f"{type(row.of.owner).__name__}[{row.at.of([index])[0]}]"
