"""Types of what a loader hands out: its batches, and the entries of `stats()`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypedDict

__all__ = ["BatchIterator", "LoaderStats"]


class BatchIterator(Protocol):
    """Iterator over batches, as `iter(loader)` returns it, with a length if the loader has one.

    A batch is of type Any, as in torch: its type depends on the collate function, not on the type of a sample.
    """

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def __len__(self) -> int: ...


class LoaderStats(TypedDict):
    """Totals since the loader was made, as `DataLoader.stats()` returns them.

    Attributes:
        stage_s: thread-seconds per stage of the image pipeline, summed over its threads.
        wait_s: seconds the caller waited in `next()`.
        busy_s: seconds the caller spent between two `next()` calls.
        wait_share: share of that time spent waiting, 0 to 1.
        batches: batches delivered.
        samples: samples delivered; those that were skipped are not.
        encoded_bytes: bytes read.
        cached: samples whose image came from the cache; see `DataLoader(cache=…)`.
        failures: samples that could not be decoded.
        kinds: number of failures of each kind, by the kind in words.
        quarantine: (index, location, reason) of the first thousand of them.
        backend: name of the backend that decodes; None if it is not known yet, or none decodes.
    """

    stage_s: dict[str, float]
    wait_s: float
    busy_s: float
    wait_share: float
    batches: int
    samples: int
    encoded_bytes: int
    cached: int
    failures: int
    kinds: dict[str, int]
    quarantine: list[tuple[int, str, str]]
    backend: str | None
