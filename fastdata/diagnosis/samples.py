"""Measures what single samples of a dataset cost, step by step, in one thread."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

import numpy as np
from torch.utils._pytree import tree_leaves

from fastdata.diagnosis.observation import Sample
from fastdata.loaders import resample
from fastdata.loaders.per_image import inspect
from fastdata.native import Format, IndexUse, JpegIndexes, available
from fastdata.sources.protocol import NotASource, file_ranges
from fastdata.sources.recognise import has_file_ranges, recognise
from fastdata.system.in_turn import least_ms
from fastdata.system.waiting import WaitingTime
from fastdata.transforms import RandomResizedCrop
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.header import parse_header
from fastdata.views.philox import Key

__all__ = ["decoding_ms", "measure_samples", "opened_files", "shown_size"]

_MOST_SAMPLES = 256
_MOST_COLLATED = 64
_MOST_FILES = 24  # read from storage, and decoded in other ways
_MOST_FILE_BYTES = 64 << 20
_HEAD_BYTES = 1 << 16
_INDEX_STEP = 16  # as `fastdata index` makes it


class _Opened:
    """What Pillow did while samples were made."""

    def __init__(self) -> None:
        self.decode_s = self.resize_s = 0.0
        self.sizes: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Pillow's functions are timed inside of this block."""
        with ExitStack() as stack:
            image, file = sys.modules.get("PIL.Image"), sys.modules.get("PIL.ImageFile")
            if image is not None:
                self._replace(stack, image, "open", self._noting_open)
                self._replace(stack, image.Image, "resize", lambda original: self._timed(original, "resize_s"))
            if file is not None:
                self._replace(stack, file.ImageFile, "load", lambda original: self._timed(original, "decode_s"))
            opencv = sys.modules.get("cv2")
            if opencv is not None:
                self._replace(stack, opencv, "imread", self._noting_imread)
                self._replace(stack, opencv, "imdecode", lambda original: self._timed(original, "decode_s"))
                self._replace(stack, opencv, "resize", lambda original: self._timed(original, "resize_s"))
            yield

    @staticmethod
    def _replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, make(original))
        stack.callback(setattr, owner, name, original)

    def _noting_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def noted(opened: Any, *given: Any, **named: Any) -> Any:
            image = original(opened, *given, **named)
            self.sizes.append(image.size)
            name = opened if isinstance(opened, str | os.PathLike) else getattr(opened, "name", None)
            if isinstance(name, str | os.PathLike) and os.path.isfile(name) and image.filename is not None:
                self.paths.append(os.path.abspath(os.fspath(name)))
            return image

        return noted

    def _noting_imread(self, original: Callable[..., Any]) -> Callable[..., Any]:
        read = self._timed(original, "decode_s")

        @wraps(original)
        def noted(name: Any, *given: Any, **named: Any) -> Any:
            pixels = read(name, *given, **named)
            if pixels is not None:
                self.sizes.append((pixels.shape[1], pixels.shape[0]))
                self.paths.append(os.path.abspath(name))
            return pixels

        return noted

    def _timed(self, original: Callable[..., Any], total: str) -> Callable[..., Any]:
        @wraps(original)
        def timed(image: Any, *given: Any, **named: Any) -> Any:
            began = time.perf_counter()
            self._depth += 1  # resize loads, and load may resize
            try:
                return original(image, *given, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    setattr(self, total, getattr(self, total) + time.perf_counter() - began)

        return timed


def measure_samples(
    dataset: Any, collate: Callable[[list[Any]], Any] | None, *, seconds: float
) -> tuple[Sample, list[str]]:
    """Makes some samples, spread over the dataset, by its own code.

    Args:
        dataset: with `__getitem__` and a length.
        collate: of the loader; None for none.
        seconds: to be taken.

    Returns:
        What they cost, and the image files that were opened.

    Raises:
        Exception: the dataset's own.
    """
    count, opened = len(dataset), _Opened()
    generator = np.random.default_rng(0)
    wanted = generator.permutation(count)[:_MOST_SAMPLES] if count <= 10**7 else generator.integers(count, size=256)
    samples: list[Any] = []
    dataset[int(wanted[0])]  # imports, and opens what is kept open
    waiting, deadline = WaitingTime(), time.perf_counter() + seconds
    with opened.watching():
        for index in wanted.tolist():
            with waiting:
                samples.append(dataset[index])
            del samples[:-_MOST_COLLATED]
            if time.perf_counter() > deadline:
                break
    made, wall_s = len(waiting.wall_s), sum(waiting.wall_s)
    ms = 1e3 / made
    collate_ms = _collate_ms(collate, samples)
    found = Sample(
        samples=made,
        total_ms=wall_s * ms,
        idle_ms=waiting.total_s * ms,
        decode_ms=opened.decode_s * ms,
        resize_ms=opened.resize_s * ms,
        rest_ms=max(0.0, wall_s - opened.decode_s - opened.resize_s) * ms,
        collate_ms=collate_ms,
        shown_px=shown_size(samples[-1]),
    )
    paths = list(dict.fromkeys(opened.paths)) or _known_files(dataset, wanted[:made].tolist())
    _describe_images(found, opened.sizes, paths)
    return found, paths


def _known_files(dataset: Any, indices: Sequence[int]) -> list[str]:
    """The files of some samples, of datasets that fastdata knows."""
    try:
        source = recognise(dataset)
        if not has_file_ranges(source):
            return []
        files = file_ranges(source, indices)
    except NotASource:
        return []
    whole = files.offsets is None or not np.any(files.offsets)
    return [os.fspath(path) for path in files.paths] if whole else []


def _collate_ms(collate: Callable[[list[Any]], Any] | None, samples: list[Any]) -> float:
    """Milliseconds per sample."""
    if collate is None:
        return 0.0
    began = time.perf_counter()
    collate(list(samples))
    return 1e3 * (time.perf_counter() - began) / len(samples)


def shown_size(sample: Any) -> int:
    """Pixels of the largest image in a sample; 0 if it has none."""
    sizes = [0]
    for leaf in tree_leaves(sample):
        shape = tuple(getattr(leaf, "shape", ()))
        if len(shape) == 3:  # (C, H, W) or (H, W, C)
            sides = shape[1:] if shape[0] <= 4 else shape[:2]
            sizes.append(int(sides[0]) * int(sides[1]))
        elif hasattr(leaf, "getbands"):
            sizes.append(leaf.size[0] * leaf.size[1])
    return max(sizes)


def _describe_images(found: Sample, sizes: list[tuple[int, int]], paths: Sequence[str]) -> None:
    if sizes:
        found.width = int(statistics.median(width for width, _ in sizes))
        found.height = int(statistics.median(height for _, height in sizes))
    heads = []
    for path in paths[:_MOST_SAMPLES]:
        try:
            with open(path, "rb") as file:
                heads.append(parse_header(file.read(_HEAD_BYTES)))
        except OSError:
            continue
    if not heads:
        return
    found.file_bytes = statistics.mean(os.path.getsize(path) for path in paths if os.path.exists(path))
    frames = [head.jpeg for head in heads if head is not None and head.jpeg is not None]
    found.jpegs = len(frames) / len(heads)
    found.progressive = sum(not frame.sequential for frame in frames) / len(heads)
    _read_from_storage(found, paths)


def _read_from_storage(found: Sample, paths: Sequence[str]) -> None:
    """Reads some files as if for the first time, where the system can forget that it has read them."""
    if not hasattr(os, "posix_fadvise"):
        return
    seconds, again_s, total = [], [], 0
    for path in paths[:_MOST_FILES]:
        try:
            number = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            began = time.perf_counter()
            while piece := os.read(number, 1 << 20):
                total += len(piece)
            seconds.append(time.perf_counter() - began)
            os.lseek(number, 0, os.SEEK_SET)
            began = time.perf_counter()
            while os.read(number, 1 << 20):
                pass
            again_s.append(time.perf_counter() - began)
        finally:
            os.close(number)
        if total > _MOST_FILE_BYTES or sum(seconds) > 1:
            break
    if total and sum(seconds) > 0:
        found.storage_mb_per_s = total / 1e6 / sum(seconds)
        found.read_ms = min(1e3 * statistics.median(again_s), found.decode_ms)
        found.storage_ms = 1e3 * statistics.median(seconds)


def opened_files(paths: Sequence[str]) -> list[bytes]:
    """The contents of some baseline JPEGs."""
    files = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            continue
        head = parse_header(data[:_HEAD_BYTES])
        if head is not None and head.jpeg is not None and len(data) < _MOST_FILE_BYTES:
            files.append(data)
        if len(files) == _MOST_FILES:
            break
    return files


def decoding_ms(files: Sequence[bytes], *, seconds: float) -> dict[str, float]:
    """Milliseconds for a random crop of JPEGs by the native core: as "file", by "index", from "unpacked" records.

    Each image's least time of some rounds, in which the kinds take turns; {} without the core.
    """
    core = available()
    if core is None or not files:
        return {}
    exact, order = resample.exact_core()
    options = resample.options_for(order, "exact")
    kept = []
    for data in files:
        index = exact.index_jpeg(data, step=_INDEX_STEP, options=options)
        record = exact.unpack(data, options=options)
        if index is not None and record is not None:
            kept.append((data, index, record))
    if not kept:
        return {}
    sizes = np.array([(image.width, image.height) for image in (inspect(data) for data, _, _ in kept)])
    plan = compile_transform(RandomResizedCrop(224)).plan
    assert plan is not None
    windows = draw_views(plan.ops, sizes, np.arange(len(kept)), key=Key(seed=1, epoch=1)).columns
    out = np.zeros((224, 224, 3), np.uint8)
    place = np.array([out.ctypes.data], np.uint64)

    def decode(row: int, stored: bytes, index: bytes | None = None) -> JpegIndexes | None:
        given = np.frombuffer(stored, np.uint8)
        address = np.array([given.ctypes.data], np.uint64), np.array([given.size], np.int64)
        indexes = JpegIndexes.of([index]) if index is not None else None
        window = windows.at(np.array([row], np.intp))
        exact.decode(*address, window, place, format=Format(), options=options, indexes=indexes)
        return indexes

    ways = {
        "file": [partial(decode, row, data) for row, (data, _, _) in enumerate(kept)],
        "index": [partial(decode, row, data, index) for row, (data, index, _) in enumerate(kept)],
        "unpacked": [partial(decode, row, record) for row, (_, _, record) in enumerate(kept)],
    }
    used = [indexes.uses[0] for indexes in (call() for call in ways["index"]) if indexes is not None]
    if any(use != IndexUse.USED for use in used):
        del ways["index"]
    least = least_ms(ways, rounds=5, seconds=seconds)
    return {kind: float(np.mean(times)) for kind, times in least.items()}
