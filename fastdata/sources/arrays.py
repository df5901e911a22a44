"""Datasets that keep their images as one array of pixels in memory: CIFAR, SVHN, MNIST and the like.

torchvision's classes are recognised by the name of their `__getitem__`, so torchvision is not imported; the user's by
its code (array_code.py).  Attributes are read when they are used, so later changes count.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.sources.array_code import ArrayLayout, read_layout
from fastdata.sources.protocol import NotASource

__all__ = ["ArraySource", "array_source"]

_KEEP_DATA = "keep the images in one array of uint8, as torchvision's datasets do"


# Layouts by the module and the qualified name of __getitem__.
_LAYOUTS = {
    ("torchvision.datasets.cifar", "CIFAR10.__getitem__"): ArrayLayout(axes="NHWC", targets="targets"),
    ("torchvision.datasets.mnist", "MNIST.__getitem__"): ArrayLayout(axes="NHW", targets="targets", as_int=True),
    ("torchvision.datasets.stl10", "STL10.__getitem__"): ArrayLayout(axes="NCHW", targets="labels", as_int=True),
    ("torchvision.datasets.svhn", "SVHN.__getitem__"): ArrayLayout(axes="NCHW", targets="labels", as_int=True),
    ("torchvision.datasets.usps", "USPS.__getitem__"): ArrayLayout(axes="NHW", targets="targets", as_int=True),
}


def array_source(dataset: Any) -> ArraySource | None:
    """Returns the source of a dataset whose images are one array; None for all others.

    Raises:
        NotASource: the array does not hold uint8 images; the text says why.
    """
    getter = getattr(type(dataset), "__getitem__", None)
    if getattr(type(dataset), "__getitems__", None) is not None:
        return None
    layout = _LAYOUTS.get((getattr(getter, "__module__", ""), getattr(getter, "__qualname__", "")))
    if layout is None:
        layout = read_layout(dataset)
    if layout is None:
        return None
    source = ArraySource(dataset, layout)
    _check(source)
    return source


def _check(source: ArraySource) -> None:
    attribute = source.layout.data
    name = f"{type(source.dataset).__name__}.{attribute}"
    data: Any = getattr(source.dataset, attribute, None)
    if type(data) not in (np.ndarray, np.memmap, torch.Tensor):  # others may give out rows in their own way
        raise NotASource(f"{name} is no array but of type {type(data).__name__}", _KEEP_DATA)
    if isinstance(data, torch.Tensor) and (data.device.type != "cpu" or data.layout is not torch.strided):
        raise NotASource(f"{name} is a tensor on {data.device}, not one in host memory", _KEEP_DATA)
    if str(data.dtype).removeprefix("torch.") != "uint8":
        raise NotASource(f"{name} has dtype {data.dtype}, not uint8", _KEEP_DATA)
    axes = source.layout.axes
    wrong = data.ndim != len(axes) or ("C" in axes and data.shape[axes.index("C")] != 3)
    if wrong or 0 in data.shape:
        raise NotASource(f"{name} has shape {tuple(data.shape)}, not that of images ({', '.join(axes)})", _KEEP_DATA)


@dataclass(frozen=True)
class ArraySource:
    """A source whose images are in memory; see `fastdata.sources.protocol`.

    Attributes:
        dataset: torchvision's or the user's dataset.
        layout: names of the dataset's attributes.
        parts: indices of each Subset of it, from the innermost to the outermost.
    """

    dataset: Any
    layout: ArrayLayout
    parts: tuple[Sequence[int], ...] = ()

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The dataset's transform."""
        return None if self.layout.transform is None else getattr(self.dataset, self.layout.transform)

    @property
    def target_transform(self) -> Callable[[Any], Any] | None:
        """The dataset's target transform."""
        name = self.layout.target_transform
        return None if name is None else getattr(self.dataset, name)

    @property
    def images(self) -> npt.NDArray[np.uint8]:
        """A view of all of the dataset's images: uint8, (images, H, W, C), 3 channels or 1."""
        data = getattr(self.dataset, self.layout.data)
        array: npt.NDArray[np.uint8] = data.detach().numpy() if isinstance(data, torch.Tensor) else data
        if self.layout.axes == "NHW":
            return array[..., None]
        return array.transpose(0, 2, 3, 1) if self.layout.axes == "NCHW" else array

    @property
    def channels(self) -> int:
        """Number of channels of every image: 3, or 1 for grey."""
        return int(self.images.shape[3])

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of every image."""
        height, width = self.images.shape[1:3]
        return height, width

    def part(self, indices: Sequence[int]) -> ArraySource:
        """Returns the source of the samples at given indices."""
        return ArraySource(self.dataset, self.layout, (*self.parts, indices))

    def __len__(self) -> int:
        return len(self.parts[-1] if self.parts else self.dataset)

    def rows(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """int64, (N,): array row of each sample; negative indices count from the end, others are not checked."""
        for part in reversed(self.parts):
            indices = [operator.index(part[index]) for index in indices]
        rows = np.array(indices, np.int64)
        return np.where(rows < 0, rows + len(self.images), rows)

    def _row(self, index: int) -> int:
        for part in reversed(self.parts):
            index = operator.index(part[index])
        return index

    def read_encoded(self, index: int) -> bytes:
        """Returns an image in NumPy's file format, (H, W, 3)."""
        pixels = self.images[self._row(index)]
        buffer = io.BytesIO()
        np.save(buffer, np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))))
        return buffer.getvalue()

    def read_target(self, index: int) -> Any:
        """Returns the target, after target_transform."""
        target = self._plain_targets([self._row(index)])[0]
        transform = self.target_transform
        return target if transform is None else transform(target)

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        """Returns the targets of many samples, after target_transform."""
        targets = self._plain_targets([self._row(index) for index in indices])
        transform = self.target_transform
        return targets if transform is None else [transform(target) for target in targets]

    def _plain_targets(self, rows: Sequence[int]) -> list[Any]:
        """Returns the targets before target_transform."""
        if self.layout.targets is None:
            return list(rows)
        targets = getattr(self.dataset, self.layout.targets)
        if targets is None:  # STL10's unlabelled images
            return [None] * len(rows)
        if not self.layout.as_int:
            return [targets[row] for row in rows]
        if isinstance(targets, np.ndarray | torch.Tensor) and targets.ndim == 1:
            return [int(target) for target in targets[list(rows)].tolist()]
        return [int(targets[row]) for row in rows]

    def location(self, index: int) -> str:
        """Returns the class and the row in its array, for messages."""
        return f"{type(self.dataset).__name__}[{self._row(index)}]"
