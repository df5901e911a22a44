"""The protocol of sources of encoded images and their targets.

A source is anything that maps an index to encoded bytes and a target:

    class MySource(torch.utils.data.Dataset):
        transform = ...                             # a transform that compiles to a plan
        def __len__(self) -> int: ...
        def read_encoded(self, index) -> bytes: ...  # the file's bytes; called from several threads at once
        def read_target(self, index): ...            # the label, after any target_transform; from several threads, too
        def location(self, index) -> str: ...        # optional: names the sample in error messages
        def file_range(self, index): ...             # optional: (path, offset, length) of the bytes, for backends
                                                     # that read files themselves; length -1 means to the end; a
                                                     # fourth value is their CRC-32C, which is compared
        def file_ranges(self, indices): ...          # optional: a FileRanges for many, where that is quicker
        def read_targets(self, indices): ...         # optional: the targets of many, where that is quicker
        def near_indices(self, count): ...           # optional: samples that are quick to read together, for timing
        def check_source(self) -> None: ...          # optional: raises NotASource to decline

A dataset that offers these methods goes through the image pipeline as it is.  Where its transform has steps of the
user's, or `collate_fn` is the user's, its samples are made as ImageFolder makes them (samples.py), where torch would.
torchvision's ImageFolder and DatasetFolder, and Subset and ConcatDataset of any of these, do not need these methods;
nor do its datasets in memory (arrays.py) and Subsets of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "ADVICE_SOURCE",
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
    """The source protocol; see the module docstring."""

    @property
    def transform(self) -> Callable[[Any], Any] | None:
        """The transform that is compiled."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def read_encoded(self, index: int) -> bytes:
        """Returns the file's bytes of the image at `index`.  Called from several threads at once."""
        ...

    def read_target(self, index: int) -> Any:
        """Returns the target at `index`, after any target_transform.  Called from several threads at once."""
        ...


@dataclass(frozen=True)
class FileRanges:
    """The files and byte ranges of N encoded images.

    Attributes:
        paths: paths of the files.
        offsets: int64, (N,): offset in bytes of each image in its file; None for 0.
        lengths: int64, (N,): length in bytes of each; None, and -1, for the rest of the file.
        crcs: int64, (N,): CRC-32C of each; None, and -1, if it is not known.
    """

    paths: list[Any]
    offsets: npt.NDArray[np.int64] | None = None
    lengths: npt.NDArray[np.int64] | None = None
    crcs: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, ranges: Sequence[tuple[Any, ...]]) -> FileRanges:
        """Makes columns from one (path, offset, length), or (path, offset, length, CRC-32C), for each image."""
        offsets, lengths = (np.array([each[column] for each in ranges], np.int64) for column in (1, 2))
        crcs = None
        if any(len(each) > 3 for each in ranges):
            crcs = np.array([each[3] if len(each) > 3 else -1 for each in ranges], np.int64)
        return cls([each[0] for each in ranges], offsets, lengths, crcs)


ADVICE_SOURCE = (
    "use torchvision.datasets.ImageFolder or fastdata.ImageFolder, or give the dataset read_encoded(index), "
    "read_target(index) and transform (see fastdata/sources/protocol.py)"
)


class NotASource(Exception):
    """Raised with the reason why a dataset cannot go through the image pipeline.

    Attributes:
        advice: change that would make it one.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice or ADVICE_SOURCE


def file_ranges(source: ImageSource, indices: Sequence[int]) -> FileRanges:
    """Returns the byte ranges of some samples' encoded images, for a source that `has_file_ranges`."""
    if defines_with(source, "file_range", "file_ranges"):
        return source.file_ranges(indices)  # type: ignore[attr-defined, no-any-return]
    return FileRanges.of([source.file_range(index) for index in indices])  # type: ignore[attr-defined]


def some_indices(source: ImageSource, count: int) -> Sequence[int]:
    """Returns up to `count` indices for a trial: the source's `near_indices`, else spread over the source."""
    near = getattr(source, "near_indices", None)
    if near is not None:
        return near(count)  # type: ignore[no-any-return]
    return range(0, len(source), max(1, len(source) // count))[:count]


def read_targets(source: ImageSource, indices: Sequence[int]) -> list[Any]:
    """Returns the targets of some samples."""
    if defines_with(source, "read_target", "read_targets"):
        return source.read_targets(indices)  # type: ignore[attr-defined, no-any-return]
    return [source.read_target(index) for index in indices]


@cache
def _class_defines_with(cls: type, method: str, companion: str) -> bool:
    owner = next((each for each in cls.__mro__ if {method, companion} & vars(each).keys()), None)
    return owner is not None and companion in vars(owner)


def defines_with(source: ImageSource, method: str, companion: str) -> bool:
    """True if the class that defines a source's `method` also defines `companion`."""
    return _class_defines_with(type(source), method, companion)


def location_of(source: ImageSource, index: int) -> str:
    """Returns the name of a sample in messages: its `location`, else its class and index."""
    locate = getattr(source, "location", None)
    return str(locate(index)) if locate is not None else f"{type(source).__name__}[{index}]"
