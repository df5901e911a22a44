"""Orders, batches and reports that pass between whoever makes samples and the loader that completes batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory

from fastdata.errors import DecodeError, FastdataError
from fastdata.views.philox import Key

__all__ = ["MadeAgain", "MakeAgain", "Report", "ReportedBatch", "SampleOrder", "UnfinishedBatch"]


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


@dataclass(frozen=True)
class Report:
    """Counts of what was done with a batch's images while the dataset's own code made it.

    Attributes:
        samples: number of samples in the batch.
        opened: number of images opened by Pillow, since they could not stay encoded.
        decoded: number of images that were left encoded, or decoded natively for the dataset's code.
        converted: number of images that were converted to another mode, where that is done to all of them.
        fused: number of transform steps that were done natively, or left for the batch's decoding.
        joint: number of calls of known transforms with an image and its targets.
        left: number of images left to be decoded with the batch.
        plain: reasons why fused transforms called the original transform instead.
    """

    samples: int
    opened: int
    decoded: int
    converted: int
    fused: int
    joint: int
    left: int
    plain: tuple[str, ...]


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
    report: Report
    worker: int | None


@dataclass(frozen=True)
class ReportedBatch:
    """A finished batch, with the report on its images."""

    batch: Any
    report: Report

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
