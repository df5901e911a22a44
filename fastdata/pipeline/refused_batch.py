"""A batch that cannot be begun, since the sampler gave something else than a list of integers."""

from __future__ import annotations

from typing import NoReturn

from fastdata.pipeline.jobs import Task
from fastdata.pipeline.resources import EpochResources

__all__ = ["RefusedBatch"]


class RefusedBatch:
    """A pipeline job that raises an error at its place; the batches behind it follow.

    Args:
        resources: resources of the epoch.
        number: number of the batch.
        error: what is raised.
    """

    def __init__(self, resources: EpochResources, number: int, error: Exception) -> None:
        self._workers, self._number, self._error = resources.config.torchs_workers, number, error

    @property
    def tasks(self) -> list[Task]:
        """See `Job.tasks`."""
        return [self._refuse]

    def _refuse(self) -> NoReturn:
        if self._workers is not None:
            with self._workers.turn(self._number):  # which passes it on
                pass
        raise self._error

    def finish(self) -> None:
        """Nothing is left to do."""

    def result(self) -> NoReturn:
        """Not reached: the task has failed."""
        raise self._error
