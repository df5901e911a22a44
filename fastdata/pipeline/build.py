"""Makes the running pipeline of one epoch from what describes it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fastdata.device.prefetch import chosen_by_threads
from fastdata.order.epoch_batches import EpochBatches
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import FailedJob, Job, OrderedJobs
from fastdata.pipeline.ready_batch import ReadyBatch
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.torchs_workers import TorchsWorkers
from fastdata.pipeline.whole_batch import WholeBatch, WholeBatches

__all__ = ["open_pipeline"]


def open_pipeline(
    resources: EpochResources, batches: EpochBatches, *, depth: int, timeout_s: float, batch_size: int | None
) -> OrderedJobs | WholeBatches:
    """Yields (number, batch), in order; its `close` stops it.

    Args:
        resources: resources that all batches share.
        batches: the indices of each.
        depth: batches in flight in the decode threads.
        timeout_s: longest wait for one; 0 waits for ever.
        batch_size: size of the largest batch; None if unknown.
    """
    jobs = OrderedJobs(
        _jobs(resources, batches),
        threads=resources.config.threads,
        depth=depth,
        timeout_s=timeout_s,
        on_close=resources.close,
        begin=chosen_by_threads(resources.config.device) if resources.config.pin else None,
    )
    if resources.batch_decoder is None:
        return jobs
    return WholeBatches(resources, resources.batch_decoder, jobs, largest_batch=batch_size)


def _jobs(resources: EpochResources, batches: EpochBatches) -> Iterator[Job]:
    make: type[ImageBatch | ReadyBatch] = ImageBatch
    if resources.ready_batches is not None:
        make = ReadyBatch
    elif resources.batch_decoder is not None:
        make = WholeBatch
    for number, indices in enumerate(batches):
        try:
            batch: Job = make(resources, number, indices, batches.occurrences_of(indices))
        except (TypeError, ValueError) as error:  # of what is no list of integers; others may follow, as with torch
            workers = resources.config.torchs_workers
            batch = FailedJob(error, [] if workers is None else [partial(_pass_on, workers, number)])
        yield batch


def _pass_on(workers: TorchsWorkers, number: int) -> None:
    """Has a batch draw nothing in its turn."""
    with workers.turn(number):
        pass
