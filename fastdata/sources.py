"""Where encoded images and their targets come from.

A source is anything that maps an index to encoded bytes and a target:

    class MySource(torch.utils.data.Dataset):
        transform = ...                             # a transform that compiles to a plan
        def __len__(self) -> int: ...
        def read_encoded(self, index) -> bytes: ...  # the file's bytes; called from several threads at once
        def read_target(self, index): ...            # the label, after any target_transform
        def location(self, index) -> str: ...        # optional: names the sample in error messages
        def file_range(self, index): ...             # optional: (path, offset, length) of the bytes, for backends
                                                     # that read files themselves; length -1 means to the end; a
                                                     # fourth value is their CRC-32C, which is compared
        def file_ranges(self, indices): ...          # optional: a FileRanges for many, where that is quicker
        def read_targets(self, indices): ...         # optional: the targets of many, where that is quicker
        def check_source(self) -> None: ...          # optional: raises NotASource to decline

A dataset that offers these methods goes through the image pipeline as it is.  torchvision's ImageFolder and
DatasetFolder, and Subset and ConcatDataset of any of these, are recognised without it.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch.utils.data import ConcatDataset, Subset

from fastdata.files import read_file

__all__ = [
    "FileRanges",
    "ImageSource",
    "NotASource",
    "file_ranges",
    "has_file_ranges",
    "read_targets",
    "recognise",
    "transforms_targets",
]


class ImageSource(Protocol):
    """The source protocol; see the module's text."""

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The transform that is compiled."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read_encoded(self, index: int) -> bytes:
        """The encoded image at `index`: the file's bytes.  Called from several threads at once."""
        ...

    def read_target(self, index: int) -> Any:
        """The target at `index`, after any target_transform."""
        ...


@dataclass(frozen=True)
class FileRanges:
    """Where N encoded images lie.

    Attributes:
        paths: of the files.
        offsets: int64, (N,): where each begins in its file; None for 0.
        lengths: int64, (N,): bytes of each; None, and -1, for the rest of the file.
        crcs: int64, (N,): CRC-32C of each; None, and -1, where it is not known.
    """

    paths: list[Any]
    offsets: npt.NDArray[np.int64] | None = None
    lengths: npt.NDArray[np.int64] | None = None
    crcs: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, ranges: Sequence[tuple[Any, ...]]) -> FileRanges:
        """Columns from (path, offset, length), and a CRC-32C where it is known, of each."""
        offsets, lengths = (np.array([each[column] for each in ranges], np.int64) for column in (1, 2))
        crcs = None
        if any(len(each) > 3 for each in ranges):
            crcs = np.array([each[3] if len(each) > 3 else -1 for each in ranges], np.int64)
        return cls([each[0] for each in ranges], offsets, lengths, crcs)


_DEFAULT_LOADER = "leave the dataset's loader at its default"
_OFFER = (
    "use torchvision.datasets.ImageFolder or fastdata.ImageFolder, or give the dataset read_encoded(index), "
    "read_target(index) and transform (see fastdata/sources.py)"
)


class NotASource(Exception):
    """Says in words why a dataset cannot go through the image pipeline.

    Attributes:
        advice: what would change that.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice or _OFFER


def recognise(dataset: Any) -> ImageSource:
    """Finds the source inside a dataset.

    Args:
        dataset: any dataset.

    Returns:
        A source with the dataset's indices and transform.

    Raises:
        NotASource: it is none; the text says why.
    """
    if type(dataset) is Subset:
        return _SubsetSource(recognise(dataset.dataset), dataset.indices)
    if type(dataset) is ConcatDataset:
        return _ConcatSource([recognise(part) for part in dataset.datasets], dataset.cumulative_sizes)
    if all(hasattr(type(dataset), method) for method in ("read_encoded", "read_target", "__len__")):
        check = getattr(dataset, "check_source", None)
        if check is not None:
            check()
        return dataset  # type: ignore[no-any-return]
    if _is_torchvision_folder(dataset):
        return _TorchvisionFolder(dataset)
    raise NotASource(f"{type(dataset).__name__} is not an image dataset that fastdata recognises", _OFFER)


def has_file_ranges(source: ImageSource) -> bool:
    """True when every sample is a file, or a part of one, that can be read without the source."""
    if isinstance(source, _SubsetSource):
        return has_file_ranges(source.source)
    if isinstance(source, _ConcatSource):
        return all(has_file_ranges(part) for part in source.parts)
    # A subclass that reads in its own way must say itself which files that amounts to.
    return _defines_with(source, "read_encoded", "file_range")


def file_ranges(source: ImageSource, indices: Sequence[int]) -> FileRanges:
    """Where the encoded images of some samples lie, for a source that `has_file_ranges`."""
    if _defines_with(source, "file_range", "file_ranges"):
        return source.file_ranges(indices)  # type: ignore[attr-defined, no-any-return]
    return FileRanges.of([source.file_range(index) for index in indices])  # type: ignore[attr-defined]


def read_targets(source: ImageSource, indices: Sequence[int]) -> list[Any]:
    """The targets of some samples."""
    if _defines_with(source, "read_target", "read_targets"):
        return source.read_targets(indices)  # type: ignore[attr-defined, no-any-return]
    return [source.read_target(index) for index in indices]


def transforms_targets(source: ImageSource) -> bool:
    """True when reading a target calls code of the user's: a target_transform, or a source that is not ours."""
    if isinstance(source, _SubsetSource):
        return transforms_targets(source.source)
    if isinstance(source, _ConcatSource):
        return any(map(transforms_targets, source.parts))
    owner = source.folder if isinstance(source, _TorchvisionFolder) else source
    if getattr(owner, "target_transform", None) is not None:
        return True
    return not type(source).read_target.__module__.startswith("fastdata.")


