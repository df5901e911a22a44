"""backend="auto": time the available backends on a few of the user's own samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch

from fastdata.draws import Key
from fastdata.errors import BackendError
from fastdata.loaders import BACKENDS, Backend, Encoded, available_backends, create_backend
from fastdata.loaders.dali import FILTERS, DaliFeed, DaliFormat, DaliPipeline, is_for_dali
from fastdata.plan import Plan
from fastdata.sources import ImageSource
from fastdata.views import View, Views, draw_views

__all__ = ["Choice", "choose_backend"]

_SAMPLES = 8
_BUDGET_S = 0.3
_ROUNDS = 3
# The ceiling decodes nothing.  DALI decodes batches and is timed by them.
_SINGLY = tuple(name for name in BACKENDS if name not in ("synthetic", "dali"))
_DALI_BATCHES, _DALI_BATCH = 4, 32


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which backend was chosen, and why.

    Attributes:
        backend: ready to decode.
        reason: in words, for `explain()`.
        ms_per_image: median milliseconds per image and thread by backend name; empty when nothing had to be timed.
    """

    backend: Backend
    reason: str
    ms_per_image: dict[str, float] = field(default_factory=dict)


def choose_backend(
    source: ImageSource, plan: Plan, *, fidelity: str, threads: int = 1, device_index: int | None = None
) -> Choice:
    """Times every available backend on samples spread over the source and takes the fastest.

    DALI's pixels differ from Pillow's, so it takes part with ``fidelity="fast"`` alone, in its pipeline and where it
    would run.  Takes about a third of a second at most, with DALI twice that; samples that cannot be read or decoded
    are left out.

    Args:
        source: the samples.
        plan: what is done to them.
        fidelity: as for DataLoader.
        threads: how many will decode.
        device_index: the CUDA device where DALI would decode; None is the CPU.
    """
    available = available_backends()
    backends = [create_backend(name, fidelity=fidelity) for name in available if name in _SINGLY]
    if not backends:
        raise BackendError("no decode backend is available; install Pillow")
    images, views = _some_samples(source, plan)
    if not images or len(backends) == 1:
        reason = "the only one available" if len(backends) == 1 else "no sample could be read to time the others"
        return Choice(backend=backends[0], reason=reason)
    timings = _time_in_turn(backends, images, views)
    medians = {backend.name: statistics.median(timings[backend.name]) for backend in backends}
    if fidelity == "fast" and plan.batchable and plan.interpolation in FILTERS and "dali" in available:
        ms = _time_dali(images, views, threads=max(1, threads), device_index=device_index)
        if ms is not None:
            backends.append(create_backend("dali", fidelity=fidelity))
            medians["dali"] = ms
    best = min(backends, key=lambda backend: medians[backend.name])
    listed = ", ".join(f"{name} {ms:.2f}" for name, ms in sorted(medians.items(), key=lambda item: item[1]))
    return Choice(
        backend=best,
        reason=f"fastest on {len(images)} of your samples (ms per image: {listed})",
        ms_per_image=medians,
    )


def _some_samples(source: ImageSource, plan: Plan) -> tuple[list[Encoded], list[View]]:
    images = []
    step = max(1, len(source) // _SAMPLES)
    near = getattr(source, "near_indices", None)  # a remote source would fetch much for samples far apart
    for index in near(_SAMPLES) if near is not None else range(0, len(source), step)[:_SAMPLES]:
        with suppress(Exception):  # Pillow's plugins raise many kinds; the epoch will report it
            images.append(Encoded.of(source.read_encoded(index)))
    if not images:
        return [], []
    sizes = np.array([(image.width, image.height) for image in images], np.int64)
    indices = np.arange(len(images), dtype=np.int64)
    try:
        views = draw_views(plan.ops, sizes, indices, key=Key(seed=0, epoch=0), interpolation=plan.interpolation)
    except ValueError:  # an image is smaller than a crop
        return [], []
    return images, views.rows()


def _time_dali(
    images: Sequence[Encoded], views: Sequence[View], *, threads: int, device_index: int | None
) -> float | None:
    """Milliseconds per image, times the threads, of DALI's pipeline; None if it cannot decode these."""
    rows = [row for row in range(len(images)) if is_for_dali(images[row], views[row])]
    if not rows:
        return None
    chosen = [rows[n % len(rows)] for n in range(_DALI_BATCH)]
    feed = DaliFeed(
        encoded=[np.frombuffer(images[row].data, np.uint8) for row in chosen],
        views=Views.of([views[row] for row in chosen]),
    )
    format_ = DaliFormat(interpolation=views[0].interpolation, threads=threads, device_index=device_index)
    pipeline = DaliPipeline(iter([feed] * (1 + _DALI_BATCHES)), format_)
    try:
        _, first = next(pipeline)  # builds it
        began = time.perf_counter()
        outputs = [output for _, output in pipeline]
        if device_index is not None:
            torch.cuda.synchronize(device_index)
        seconds = time.perf_counter() - began
    except BackendError:
        return None
    finally:
        pipeline.close()
    if any(isinstance(output, RuntimeError) for output in (first, *outputs)):
        return None
    return seconds * 1e3 * threads / (_DALI_BATCHES * _DALI_BATCH)


def _time_in_turn(
    backends: Sequence[Backend], images: Sequence[Encoded], views: Sequence[View]
) -> dict[str, list[float]]:
    """Milliseconds per image of each backend, image by image in turn, within the time budget."""
    timings: dict[str, list[float]] = {backend.name: [] for backend in backends}
    places = [np.empty((*view.size, 3), np.uint8) for view in views]
    deadline = time.perf_counter() + _BUDGET_S
    for round_ in range(1 + _ROUNDS):
        for image, view, place in zip(images, views, places, strict=True):
            for backend in backends:
                began = time.perf_counter()
                backend.decode([image], [view], [place])
                if round_ > 0:  # the first round loads libraries and touches memory
                    timings[backend.name].append((time.perf_counter() - began) * 1e3)
            if round_ > 0 and time.perf_counter() > deadline:
                return timings
            if round_ == 0:
                break
    return timings
