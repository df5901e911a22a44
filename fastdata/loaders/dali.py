"""Decodes JPEGs by NVIDIA DALI, on the CPU or on the GPU; images that DALI cannot decode go to Pillow.

Whole batches go through the pipeline of dali_pipeline.py.  A batch with a damaged image goes through `decode`, which
halves it until the image is found.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from fastdata.loaders import pillow
from fastdata.loaders.backend import Backend, BatchFeed, BatchRequest, Encoded, Fidelity, Pixels
from fastdata.loaders.dali_effects import DaliEffects
from fastdata.loaders.dali_pipeline import FILTERS, Built, DaliPipeline, build_pipeline, columns_of
from fastdata.loaders.per_image import by_pillow
from fastdata.system.cpus import usable_cpus
from fastdata.system.installed import install_command
from fastdata.tables import EffectTable
from fastdata.views.plan import Plan
from fastdata.views.resampling import BLACK, Interpolation
from fastdata.views.view import View, Views

__all__ = ["DaliBackend", "DaliBatches", "is_for_dali"]

_LARGEST_BATCH = 64
_MOST_THREADS = 16


class DaliBackend(Backend):
    """DALI for JPEGs, Pillow for the rest.

    Pixels differ from Pillow's since DALI resizes in floating point: see `mean_tolerance`.
    """

    name = "dali"
    mean_tolerance = MappingProxyType({"exact": 0.6, "fast": 4.0})
    decode_devices = ("cpu", "mixed")
    install_hint = f"install it with: {install_command('dali')} (Linux; or the DALI wheel for your CUDA version)"

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self.version()
        self._lock = threading.Lock()  # a pipeline serves one caller at a time
        self._pipelines: dict[tuple[int, Interpolation], Any] = {}
        self._columns: tuple[Any, ...] = ()  # inputs of the pipeline that runs
        self._batches = DaliBatches(fidelity)

    @classmethod
    def version(cls) -> str:
        try:
            import nvidia.dali
        except (ImportError, OSError) as error:
            raise cls.unavailable(error) from error
        return f"DALI {nvidia.dali.__version__}"

    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        rows_of: dict[Interpolation, list[int]] = {}  # a pipeline has one filter
        for row, (image, view) in enumerate(zip(images, views, strict=True)):
            if is_for_dali(image, view):
                rows_of.setdefault(view.interpolation, []).append(row)
        done: set[int] = set()
        for rows in rows_of.values():
            for begin in range(0, len(rows), _LARGEST_BATCH):
                done |= self._decode_some(rows[begin : begin + _LARGEST_BATCH], images, views, out)
        return [
            None if row in done else by_pillow(*each) for row, each in enumerate(zip(images, views, out, strict=True))
        ]

    def batch_decoder(self) -> DaliBatches:
        return self._batches

    def _decode_some(
        self, rows: Sequence[int], images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]
    ) -> set[int]:
        """Decodes some rows by DALI and returns the decoded ones; halves the rows until a damaged image is alone."""
        feed = BatchFeed(
            encoded=[np.frombuffer(images[row].data, np.uint8) for row in rows],
            views=Views.of([views[row] for row in rows]),
        )
        try:
            decoded = self._run(feed)
        except RuntimeError:
            decoded = None
        if decoded is not None:
            for at, row in enumerate(rows):
                out[row][:] = decoded.at(at)
            return set(rows)
        half = len(rows) // 2
        parts = (rows[:half], rows[half:]) if half else ()
        return {row for part in parts for row in self._decode_some(part, images, views, out)}

    def _run(self, feed: BatchFeed) -> Any:
        interpolation = feed.views.row(0).interpolation
        key = os.getpid(), interpolation
        threads = min(usable_cpus(), _MOST_THREADS)
        request = BatchRequest(interpolation=interpolation, threads=threads, largest_batch=_LARGEST_BATCH)
        with self._lock:
            if key not in self._pipelines:
                self._pipelines[key] = build_pipeline(
                    request, lambda: self._columns, prefetch=1, fidelity=self.fidelity
                )
            self._columns = columns_of(feed, request)
            try:
                return self._pipelines[key].run()[0]
            except RuntimeError:
                del self._pipelines[key]  # it is of no more use
                raise


class DaliBatches:
    """A batch decoder; see `fastdata.loaders.backend.BatchDecoder`.  Keeps its pipeline from epoch to epoch."""

    def __init__(self, fidelity: Fidelity = "exact") -> None:
        self._fidelity = fidelity
        self._kept: list[Built] = []

    def suits(self, plan: Plan) -> bool:
        return len(plan.filters) == 1 and plan.filters[0] in FILTERS

    def takes(self, image: Encoded, view: View) -> bool:
        return is_for_dali(image, view)

    def effects(self, drawn: EffectTable) -> DaliEffects | None:
        return DaliEffects.like(drawn)

    def open(self, feeds: Iterator[BatchFeed], request: BatchRequest) -> DaliPipeline:
        return DaliPipeline(feeds, request, kept=self._kept, fidelity=self._fidelity)

    def __del__(self) -> None:
        while self._kept:
            self._kept.pop().shut_down()


def is_for_dali(image: Encoded, view: View) -> bool:
    """True for a whole plain JPEG of an allowed size, and a view that DALI can give."""
    if view.interpolation not in FILTERS or any(view.window_flips) or (view.reaches_out and view.outside != BLACK):
        return False
    if view.is_beside:
        return False
    limit = pillow.most_pixels()
    if limit is not None and image.width * image.height > limit:
        return False
    return image.is_whole_jpeg()