@cache
def _class_defines_with(cls: type, method: str, companion: str) -> bool:
    owner = next((each for each in cls.__mro__ if {method, companion} & vars(each).keys()), None)
    return owner is not None and companion in vars(owner)


def _defines_with(source: ImageSource, method: str, companion: str) -> bool:
    """True when the class that gives a source its `method` gives it a `companion`, too."""
    return _class_defines_with(type(source), method, companion)


def location_of(source: ImageSource, index: int) -> str:
    """Where a sample comes from, for messages."""
    locate = getattr(source, "location", None)
    return str(locate(index)) if locate is not None else f"{type(source).__name__}[{index}]"


def _is_torchvision_folder(dataset: Any) -> bool:
    # By name, so that torchvision is not imported; an overridden __getitem__ may return anything.
    getter = type(dataset).__getitem__ if hasattr(type(dataset), "__getitem__") else None
    if (getattr(getter, "__module__", ""), getattr(getter, "__qualname__", "")) != (
        "torchvision.datasets.folder",
        "DatasetFolder.__getitem__",
    ):
        return False
    if getattr(type(dataset), "__getitems__", None) is not None:
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
            f"torchvision's image backend is {get_image_backend()!r}, not 'PIL'", "set_image_backend('PIL')"
        )
    return True


@dataclass(frozen=True)
class _TorchvisionFolder:
    """torchvision's DatasetFolder and ImageFolder; reads its live attributes, so later changes count."""

    folder: Any

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        return self.folder.transform  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.folder.samples)

    def read_encoded(self, index: int) -> bytes:
        return read_file(self.folder.samples[index][0])

    def read_target(self, index: int) -> Any:
        target = self.folder.samples[index][1]
        transform = self.folder.target_transform
        return target if transform is None else transform(target)

    def location(self, index: int) -> str:
        return str(self.folder.samples[index][0])

    def file_range(self, index: int) -> tuple[str, int, int]:
        return self.folder.samples[index][0], 0, -1

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        samples = self.folder.samples
        return FileRanges([samples[index][0] for index in indices])

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        if self.folder.target_transform is not None:
            return [self.read_target(index) for index in indices]
        samples = self.folder.samples
        return [samples[index][1] for index in indices]


@dataclass(frozen=True)
class _SubsetSource:
    """The samples of another source at given indices."""

    source: ImageSource
    indices: Sequence[int]

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        return self.source.transform

    def __len__(self) -> int:
        return len(self.indices)

    def read_encoded(self, index: int) -> bytes:
        return self.source.read_encoded(operator.index(self.indices[index]))

    def read_target(self, index: int) -> Any:
        return self.source.read_target(operator.index(self.indices[index]))

    def location(self, index: int) -> str:
        return location_of(self.source, operator.index(self.indices[index]))

    def file_range(self, index: int) -> tuple[Any, ...]:
        return self.source.file_range(operator.index(self.indices[index]))  # type: ignore[attr-defined, no-any-return]

    def file_ranges(self, indices: Sequence[int]) -> FileRanges:
        return file_ranges(self.source, [operator.index(self.indices[index]) for index in indices])

    def read_targets(self, indices: Sequence[int]) -> list[Any]:
        return read_targets(self.source, [operator.index(self.indices[index]) for index in indices])


@dataclass(frozen=True)
class _ConcatSource:
    """Several sources one after the other; they must share their transform."""

    parts: Sequence[ImageSource]
    ends: Sequence[int]

    def __post_init__(self) -> None:
        first = self.parts[0].transform
        if any(part.transform is not first for part in self.parts):
            reason = "the parts of the ConcatDataset have different transforms"
            raise NotASource(reason, "give its parts one transform, the same object")

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        return self.parts[0].transform

    def __len__(self) -> int:
        return self.ends[-1]

    def _find(self, index: int) -> tuple[ImageSource, int]:
        if index < 0:
            index += len(self)
        part = bisect.bisect_right(self.ends, index)
        return self.parts[part], index - (self.ends[part - 1] if part else 0)

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
