"""Loads images from an array in memory into a finished batch, by the native core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.loaders import resample
from fastdata.loaders.backend import LoadedFiles
from fastdata.native import ArrayLoader, EffectTable, Format, Pool, Status
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.to_native import geometry

__all__ = ["NativeArrayLoader"]

Ints: TypeAlias = npt.NDArray[np.int64]


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

    def load(
        self,
        images: npt.NDArray[np.uint8],
        rows: Ints,
        *,
        indices: Sequence[int],
        copies: Sequence[int],
        out: int,
        effects: EffectTable | None = None,
    ) -> LoadedFiles:
        """Crops, resizes, flips and stores N images, with one call of the core.

        Args:
            images: uint8, (images, height, width, channels), 3 channels or 1, with any strides.
            rows: int64, (N,): row of each image in `images`.
            indices: indices of the samples, for which views are drawn.
            copies: distinguishes several views of one sample.
            out: address of the batch, which holds N images one after the other.
            effects: effects on each image's pixels, (N, any number); None for none.
        """
        results, decode_s = self._loader.load(images, rows, indices, copies, out, effects=effects)
        image_bytes = int(np.prod(images.shape[1:]))
        return LoadedFiles(results.statuses == Status.OK, np.full(len(rows), image_bytes, np.int64), 0.0, decode_s)

    def close(self, ended: bool) -> None:
        """Gives up its threads; waits for them if the work has ended."""
        if self._pool is not None:
            (self._pool.close if ended else self._pool.abandon)()
