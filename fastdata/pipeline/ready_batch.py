"""One batch of a backend that has no work: nothing is decoded, only targets are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastdata.pipeline.batch_memory import made_or_refused
from fastdata.pipeline.collate import collate_targets
from fastdata.pipeline.jobs import Task
from fastdata.pipeline.resources import EpochResources
from fastdata.sources.protocol import read_targets

__all__ = ["ReadyBatch"]


class ReadyBatch:
    """A pipeline job of a backend with finished batches: the same noise for every batch, with the true targets.

    It shows what a run costs when images are free.  The caller must not write to the images, since every batch of
    one length is the same memory.
    """

    tasks: tuple[Task, ...] = ()

    def __init__(
        self, resources: EpochResources, number: int, indices: Sequence[int], occurrences: Sequence[int]
    ) -> None:
        assert resources.ready_batches is not None
        self._number = number
        make = partial(resources.ready_batches.ready, len(indices), resources.finished_empty_batch)
        images, self._refusal = made_or_refused(make)
        if images is None:
            return
        config = resources.config
        self._batch = config.batch_of(images, collate_targets(config.collate_fn, read_targets(config.source, indices)))

    def finish(self) -> None:
        """Nothing is left to do."""

    def result(self) -> tuple[int, Any]:
        """The batch's number and the batch, finished.

        Raises:
            MemoryError, RuntimeError: there was no memory for it.
        """
        if self._refusal is not None:
            self._refusal.result()
        return self._number, self._batch
