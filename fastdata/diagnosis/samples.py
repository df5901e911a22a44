"""Measures what single samples of a dataset cost, step by step, in one thread."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from fastdata.diagnosis.observation import SampleTimes
from fastdata.diagnosis.own_steps import profiled, slowest_step
from fastdata.diagnosis.replacing import replace
from fastdata.loaders import resample
from fastdata.loaders.fallback import inspect
from fastdata.native import IndexUse, JpegIndexes, available
from fastdata.sources.protocol import NotASource, file_ranges
from fastdata.sources.recognise import has_file_ranges, recognise
from fastdata.system.files import open_file
from fastdata.system.interleaved_timing import least_ms
from fastdata.system.io_wait import WaitingTime
from fastdata.tables import Format, Recipes, addresses
from fastdata.transforms import RandomResizedCrop
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.header import parse_header
from fastdata.views.philox import Key

__all__ = ["Piece", "decoding_ms", "encoded_jpegs", "measure_samples", "shown_size", "threads_of_torch"]

_MOST_SAMPLES = 256
_MOST_COLLATED = 64
_MOST_PROFILED, _PROFILED = 32, 0.3  # samples, and share of the time for them
_LARGE = 0.4  # share of a sample from which on a step of the user's own is named
_MOST_FILES = 24  # that are decoded in other ways
_MOST_FILE_BYTES = 64 << 20
_HEAD_BYTES = 1 << 16
_INDEX_STEP = 16  # as `fastdata index` makes it


class Piece(NamedTuple):
    """Location of an encoded image: a file, or a part of one."""

    path: str
    offset: int = 0
    length: int = -1  # to the end

    def size(self) -> int:
        """Size in bytes."""
        return os.path.getsize(self.path) - self.offset if self.length < 0 else self.length

    def read(self, most: int = -1) -> bytes:
        """Its bytes, or the first ones."""
        with open_file(self.path) as file:
            file.seek(self.offset)
            return file.read(min((count for count in (most, self.length) if count >= 0), default=-1))


class _Opened:
    """Times, image sizes and paths that Pillow and OpenCV had while samples were made."""

    def __init__(self) -> None:
        self.decode_s = self.resize_s = 0.0
        self.sizes: list[tuple[int, int]] = []
        self.paths: list[str] = []
        self._depth = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Times the functions of Pillow and OpenCV inside this block."""
        with ExitStack() as stack:
            image, file = sys.modules.get("PIL.Image"), sys.modules.get("PIL.ImageFile")
            if image is not None:
                replace(stack, image, "open", self._noting_open)
                replace(stack, image.Image, "resize", lambda original: self._timed(original, "resize_s"))
            if file is not None:
                replace(stack, file.ImageFile, "load", lambda original: self._timed(original, "decode_s"))
            opencv = sys.modules.get("cv2")
            if opencv is not None:
                replace(stack, opencv, "imread", self._noting_imread)
                replace(stack, opencv, "imdecode", lambda original: self._timed(original, "decode_s"))
                replace(stack, opencv, "resize", lambda original: self._timed(original, "resize_s"))
            yield

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

    @property
    def timed_code(self) -> CodeType:
        """Code object of the function that replaces Pillow's and OpenCV's."""
        code: CodeType = getattr(self._timed(len, "decode_s"), "__code__")  # noqa: B009 - a Callable has none for mypy
        return code

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
    dataset: Any, collate: Callable[[list[Any]], Any] | None, *, seconds: float, by_worker: bool = False
) -> tuple[SampleTimes, list[Piece]]:
    """Makes some samples, spread over the dataset, by its own code.

    Args:
        dataset: a dataset with `__getitem__` and a length.
        collate: collate function of the loader; None for none.
        seconds: time for the measurement.
        by_worker: run as in a worker process, in which torch's operations have one thread.

    Returns:
        The costs of the samples, and the encoded images that they were made of.

    Raises:
        Exception: the dataset's own.
    """
    count, opened = len(dataset), _Opened()
    generator = np.random.default_rng(0)
    wanted = generator.permutation(count)[:_MOST_SAMPLES] if count <= 10**7 else generator.integers(count, size=256)
    samples: list[Any] = []
    waiting = WaitingTime()
    with threads_of_torch(1 if by_worker else torch.get_num_threads()):
        dataset[int(wanted[0])]  # imports, and opens what is kept open
        deadline = time.perf_counter() + seconds
        with opened.watching():
            for index in wanted.tolist():
                with waiting:
                    samples.append(dataset[index])
                del samples[:-_MOST_COLLATED]
                if time.perf_counter() > deadline:
                    break
        made = len(waiting.wall_s)
        step, share = _own_step(dataset, wanted[:made].tolist(), seconds=_PROFILED * seconds)
        collate_ms = _collate_ms(collate, samples)
    wall_s, ms = sum(waiting.wall_s), 1e3 / made
    found = SampleTimes(
        samples=made,
        total_ms=wall_s * ms,
        idle_ms=waiting.total_s * ms,
        decode_ms=opened.decode_s * ms,
        resize_ms=opened.resize_s * ms,
        rest_ms=max(0.0, wall_s - opened.decode_s - opened.resize_s) * ms,
        collate_ms=collate_ms,
        shown_px=shown_size(samples[-1]),
        own_step=step,
        own_step_ms=share * wall_s * ms,
    )
    pieces = [Piece(path) for path in dict.fromkeys(opened.paths)] or _known_pieces(dataset, wanted[:made].tolist())
    _describe_images(found, opened.sizes, pieces)
    return found, pieces


