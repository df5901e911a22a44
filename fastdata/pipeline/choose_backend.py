"""backend="auto": time the available backends on a few of the user's own samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from fastdata.errors import BackendError
from fastdata.loaders import Backend, Encoded, Fidelity, auto_backends, create_backend
from fastdata.loaders.backend import BatchFeed, BatchRequest, FileLoader
from fastdata.loaders.per_image import inspect
from fastdata.pipeline.pixel_format import PixelFormat
from fastdata.pipeline.timed_before import key_of, recall, remember
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource, file_ranges, some_indices
from fastdata.sources.recognise import has_file_ranges
from fastdata.system.in_turn import least_ms
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.view import View, Views

__all__ = ["BackendChoice", "choose_backend"]

_KEY = Key(seed=0, epoch=0)
_SAMPLES = 8
_MOST_TRIED = 3 * _SAMPLES  # where some cannot be read
_SEARCH_S = 0.06  # for samples, of which one is enough
_BUDGET_S = 0.1  # for timing
_ROUNDS = 4
_CLEARLY = 0.85  # times the preferred backend's time: what must be reached to be chosen instead, as machines are noisy
_BATCHES, _BATCH = 4, 32  # for backends that decode whole batches


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """Which backend was chosen, and why.

    Attributes:
        backend: ready to decode.
        reason: in words, for `explain()`.
        ms_per_image: milliseconds per image and thread by backend name, of each image the least of some rounds; empty
            when nothing had to be timed.
    """

    backend: Backend
    reason: str
    ms_per_image: dict[str, float] = field(default_factory=dict)


def choose_backend(
    source: ImageSource,
    plan: Plan,
    *,
    fidelity: Fidelity,
    threads: int = 1,
    device_index: int | None = None,
    options: object = None,
) -> BackendChoice:
    """Times the available backends on samples spread over the source; takes native unless another is clearly faster.

    Each is timed in the way it would run: one that reads files itself does that, and stores the batch, in the same
    time; those that decode whole batches, such as DALI, run in their own pipelines.  Takes the sum of two budgets,
    `_SEARCH_S` and `_BUDGET_S`, longer with such pipelines or images of many megapixels, beside what importing the
    backends' libraries takes; and is done on two occasions for the same dataset, transform and machine
    (pipeline/timed_before.py).
    Samples that cannot be read, decoded or seen (smaller than a crop) are left out.

    Args:
        source: the samples.
        plan: what is done to them.
        fidelity: as for DataLoader.
        threads: how many will decode.
        device_index: the CUDA device where whole batches would be decoded; None is the CPU.
        options: further choices for backends that decode whole batches.
    """
    if isinstance(source, ArraySource):
        return BackendChoice(backend=create_backend("native"), reason="pixels are in memory, nothing is decoded")
    known = [create_backend(name, fidelity=fidelity) for name in auto_backends(fidelity)]
    backends = [backend for backend in known if backend.batch_decoder() is None]
    if not backends:
        raise BackendError("no decode backend is available; install Pillow")
    if len(backends) == 1:
        return BackendChoice(backend=backends[0], reason="the only one available")
    key = key_of(source, plan, known, fidelity=fidelity, threads=threads, device=device_index, options=repr(options))
    before = recall(key) if key is not None else None
    if before is not None and before.settled and {backend.name for backend in backends} <= before.ms.keys():
        timed = {backend.name: before.ms[backend.name] for backend in known if backend.name in before.ms}
        return _choice([backend for backend in known if backend.name in timed], timed, "your samples, timed before")
    indices, images, views = _some_samples(source, plan, backends)
    if not images:
        reason = f"none of {min(len(source), _MOST_TRIED)} samples tried could be decoded, so nothing was timed"
        return BackendChoice(backend=backends[0], reason=f"preferred; {reason}")
    timed = _time_in_turn(backends, images, views, _file_loads(backends, source, plan, indices))
    if plan.batchable and plan.in_one_pass:
        request = BatchRequest(
            interpolation=plan.filters[0],
            threads=max(1, threads),
            largest_batch=_BATCH,
            device_index=device_index,
            options=options,
        )
        whole = {backend.name: _time_whole_batches(backend, plan, request, images, views) for backend in known}
        timed |= {name: ms for name, ms in whole.items() if ms is not None}
    if before is not None:
        timed = {name: min(ms, before.ms.get(name, ms)) for name, ms in timed.items()}
    if key is not None:
        remember(key, timed, before)
    return _choice([backend for backend in known if backend.name in timed], timed, f"{len(images)} of your samples")


def _choice(backends: Sequence[Backend], timed: dict[str, float], samples: str) -> BackendChoice:
    """The fastest; the first by rank unless another is clearly faster."""
    best = min(backends, key=lambda backend: timed[backend.name])
    reason = f"fastest on {samples}"
    first = backends[0]  # by rank
    if first.auto_rank == 0 and best is not first and timed[best.name] > _CLEARLY * timed[first.name]:
        best = first
        reason = f"preferred; on {samples} no other is clearly faster"
    listed = ", ".join(f"{name} {ms:.2f}" for name, ms in sorted(timed.items(), key=lambda item: item[1]))
    return BackendChoice(backend=best, reason=f"{reason} (ms per image: {listed})", ms_per_image=timed)


def _some_samples(
    source: ImageSource, plan: Plan, backends: Sequence[Backend]
) -> tuple[list[int], list[Encoded], list[View]]:
    """Samples with their views that every backend decodes; this also loads libraries and touches memory."""
    indices: list[int] = []
    images: list[Encoded] = []
    views: list[View] = []
    deadline = time.perf_counter() + _SEARCH_S
    for index in _spread(some_indices(source, _MOST_TRIED)):
        if len(images) == _SAMPLES or (images and time.perf_counter() > deadline):
            break
        with suppress(Exception):  # Pillow's plugins raise many kinds; the epoch will report it
            image = inspect(source.read_encoded(index))
            size = np.array([[image.width, image.height]], np.int64)
            (view,) = draw_views(plan.ops, size, np.array([index]), key=_KEY).rows()
            place = [np.empty((*view.size, 3), np.uint8)]
            if all(backend.decode([image], [view], place) == [None] for backend in backends):
                indices.append(index)
                images.append(image)
                views.append(view)
    return indices, images, views


def _file_loads(
    backends: Sequence[Backend], source: ImageSource, plan: Plan, indices: Sequence[int]
) -> dict[str, Callable[[], object]]:
    """What loads these samples at once, for backends that read files into batches."""
    if not (plan.batchable and plan.in_one_pass and has_file_ranges(source)):
        return {}
    assert plan.size is not None
    files, out = file_ranges(source, indices), torch.empty((len(indices), 3, *plan.size), dtype=plan.output_dtype)
    ranges, stored = (files.paths, files.offsets, files.lengths, files.crcs), PixelFormat(plan).native
    loads: dict[str, Callable[[], object]] = {}
    for backend in backends:
        loader = backend.file_loader(plan, _KEY, format=stored, threads=0)
        if loader is not None:

            def load(loader: FileLoader = loader) -> object:
                return loader.load(*ranges, indices=indices, copies=[0] * len(indices), out=out.data_ptr())

            loads[backend.name] = load
    return loads


def _spread(indices: Sequence[int]) -> list[int]:
    """Every third first, so that those that are used lie apart when all can be."""
    return [*indices[::3], *indices[1::3], *indices[2::3]]


def _time_whole_batches(
    backend: Backend, plan: Plan, request: BatchRequest, images: Sequence[Encoded], views: Sequence[View]
) -> float | None:
    """Milliseconds per image, times the threads, of a backend's pipeline; None if it has none that can do this."""
    decoder = backend.batch_decoder()
    if decoder is None or not decoder.suits(plan):
        return None
    if "mixed" not in backend.decode_devices:
        request = replace(request, device_index=None)
    rows = [row for row in range(len(images)) if decoder.takes(images[row], views[row])]
    if not rows:
        return None
    chosen = [rows[n % len(rows)] for n in range(_BATCH)]
    feed = BatchFeed(
        encoded=[np.frombuffer(images[row].data, np.uint8) for row in chosen],
        views=Views.of([views[row] for row in chosen]),
    )
    pipeline = decoder.open(iter([feed] * (1 + _BATCHES)), request)
    try:
        _, first = next(pipeline)  # builds it
        began = time.perf_counter()
        outputs = [output for _, output in pipeline]
        if request.device_index is not None:
            torch.cuda.synchronize(request.device_index)
        seconds = time.perf_counter() - began
    except BackendError:
        return None
    finally:
        pipeline.close()
    if any(isinstance(output, RuntimeError) for output in (first, *outputs)):
        return None
    return seconds * 1e3 * request.threads / (_BATCHES * _BATCH)


def _time_in_turn(
    backends: Sequence[Backend],
    images: Sequence[Encoded],
    views: Sequence[View],
    file_loads: Mapping[str, Callable[[], object]],
) -> dict[str, float]:
    """Milliseconds per image of each backend: the least of some rounds for each image, backends taking turns."""
    places = [np.empty((*view.size, 3), np.uint8) for view in views]
    calls: dict[str, list[Callable[[], object]]] = {}
    for backend in backends:
        calls[backend.name] = [
            partial(backend.decode, [image], [view], [place])
            for image, view, place in zip(images, views, places, strict=True)
        ]
        if backend.name in file_loads:
            calls[backend.name] = [file_loads[backend.name]]
    least = least_ms(calls, rounds=_ROUNDS, seconds=_BUDGET_S)
    return {name: sum(times) / len(images) for name, times in least.items()}
