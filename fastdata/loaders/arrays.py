"""Loads images from an array in memory into a finished batch, by the native core."""

from __future__ import annotations

import numpy as np

from fastdata.loaders import resample
from fastdata.loaders.backend import LoadedFiles
from fastdata.native import ArrayLoader, Pool, Status
from fastdata.tables import ArrayBatch, Format
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.to_native import geometry

__all__ = ["NativeArrayLoader"]


class NativeArrayLoader:
    """Loads images from an array into a batch, as `fastdata.loaders.backend.FileLoader` does from files.

    Args:
        plan: its geometry is applied; its `size` must not be None.
        key: seed and epoch of the views.
        format: format of the stored pixels.
        threads: number of native threads; 0 works in the calling thread.

    Raises:
        NativeMissing: no native core gives Pillow's pixels.
    """

    def __init__(self, plan: Plan, key: Key, *, format: Format, threads: int) -> None:  # noqa: A002
        assert plan.size is not None
        core, order = resample.exact_core()
        self._pool = Pool(core, threads) if threads else None
        self._loader = ArrayLoader(
            core,
            self._pool,
            geometry=geometry(plan.ops, key),
            format=format,
            options=resample.options_for(order, "exact"),
            size=plan.size,
        )

    def load(self, batch: ArrayBatch) -> LoadedFiles:
        """Crops, resizes, flips and stores N images, with one call of the core."""
        results, decode_s = self._loader.load(batch)
        image_bytes = int(np.prod(batch.images.shape[1:]))
        sizes = np.full(len(results.statuses), image_bytes, np.int64)
        return LoadedFiles(ok=results.statuses == Status.OK, data_bytes=sizes, read_s=0.0, decode_s=decode_s)

    def close(self, ended: bool) -> None:
        """Gives up its threads; waits for them if the work has ended."""
        if self._pool is not None:
            (self._pool.close if ended else self._pool.abandon)()
