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
        def near_indices(self, count): ...           # optional: samples that are quick to read together, for timing
        def check_source(self) -> None: ...          # optional: raises NotASource to decline

A dataset that offers these methods goes through the image pipeline as it is.  torchvision's ImageFolder and
DatasetFolder, and Subset and ConcatDataset of any of these, are recognised without it; so are its datasets in memory
(arrays.py) and Subsets of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "OFFER",
    "FileRanges",
    "ImageSource",
    "NotASource",
    "defines_with",
    "file_ranges",
    "location_of",
    "read_targets",
    "some_indices",
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


OFFER = (
    "use torchvision.datasets.ImageFolder or fastdata.ImageFolder, or give the dataset read_encoded(index), "
    "read_target(index) and transform (see fastdata/sources/protocol.py)"
)


class NotASource(Exception):
    """Says in words why a dataset cannot go through the image pipeline.

    Attributes:
        advice: what would change that.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice or OFFER


def file_ranges(source: ImageSource, indices: Sequence[int]) -> FileRanges:
    """Where the encoded images of some samples lie, for a source that `has_file_ranges`."""
    if defines_with(source, "file_range", "file_ranges"):
        return source.file_ranges(indices)  # type: ignore[attr-defined, no-any-return]
    return FileRanges.of([source.file_range(index) for index in indices])  # type: ignore[attr-defined]


def some_indices(source: ImageSource, count: int) -> Sequence[int]:
    """Up to `count` samples to try something on: spread over the source, or where it says that they are at hand."""
    near = getattr(source, "near_indices", None)
    if near is not None:
        return near(count)  # type: ignore[no-any-return]
    return range(0, len(source), max(1, len(source) // count))[:count]


def read_targets(source: ImageSource, indices: Sequence[int]) -> list[Any]:
    """The targets of some samples."""
    if defines_with(source, "read_target", "read_targets"):
        return source.read_targets(indices)  # type: ignore[attr-defined, no-any-return]
    return [source.read_target(index) for index in indices]


@cache
def _class_defines_with(cls: type, method: str, companion: str) -> bool:
    owner = next((each for each in cls.__mro__ if {method, companion} & vars(each).keys()), None)
    return owner is not None and companion in vars(owner)


def defines_with(source: ImageSource, method: str, companion: str) -> bool:
    """True when the class that gives a source its `method` gives it a `companion`, too."""
    return _class_defines_with(type(source), method, companion)


def location_of(source: ImageSource, index: int) -> str:
    """Where a sample comes from, for messages."""
    locate = getattr(source, "location", None)
    return str(locate(index)) if locate is not None else f"{type(source).__name__}[{index}]"
