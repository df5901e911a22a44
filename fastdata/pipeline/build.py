"""Makes the running pipeline of one epoch from what describes it."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.order.epoch_batches import EpochBatches
from fastdata.pipeline.image_batch import ImageBatch, ReadyBatch
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.shared import Shared
from fastdata.pipeline.whole_batch import WholeBatch, WholeBatches

__all__ = ["open_pipeline"]


def open_pipeline(
    shared: Shared, batches: EpochBatches, *, depth: int, timeout_s: float, batch_size: int | None
) -> OrderedJobs | WholeBatches:
    """Yields (number, batch, what is drawn for steps left to the device), in order; its `close` stops it.

    Args:
        shared: what all batches share.
        batches: the indices of each.
        depth: batches in flight in the decode threads.
        timeout_s: longest wait for one; 0 waits for ever.
        batch_size: of the largest batch, None if unknown.
    """
    jobs = OrderedJobs(
        _jobs(shared, batches),
        threads=shared.config.threads,
        depth=depth,
        timeout_s=timeout_s,
        on_close=shared.close,
    )
    if shared.batch_decoder is None:
        return jobs
    return WholeBatches(shared, shared.batch_decoder, jobs, largest_batch=batch_size)


def _jobs(shared: Shared, batches: EpochBatches) -> Iterator[ImageBatch | ReadyBatch]:
    make: type[ImageBatch | ReadyBatch] = ImageBatch
    if shared.ready_batches is not None:
        make = ReadyBatch
    elif shared.batch_decoder is not None:
        make = WholeBatch
    for number, indices in enumerate(batches):
        yield make(shared, number, indices, batches.copies_of(indices))
