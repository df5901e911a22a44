"""Finds the source inside a dataset: torchvision's folders and arrays, subsets and concatenations of sources."""

from __future__ import annotations

import bisect
import copy
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import ConcatDataset, Subset

from fastdata.sources.arrays import ArraySource, array_source
from fastdata.sources.protocol import (
    FileRanges,
    ImageSource,
    NotASource,
    defines_with,
    file_ranges,
    location_of,
    read_targets,
)
from fastdata.sources.source_code import name_of_function
from fastdata.system.files import read_file, working_folder

__all__ = [
    "frozen",
    "has_file_ranges",
    "has_target_transform",
    "is_concatenation",
    "makes_samples",
    "recognise",
]


_DEFAULT_LOADER = "use the dataset's default loader"


def recognise(dataset: Any) -> ImageSource:
    """Finds the source inside a dataset.

    Args:
        dataset: any dataset.

    Returns:
        A source with the dataset's indices and transform.

    Raises:
        NotASource: the dataset has none; the text says why.
    """
    if type(dataset) is Subset:
        source = recognise(dataset.dataset)
        if not isinstance(source, ArraySource):
            return _SubsetSource([source], dataset.indices)
    if is_concatenation(dataset):
        return _ConcatSource([recognise(part) for part in dataset.datasets], dataset.cumulative_sizes)
    if all(hasattr(type(dataset), method) for method in ("read_encoded", "read_target", "__len__")):
        check = getattr(dataset, "check_source", None)
        if check is not None:
            check()
        return dataset  # type: ignore[no-any-return]
    if _is_torchvision_folder(dataset):
        return _TorchvisionFolder(dataset)
    if (arrays := array_source(dataset)) is not None:
        return arrays
    raise NotASource(f"{type(dataset).__name__} is not an image dataset that fastdata recognises")


def is_concatenation(dataset: Any) -> bool:
    """True for torch's ConcatDataset, and for classes of it that find samples as it does."""
    own = ("__getitem__", "__getitems__", "__len__")
    return isinstance(dataset, ConcatDataset) and all(
        getattr(type(dataset), name, None) is getattr(ConcatDataset, name, None) for name in own
    )


def has_file_ranges(source: ImageSource) -> bool:
    """True when every sample is a file, or a part of one, that can be read without the source."""
    # A subclass with its own read_encoded must also define file_range.
    return all(defines_with(leaf, "read_encoded", "file_range") for leaf in _leaves(source))


def has_target_transform(source: ImageSource) -> bool:
    """True when a target_transform is called for each sample."""
    owners = (leaf.folder if isinstance(leaf, _TorchvisionFolder) else leaf for leaf in _leaves(source))
    return any(getattr(owner, "target_transform", None) is not None for owner in owners)


def _leaves(source: ImageSource) -> Iterator[ImageSource]:
    """The sources inside of subsets and concatenations."""
    if not isinstance(source, _Composed):
        yield source
        return
    for part in source.parts:
        yield from _leaves(part)


def makes_samples(dataset: Any) -> bool:
    """True when the dataset's class, or that of its parts, has a `__getitem__` of its own."""
    if type(dataset) is Subset:
        return makes_samples(dataset.dataset)
    if is_concatenation(dataset):
        return all(map(makes_samples, dataset.datasets))
    getter = getattr(type(dataset), "__getitem__", None)
    return getter is not None and getter is not torch.utils.data.Dataset.__getitem__


def _is_torchvision_folder(dataset: Any) -> bool:
    # By name, so that torchvision is not imported; an overridden __getitem__ may return anything.
    getter = getattr(type(dataset), "__getitem__", None)
    if type(getter) is not FunctionType or hasattr(getter, "__wrapped__") or hasattr(dataset, "__getitems__"):
        return False
    if name_of_function(getter) != ("torchvision.datasets.folder", "DatasetFolder.__getitem__"):
        return False
    loader = dataset.loader
    if (loader.__module__, getattr(loader, "__name__", "")) not in (
        ("torchvision.datasets.folder", "default_loader"),
        ("torchvision.datasets.folder", "pil_loader"),
    ):
        raise NotASource(
            f"its loader {getattr(loader, '__name__', loader)!r} is not torchvision's default", _DEFAULT_LOADER
        )
    from torchvision import get_image_backend  # the dataset is torchvision's, so it is installed

    if get_image_backend() != "PIL":
        raise NotASource(
            f"torchvision's image backend is {get_image_backend()!r}, not 'PIL'",
            "call torchvision.set_image_backend('PIL')",
        )
    return True


