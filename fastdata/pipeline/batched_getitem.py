"""A list of samples at once, outside any loader: what a dataset's `__getitems__` needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils.data import get_worker_info

from fastdata.loaders import Backend, auto_backend
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.sources.protocol import ImageSource, NotASource
from fastdata.sources.recognise import recognise
from fastdata.system.cpus import auto_threads
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key

__all__ = ["FetchesMany", "NotCompiled", "fetch_or_loop", "fetch_samples"]


class NotCompiled(Exception):
    """The transform compiles to no plan; the text says why."""


def fetch_samples(source: ImageSource, indices: Sequence[int], *, threads: int) -> list[Any]:
    """Decodes and transforms samples of a source.

    Args:
        source: source of the samples; its transform must compile.
        indices: indices of the samples.
        threads: number of threads; 0 for the calling thread.

    Returns:
        One (object, target) per index, as the dataset's `__getitem__` would give.  Random views are seeded from
        torch's global generator.

    Raises:
        NotCompiled: the transform compiles to no plan.
    """
    compiled = compile_transform(source.transform)
    if compiled.plan is None:
        raise NotCompiled(compiled.reason)
    config = PipelineConfig(
        source=source,
        plan=compiled.plan,
        backend=_preferred_backend(),
        key=Key(seed=int(torch.empty((), dtype=torch.int64).random_().item()), epoch=0),
        collate_fn=list,
        threads=threads,
    )
    resources = EpochResources(config)
    batch = ImageBatch(resources, 0, indices, range(len(indices)))
    jobs = OrderedJobs([batch], threads=threads, depth=1)
    try:
        _, samples, _ = next(jobs)
    finally:
        jobs.close()
    return samples  # type: ignore[no-any-return]


class FetchesMany:
    """Gives a dataset its `__getitems__`, for torch's own DataLoader; samples are those of its `__getitem__`."""

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """A batch of samples; see `fetch_or_loop`."""
        return fetch_or_loop(self, indices)


def fetch_or_loop(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """A dataset's `__getitems__`: samples decoded by the image pipeline where the transform compiles, else one by one.

    torch's own DataLoader calls it, so a dataset stays fast in a loader that was rebuilt from another's attributes (as
    accelerate's `prepare` does).
    """
    threads = 0 if get_worker_info() is not None else auto_threads()
    try:
        return fetch_samples(recognise(dataset), indices, threads=threads)
    except (NotASource, NotCompiled):
        return [dataset[index] for index in indices]


@cache
def _preferred_backend() -> Backend:
    return auto_backend()
