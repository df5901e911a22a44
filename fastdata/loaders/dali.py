"""Decodes whole batches of JPEGs by NVIDIA DALI, on the CPU or on the GPU, in the pipeline of dali_pipeline.py.

What is no whole batch is decoded by the backend that "auto" takes: images that DALI does not take, batches on which it
gave up, samples whose transform goes on in the user's code, and images that a dataset's own code opens.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from fastdata.loaders import auto_backend, pillow
from fastdata.loaders.backend import Backend, Encoded, Fidelity, Filler
from fastdata.loaders.batch_decoder import BatchFeed, BatchRequest
from fastdata.loaders.dali_effects import DaliEffects
from fastdata.loaders.dali_pipeline import FILTERS, Built, DaliPipeline
from fastdata.system.installed import install_command
from fastdata.tables import EffectTable
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.resampling import BLACK
from fastdata.views.view import View

__all__ = ["DaliBackend", "DaliBatches", "is_for_dali"]


class DaliBackend(Backend):
    """DALI for whole batches of JPEGs.

    Pixels differ from Pillow's since DALI resizes in floating point: see `mean_tolerance`.
    """

    name = "dali"
    mean_tolerance = MappingProxyType({"exact": 0.6, "fast": 4.0})
    decode_devices = ("cpu", "mixed")
    install_hint = f"install it with: {install_command('dali')} (Linux; or the DALI wheel for your CUDA version)"

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self.version()
        self._batches = DaliBatches(fidelity)

    @classmethod
    def version(cls) -> str:
        try:
            import nvidia.dali
        except (ImportError, OSError) as error:
            raise cls.unavailable(error) from error
        return f"DALI {nvidia.dali.__version__}"

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> Filler:
        """Returns the filler of the backend that "auto" takes: DALI decodes whole batches only."""
        return auto_backend(self.fidelity).filler(plan, key, threads=threads)

    def batch_decoder(self) -> DaliBatches:
        return self._batches


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
