"""JPEG by NVIDIA DALI's CPU operators: decode of the window, antialiased resize.

DALI draws nothing here: windows and sizes come from the views, through external sources.  An image that DALI cannot
decode makes a pipeline useless; then each image of the batch is tried alone in a new one, and Pillow has the last word.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdata.cpus import usable_cpus
from fastdata.loaders import pillow
from fastdata.loaders.backend import Backend, Encoded, Pixels, by_pillow
from fastdata.plan import Interpolation
from fastdata.views import View

__all__ = ["DaliBackend"]

_LARGEST_BATCH = 64
_MOST_THREADS = 16
# Pillow's filters that DALI has, too; the others are Pillow's.
_FILTERS = {
    Interpolation.NEAREST: "INTERP_NN",
    Interpolation.BILINEAR: "INTERP_LINEAR",
    Interpolation.BICUBIC: "INTERP_CUBIC",
    Interpolation.LANCZOS: "INTERP_LANCZOS3",
}


class DaliBackend(Backend):
    """DALI for JPEGs, Pillow for the rest.

    Pixels differ from Pillow's by the resize, which DALI computes in floating point: see `MEAN_TOLERANCE`.
    """

    name = "dali"
    install_hint = "install it with: pip install 'fastdata[dali]' (Linux; or the DALI wheel for your CUDA version)"

    def __init__(self, *, fidelity: str = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self.version()
        self._lock = threading.Lock()  # a pipeline serves one caller at a time
        self._pipelines: dict[tuple[int, str], Any] = {}

    @classmethod
    def version(cls) -> str:
        try:
            import nvidia.dali
        except (ImportError, OSError) as error:
            raise cls.unavailable(error) from error
        return f"DALI {nvidia.dali.__version__}"

    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        rows = [row for row in range(len(images)) if _is_for_dali(images[row], views[row])]
        done: set[int] = set()
        for begin in range(0, len(rows), _LARGEST_BATCH):
            done |= self._decode_some(rows[begin : begin + _LARGEST_BATCH], images, views, out)
        return [
            None if row in done else by_pillow(*each) for row, each in enumerate(zip(images, views, out, strict=True))
        ]

    def _decode_some(
        self, rows: Sequence[int], images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]
    ) -> set[int]:
        """Decodes some rows by DALI and returns those that it could."""
        try:
            resized = self._run([images[row].data for row in rows], [views[row] for row in rows])
        except RuntimeError:  # one of them is damaged, and DALI does not say which
            if len(rows) == 1:
                return set()
            return {row for each in rows for row in self._decode_some([each], images, views, out)}
        for row, pixels in zip(rows, resized, strict=True):
            _store(pixels, views[row], out[row])
        return set(rows)

    def _run(self, encoded: Sequence[bytes], views: Sequence[View]) -> list[Pixels]:
        """Windows decoded and resized: uint8 (height, width, 3) of each view's `resize_px`."""
        windows = np.array([view.window_px for view in views], np.int32)
        sizes = np.array([view.resize_px[::-1] for view in views], np.float32)
        key = os.getpid(), _FILTERS[views[0].interpolation]
        with self._lock:
            pipeline = self._pipelines.get(key)
            if pipeline is None:
                pipeline = self._pipelines[key] = _make_pipeline(key[1])
            try:
                pipeline.feed_input("encoded", [np.frombuffer(data, np.uint8) for data in encoded])
                pipeline.feed_input("anchor", list(windows[:, :2]))
                pipeline.feed_input("shape", list(windows[:, 2:] - windows[:, :2]))
                pipeline.feed_input("size", list(sizes))
                (resized,) = pipeline.run()
            except RuntimeError:
                del self._pipelines[key]  # it is of no more use
                raise
            return [np.array(resized.at(row)) for row in range(len(views))]


def _make_pipeline(filter_: str) -> Any:
    """A CPU pipeline of one batch at a time."""
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(  # type: ignore[untyped-decorator, unused-ignore]
        batch_size=_LARGEST_BATCH,
        num_threads=min(usable_cpus(), _MOST_THREADS),
        device_id=None,
        prefetch_queue_depth=1,
    )
    def define() -> Any:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        anchor, shape = (fn.external_source(name=name, dtype=types.INT32, ndim=1) for name in ("anchor", "shape"))
        size = fn.external_source(name="size", dtype=types.FLOAT, ndim=1)
        window = fn.decoders.image_slice(
            encoded,
            anchor,
            shape,
            axis_names="WH",
            normalized_anchor=False,
            normalized_shape=False,
            output_type=types.RGB,
            adjust_orientation=False,
        )
        return fn.resize(window, size=size, interp_type=getattr(types, filter_), antialias=True)

    pipeline = define()
    pipeline.build()
    return pipeline


def _is_for_dali(image: Encoded, view: View) -> bool:
    """True for whole plain JPEGs of an allowed size, and filters that DALI has."""
    if not image.is_plain_jpeg() or view.interpolation not in _FILTERS:
        return False
    limit = pillow.most_pixels()
    if limit is not None and image.width * image.height > limit:
        return False
    return not image.is_cut_short()


def _store(resized: Pixels, view: View, out: Pixels) -> None:
    """Crops and flips into the place; outside of the image is black."""
    left, top, right, bottom = view.crop_px
    width, height = view.resize_px
    flipped = out[:: -1 if view.flip_vertical else 1, :: -1 if view.flip_horizontal else 1]
    inside = (max(left, 0), max(top, 0), min(right, width), min(bottom, height))
    if inside != view.crop_px:
        out[:] = 0
    if inside[0] < inside[2] and inside[1] < inside[3]:
        part = flipped[inside[1] - top : inside[3] - top, inside[0] - left : inside[2] - left]
        part[:] = resized[inside[1] : inside[3], inside[0] : inside[2]]