def _own_step(dataset: Any, indices: Sequence[int], *, seconds: float) -> tuple[str, float]:
    """Name and share of the user's step that takes most of a sample; ("", 0.0) if none takes much of it."""
    deadline, opened = time.perf_counter() + seconds, _Opened()

    def make() -> None:
        for index in indices[:_MOST_PROFILED]:
            dataset[index]
            if time.perf_counter() > deadline:
                break

    with opened.watching():
        found = profiled(make)
    return slowest_step(found, opened.timed_code, least=_LARGE) if found is not None else ("", 0.0)


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Sets the number of threads within torch's operations until the end of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _known_pieces(dataset: Any, indices: Sequence[int]) -> list[Piece]:
    """Locations of the images of some samples; [] if fastdata does not know the dataset's files."""
    try:
        source = recognise(dataset)
        if not has_file_ranges(source):
            return []
        files = file_ranges(source, indices)
    except NotASource:
        return []
    offsets = [0] * len(indices) if files.offsets is None else files.offsets.tolist()
    lengths = [-1] * len(indices) if files.lengths is None else files.lengths.tolist()
    return [Piece(os.fspath(path), *place) for path, *place in zip(files.paths, offsets, lengths, strict=True)]


def _collate_ms(collate: Callable[[list[Any]], Any] | None, samples: list[Any]) -> float:
    """Milliseconds per sample; 0 where fastdata's loader does without: torch's function takes no PIL images."""
    if collate is None or any(hasattr(leaf, "getbands") for sample in samples for leaf in tree_leaves(sample)):
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


def _describe_images(found: SampleTimes, sizes: list[tuple[int, int]], pieces: Sequence[Piece]) -> None:
    if sizes:
        found.width = int(statistics.median(width for width, _ in sizes))
        found.height = int(statistics.median(height for _, height in sizes))
    heads = []
    for piece in pieces[:_MOST_SAMPLES]:
        try:
            heads.append(parse_header(piece.read(_HEAD_BYTES)))
        except OSError:
            continue
    if not heads:
        return
    found.file_bytes = statistics.mean(piece.size() for piece in pieces if os.path.exists(piece.path))
    frames = [head.jpeg for head in heads if head is not None and head.jpeg is not None]
    found.progressive = sum(not frame.sequential for frame in frames) / len(heads)


def encoded_jpegs(pieces: Sequence[Piece]) -> list[bytes]:
    """The bytes of some JPEGs."""
    files = []
    for piece in pieces:
        try:
            data = piece.read()
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
        record = exact.unpack(data, options=options)
        if record is not None:
            kept.append((data, exact.index_jpeg(data, step=_INDEX_STEP, options=options), record))
    if not kept:
        return {}
    sizes = np.array([(image.width, image.height) for image in (inspect(data) for data, _, _ in kept)])
    plan = compile_transform(RandomResizedCrop(224)).plan
    assert plan is not None
    windows = draw_views(plan.ops, sizes, np.arange(len(kept)), key=Key(seed=1, epoch=1))
    out = np.zeros((224, 224, 3), np.uint8)
    place = addresses(out.ctypes.data, out.nbytes, 1)

    def decode(row: int, stored: bytes, index: bytes | None = None) -> JpegIndexes | None:
        indexes = JpegIndexes.of([index]) if index is not None else None
        seen = Recipes(data=[stored], windows=windows.at(np.array([row], np.intp)), format=Format(), out=place)
        exact.fill(seen, options=options, indexes=indexes)
        return indexes

    ways = {
        "file": [partial(decode, row, data) for row, (data, _, _) in enumerate(kept)],
        "index": [partial(decode, row, data, index) for row, (data, index, _) in enumerate(kept) if index is not None],
        "unpacked": [partial(decode, row, record) for row, (_, _, record) in enumerate(kept)],
    }
    used = [indexes.uses[0] for indexes in (call() for call in ways["index"]) if indexes is not None]
    if len(used) < len(kept) or any(use != IndexUse.USED for use in used):  # small images need none
        del ways["index"]
    least = least_ms(ways, rounds=5, seconds=seconds)
    return {kind: float(np.mean(times)) for kind, times in least.items()}
