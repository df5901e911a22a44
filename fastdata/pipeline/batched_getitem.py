"""A list of samples at once, outside any loader: what a dataset's `__getitems__` needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.utils.data import get_worker_info

from fastdata.loaders import auto_backend
from fastdata.patches.originals import replaced_function
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.sources.protocol import NotASource
from fastdata.sources.recognise import has_target_transform, recognise
from fastdata.system.cpus import auto_threads
from fastdata.system.switches import leaves_images
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key

__all__ = ["FetchesMany"]

_preferred_backend = cache(auto_backend)


class FetchesMany:
    """Gives a dataset its `__getitems__`, for torch's own DataLoader; samples are those of its `__getitem__`.

    So a dataset stays fast in a loader that was rebuilt from another's attributes (as accelerate's `prepare` does).
    """

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Samples, decoded by the image pipeline where all steps are known, else one by one.

        Random views are seeded from torch's global generator.
        """
        dataset: Any = self
        if leaves_images() or replaced_function() is not None:
            return [dataset[index] for index in indices]
        try:
            source = recognise(dataset)
            plan = compile_transform(source.transform).plan
        except NotASource:
            plan = None
        if plan is None or plan.unfused or has_target_transform(source):  # code of the user's is not for threads
            return [dataset[index] for index in indices]
        threads = 0 if get_worker_info() is not None else auto_threads()
        config = PipelineConfig(
            source=source,
            plan=plan,
            backend=_preferred_backend(),
            key=Key(seed=int(torch.empty((), dtype=torch.int64).random_().item()), epoch=0),
            collate_fn=list,
            threads=threads,
        )
        batch = ImageBatch(EpochResources(config), 0, indices, range(len(indices)))
        jobs = OrderedJobs([batch], threads=threads, depth=1)
        try:
            _, samples = next(jobs)
        finally:
            jobs.close()
        return samples  # type: ignore[no-any-return]