def frozen(source: ImageSource) -> ImageSource:
    """Copies a source as it is now, as worker processes would: later changes in the training loop do not affect it.

    Lists of files and indices are copied, and relative paths start from the current working folder.
    Pixels in memory, shards and sources of the user's own classes are not copied.
    """
    if isinstance(source, ArraySource):
        return source.frozen()
    if isinstance(source, _SubsetSource):
        return _SubsetSource([frozen(source.parts[0])], copy.copy(source.indices))
    if isinstance(source, _ConcatSource):
        return _ConcatSource([frozen(part) for part in source.parts], list(source.ends))
    folder: Any = source.folder if isinstance(source, _TorchvisionFolder) else source
    if not isinstance(source, _TorchvisionFolder) and type(source).read_encoded is not _read_encoded_of_ours():
        return source
    transforms = {name: getattr(folder, name) for name in ("transform", "target_transform")}
    return _TorchvisionFolder(SimpleNamespace(samples=list(folder.samples), **transforms), working_folder())


def _read_encoded_of_ours() -> Any:
    """Returns `fastdata.ImageFolder.read_encoded` if that class is imported; it shows if a subclass overrides it."""
    module = sys.modules.get("fastdata.image_folder")
    return None if module is None else module.ImageFolder.read_encoded


@dataclass(frozen=True)
class _TorchvisionFolder:
    """The source of a torchvision DatasetFolder or ImageFolder; attributes are read when used, so later changes count.

    Args:
        folder: the dataset, or a frozen copy of its attributes.
        working_folder: folder from which relative paths start; "" for the process's own.
    """

    folder: Any
    working_folder: str = ""

    def _path(self, index: int) -> str:
        path: str = self.folder.samples[index][0]
        return os.path.join(self.working_folder, path) if self.working_folder else path

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        return self.folder.transform  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.folder.samples)

    def read_encoded(self, index: int) -> bytes:
        return read_file(self._path(index))

    def read_target(self, index: int) -> Any:
        target = self.folder.samples[index][1]
        transform = self.folder.target_transform
        return target if transform is None else transform(target)

    def location(self, index: int) -> str:
        return str(self.folder.samples[index][0])

    def file_range(self, index: int) -> tuple[str, int, int]:
        return self._path(index), 0, -1

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        return FileRanges([self._path(index) for index in indices])

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        if self.folder.target_transform is not None:
            return [self.read_target(index) for index in indices]
        samples = self.folder.samples
        return [samples[index][1] for index in indices]


class _Composed(ABC):
    """The source of samples of other sources, its parts, all with one transform."""

    parts: Sequence[ImageSource]

    @abstractmethod
    def _find(self, index: int) -> tuple[ImageSource, int]:
        """The part that has a sample, and the sample's index there."""

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        return self.parts[0].transform

    def read_encoded(self, index: int) -> bytes:
        part, inner = self._find(index)
        return part.read_encoded(inner)

    def read_target(self, index: int) -> Any:
        part, inner = self._find(index)
        return part.read_target(inner)

    def location(self, index: int) -> str:
        return location_of(*self._find(index))

    def file_range(self, index: int) -> tuple[Any, ...]:
        part, inner = self._find(index)
        return part.file_range(inner)  # type: ignore[attr-defined, no-any-return]


@dataclass(frozen=True)
class _SubsetSource(_Composed):
    """The source of some samples of another source, its only part, by their indices."""

    parts: Sequence[ImageSource]
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def _find(self, index: int) -> tuple[ImageSource, int]:
        return self.parts[0], operator.index(self.indices[index])

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        return file_ranges(self.parts[0], [operator.index(self.indices[index]) for index in indices])

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        return read_targets(self.parts[0], [operator.index(self.indices[index]) for index in indices])


@dataclass(frozen=True)
class _ConcatSource(_Composed):
    """Several sources one after the other, which must share one transform object."""

    parts: Sequence[ImageSource]
    ends: Sequence[int]

    def __post_init__(self) -> None:
        if any(isinstance(part, ArraySource) for part in self.parts):
            reason = "the ConcatDataset has parts whose images are in memory"
            raise NotASource(reason, "make one dataset of them, with the arrays concatenated")
        first = self.parts[0].transform
        if any(part.transform is not first for part in self.parts):
            reason = "the parts of the ConcatDataset have different transforms"
            raise NotASource(reason, "give all parts the same transform object")

    def __len__(self) -> int:
        return self.ends[-1]

    def _find(self, index: int) -> tuple[ImageSource, int]:
        if index < 0:
            index += len(self)
        part = bisect.bisect_right(self.ends, index)
        return self.parts[part], index - (self.ends[part - 1] if part else 0)

    def _find_all(self, indices: Sequence[int]) -> Iterator[tuple[ImageSource, int]]:
        if len(indices) and min(indices) < 0:
            return map(self._find, indices)
        numbers = np.searchsorted(self.ends, indices, side="right").tolist()
        begins = [0, *self.ends]
        return ((self.parts[number], index - begins[number]) for number, index in zip(numbers, indices, strict=True))

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        ranges = [part.file_range(inner) for part, inner in self._find_all(indices)]  # type: ignore[attr-defined]
        return FileRanges.of(ranges)

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        return [part.read_target(inner) for part, inner in self._find_all(indices)]
