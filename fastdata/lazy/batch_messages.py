"""Orders, batches and reports that pass between whoever makes samples and the loader that completes batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from fastdata.errors import DecodeError, FastdataError
from fastdata.views.philox import Key

__all__ = ["ImageCounts", "MadeAgain", "MakeAgain", "ReportedBatch", "SampleOrder", "UnfinishedBatch", "kind_of"]


@dataclass(frozen=True)
class SampleOrder:
    """The samples to make for one batch.

    Attributes:
        number: number of the batch, counted from the first that is made.
        indices: the indices, as the sampler gave them.
        occurrences: how often each index came before in the epoch; None if the dataset has no fused transforms.
        key: seed and epoch; None if the dataset has no fused transforms.
    """

    number: int
    indices: Any
    occurrences: Sequence[int] | None = None
    key: Key | None = None

    def samples(self) -> list[tuple[Any, int]]:
        """Returns (index, occurrence) of each sample."""
        return list(zip(self.indices, self.occurrences or [0] * len(self.indices), strict=True))


@dataclass
class ImageCounts:
    """Counts of what was done with the images of batches that a dataset's own code has made.

    Attributes:
        samples: samples in the batches.
        opened: images opened by Pillow, since they could not stay encoded.
        kinds: kinds of these images, in words ("grey PNGs").
        decoded: images that were left to be decoded with the batch, or decoded natively for the dataset's code.
        converted: images that were converted, whole, to another mode than RGB, where that is done to all of them.
        others: images opened by the user's library, since that others stayed encoded gained nothing.
        in_vain: those of `decoded` that were decoded one by one, and gained nothing by it.
        fused: steps of transforms that were done natively, or left for the batch's decoding.
        joint: calls of known transforms with an image and its targets, which they transform by themselves.
        touched: images whose pixels were decoded for code that works on them as images or arrays.
        whole: images decoded without a resize, and without a crop to half of them, for code that works on their pixels.
        handed: those of `whole` whose pixels were given to Pillow.
        uses: Pillow's functions for which that was done, with the program's lines ("rotate (data.py:12)").
        left: images left to be decoded with the batch.
        plain: reasons why fused transforms called the original transform instead.
    """

    samples: int = 0
    opened: int = 0
    decoded: int = 0
    converted: int = 0
    others: int = 0
    in_vain: int = 0
    fused: int = 0
    joint: int = 0
    touched: int = 0
    whole: int = 0
    handed: int = 0
    left: int = 0
    kinds: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    plain: set[str] = field(default_factory=set)

    def add(self, other: ImageCounts) -> None:
        """Adds the counts of other batches."""
        for each in fields(ImageCounts):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, mine | theirs if isinstance(mine, set) else mine + theirs)


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch that the loader must complete or have made again.

    Attributes:
        batch: the collated batch, with pending images or natively decoded ones; None if a sample failed and is to be
            replaced.
        order: its samples.
        report: counts for its images.
        worker: number of the worker process that made it; None for this process.
    """

    batch: Any
    order: SampleOrder
    report: ImageCounts
    worker: int | None


@dataclass(frozen=True)
class ReportedBatch:
    """A finished batch, with the report on its images."""

    batch: Any
    report: ImageCounts

    def pin_memory(self) -> ReportedBatch:
        """Called by torch's thread that pins batches."""
        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class MakeAgain:
    """The request to make a batch again, with every image opened by Pillow immediately.

    Attributes:
        order: the samples to make.
        substitutes: for each sample, the indices that may replace it; None if samples are not replaced.
    """

    order: SampleOrder
    substitutes: list[list[int]] | None = None


@dataclass(frozen=True)
class MadeAgain:
    """A batch that was made again with every image opened by Pillow.

    Attributes:
        batch: the result of collate_fn; None if `is_empty`.
        failures: errors that the user's code did not handle.
        left_out: number of samples that are not in the batch.
        raised: with on_error="raise", the original error if it is a `FastdataError`, which may say more (a shard's).
        is_empty: no sample is left, or one failed with on_error="raise".
    """

    batch: Any
    failures: list[DecodeError] = field(default_factory=list)
    left_out: int = 0
    raised: FastdataError | None = None
    is_empty: bool = False


_MODES = {  # of Pillow, in words
    "1": "black-and-white",
    "L": "grey",
    "P": "palette",
    "PA": "palette",
    "LA": "transparent grey",
    "RGBA": "transparent",
    "CMYK": "CMYK",
    "I": "16-bit",
    "I;16": "16-bit",
}


def kind_of(image: Any, limit: int | None) -> str:
    """Kind of an image that Pillow decodes, in words: "grey PNGs"; limit: `PIL.Image.MAX_IMAGE_PIXELS`."""
    kind, file = _MODES.get(image.mode, ""), f"{image.format or 'image'}s"
    if limit is not None and image.width * image.height > limit:
        return f"{file} above PIL.Image.MAX_IMAGE_PIXELS"
    if not kind and image.format in ("JPEG", "PNG"):
        return f"unusual {file} (interlaced, animated, with a transparent colour, damaged, or in several pictures)"
    return f"{kind} {file}".strip()
