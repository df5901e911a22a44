"""Makes the running pipeline of one epoch from what describes it."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.image_batch import ImageBatch, ReadyBatch
from fastdata.image_work import ImageWork
from fastdata.loaders.synthetic import SyntheticBackend
from fastdata.order import EpochBatches
from fastdata.pipeline import OrderedJobs
from fastdata.pipelined import AheadBatch, PipelinedBatches

__all__ = ["open_pipeline"]

_LARGEST_UNKNOWN_BATCH = 4096  # of batch samplers that do not say; DALI wants a bound


def open_pipeline(
    work: ImageWork, batches: EpochBatches, *, depth: int, timeout_s: float, batch_size: int | None
) -> OrderedJobs | PipelinedBatches:
    """Yields (number, batch, what is drawn for steps left to the device), in order; its `close` stops it.

    Args:
        work: what all batches share.
        batches: the indices of each.
        depth: batches in flight in the decode threads.
        timeout_s: longest wait for one; 0 waits for ever.
        batch_size: of the largest batch, None if unknown.
    """
    jobs = OrderedJobs(
        _jobs(work, batches),
        threads=work.threads,
        depth=depth,
        timeout_s=timeout_s,
        on_close=work.close,
    )
    if not work.pipelined:
        return jobs
    return PipelinedBatches(work, jobs, largest_batch=batch_size or _LARGEST_UNKNOWN_BATCH)


def _jobs(work: ImageWork, batches: EpochBatches) -> Iterator[ImageBatch | ReadyBatch]:
    make: type[ImageBatch | ReadyBatch] = AheadBatch if work.pipelined else ImageBatch
    if isinstance(work.backend, SyntheticBackend) and work.in_place:
        make = ReadyBatch
    for number, indices in enumerate(batches):
        yield make(work, number, indices, batches.copies_of(indices))
