"""Views: which window of each image is seen, how it is resized, cropped and flipped.

Drawn for many samples at once by a counter-based generator keyed by (seed, epoch, sample index), so a view does not
depend on the backend, on the number of threads, or on which samples were drawn before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import native
from fastdata.views.philox import Key, Words, philox4x32, portable_exp, uniform
from fastdata.views.plan import CenterCrop, Flip, Interpolation, Op, RandomCrop, RandomResizedCrop, Resize
from fastdata.views.to_native import geometry

__all__ = ["View", "Views", "draw_view", "draw_views"]

Ints: TypeAlias = npt.NDArray[np.signedinteger[Any]]

_TRIES = 10  # torchvision's RandomResizedCrop gives up after ten windows that do not fit


@dataclass(frozen=True, kw_only=True)
class View:
    """How one image is seen.

    Attributes:
        window_px: (left, top, right, bottom) in source pixels, half-open, inside the image.
        resize_px: (width, height) the window is resized to.
        crop_px: (left, top, right, bottom) in resized pixels, half-open; what lies outside is black.
        flip_horizontal: mirror left to right, last.
        flip_vertical: mirror top to bottom, last.
        interpolation: Pillow's filter for the resize, always antialiased.
    """

    window_px: tuple[int, int, int, int]
    resize_px: tuple[int, int]
    crop_px: tuple[int, int, int, int]
    flip_horizontal: bool
    flip_vertical: bool
    interpolation: Interpolation

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the result."""
        left, top, right, bottom = self.crop_px
        return bottom - top, right - left


@dataclass(frozen=True, kw_only=True)
class Views:
    """The views of N samples as arrays; the fields are those of `View`.

    Attributes:
        window_px: int32, (N, 4).
        resize_px: int32, (N, 2).
        crop_px: int32, (N, 4).
        flip_horizontal: bool, (N,).
        flip_vertical: bool, (N,).
        interpolation: one filter for all.
    """

    window_px: Ints
    resize_px: Ints
    crop_px: Ints
    flip_horizontal: npt.NDArray[np.bool_]
    flip_vertical: npt.NDArray[np.bool_]
    interpolation: Interpolation

    def __len__(self) -> int:
        return len(self.window_px)

    @classmethod
    def of(cls, views: Sequence[View]) -> Views:
        """Columns from views that share a filter."""
        if len({view.interpolation for view in views}) != 1:
            raise ValueError("views in one batch share their filter, and there is at least one")
        return cls(
            window_px=np.array([view.window_px for view in views], np.int32),
            resize_px=np.array([view.resize_px for view in views], np.int32),
            crop_px=np.array([view.crop_px for view in views], np.int32),
            flip_horizontal=np.array([view.flip_horizontal for view in views], np.bool_),
            flip_vertical=np.array([view.flip_vertical for view in views], np.bool_),
            interpolation=views[0].interpolation,
        )

    def columns(self) -> native.Windows:
        """The same for the native core."""
        flips = np.stack([self.flip_horizontal, self.flip_vertical], axis=1)
        return native.Windows(self.window_px, self.resize_px, self.crop_px, flips).contiguous()  # type: ignore[arg-type]

    def rows(self) -> list[View]:
        """One `View` per sample."""
        columns = zip(
            map(tuple, self.window_px.tolist()),
            map(tuple, self.resize_px.tolist()),
            map(tuple, self.crop_px.tolist()),
            self.flip_horizontal.tolist(),
            self.flip_vertical.tolist(),
            strict=True,
        )
        return [
            View(
                window_px=window,
                resize_px=resize,
                crop_px=crop,
                flip_horizontal=horizontal,
                flip_vertical=vertical,
                interpolation=self.interpolation,
            )
            for window, resize, crop, horizontal, vertical in columns
        ]


def draw_views(
    ops: Sequence[Op],
    sizes_px: Ints,
    indices: Ints,
    *,
    key: Key,
    copies: Ints | int = 0,
    interpolation: Interpolation = Interpolation.BILINEAR,
) -> Views:
    """Draws the views of N samples.

    Args:
        ops: the plan's geometry.
        sizes_px: int64, (N, 2): width and height of each source image.
        indices: int64, (N,): the samples' positions in the dataset.
        key: seed and epoch.
        copies: int64, (N,) or 0: tells apart several views of one sample in one epoch.
        interpolation: the plan's filter.

    Returns:
        N views.

    Raises:
        ValueError: a RandomCrop is larger than an image, as in torchvision.
    """
    columns = np.broadcast_to(indices, len(sizes_px)), np.broadcast_to(copies, len(sizes_px))
    core = native.available()
    if core is None:
        return _draw_with_numpy(ops, sizes_px, *columns, key=key, interpolation=interpolation)
    (window, resize, crop, flips), failed = core.draw_views(sizes_px, *columns, geometry(ops, key))
    if failed >= 0:  # says in torchvision's words why it cannot be drawn
        _draw_with_numpy(
            ops, sizes_px[failed : failed + 1], *(column[failed : failed + 1] for column in columns), key=key
        )
    return Views(
        window_px=window,
        resize_px=resize,
        crop_px=crop,
        flip_horizontal=flips[:, 0] != 0,
        flip_vertical=flips[:, 1] != 0,
        interpolation=interpolation,
    )


_one_view = native.OneView()


@lru_cache(maxsize=32)
def _geometry(ops: tuple[Op, ...], key: Key) -> native.Geometry:
    return geometry(ops, key)


def draw_view(
    ops: tuple[Op, ...],
    size_px: tuple[int, int],
    index: int,
    copy: int,
    *,
    key: Key,
    interpolation: Interpolation = Interpolation.BILINEAR,
) -> View:
    """The view of one sample, as `draw_views` draws it; `size_px` is the image's width and height.

    Raises:
        ValueError: a RandomCrop is larger than the image, as in torchvision.
    """
    core = native.available()
    drawn = _one_view.draw(core, size_px, index, copy, _geometry(ops, key)) if core is not None else None
    if drawn is None:
        columns = np.array([index], np.int64), np.array([copy], np.int64)
        return draw_views(
            ops, np.array([size_px], np.int64), columns[0], key=key, copies=columns[1], interpolation=interpolation
        ).rows()[0]
    numbers, horizontal, vertical = drawn
    return View(
        window_px=tuple(numbers[:4]),  # type: ignore[arg-type]
        resize_px=tuple(numbers[4:6]),  # type: ignore[arg-type]
        crop_px=tuple(numbers[6:]),  # type: ignore[arg-type]
        flip_horizontal=horizontal,
        flip_vertical=vertical,
        interpolation=interpolation,
    )


def _draw_with_numpy(
    ops: Sequence[Op],
    sizes_px: Ints,
    indices: Ints,
    copies: Ints,
    *,
    key: Key,
    interpolation: Interpolation = Interpolation.BILINEAR,
) -> Views:
    """The same without the native core, bit for bit; views.cpp repeats every line of it."""
    count = len(sizes_px)
    frame = _Frame(
        window=np.concatenate([np.zeros((count, 2), np.int64), sizes_px], axis=1),
        resize=None,
        crop=np.concatenate([np.zeros((count, 2), np.int64), sizes_px], axis=1),
    )
    flips = {"horizontal": np.zeros(count, np.bool_), "vertical": np.zeros(count, np.bool_)}
    draws = _Draws(indices=indices, copies=copies, key=key.words())
    for number, op in enumerate(ops):
        match op:
            case RandomResizedCrop():
                frame = _random_resized_crop(op, frame, draws, number)
            case Resize():
                frame = frame.resized(_resized_sizes(op, frame.sizes()))
            case CenterCrop():
                frame = frame.cropped(_center_box(op, frame.sizes()))
            case RandomCrop():
                frame = frame.cropped(_random_box(op, frame.sizes(), draws, number))
            case Flip():
                flips[op.axis] ^= uniform(draws.words(number, 0)[0]) < op.p
    frame = frame.folded()
    return Views(
        window_px=frame.window.astype(np.int32),
        resize_px=(frame.sizes_of_window() if frame.resize is None else frame.resize).astype(np.int32),
        crop_px=frame.crop.astype(np.int32),
        flip_horizontal=flips["horizontal"],
        flip_vertical=flips["vertical"],
        interpolation=interpolation,
    )


@dataclass(frozen=True)
class _Draws:
    """Random words for N samples, numbered by operation and by draw within it."""

    indices: Ints
    copies: Ints
    key: tuple[int, int]

    def words(self, op: int, draw: npt.ArrayLike) -> list[Words]:
        return philox4x32((self.indices, self.copies, draw, op), self.key)

    def at(self, rows: npt.NDArray[np.intp]) -> _Draws:
        return replace(self, indices=self.indices[rows], copies=self.copies[rows])


@dataclass(frozen=True)
class _Frame:
    """Views under construction: a window in the source, an optional resize, a crop of the result."""

    window: Ints
    resize: Ints | None
    crop: Ints

    def sizes(self) -> Ints:
        """(N, 2): width and height as the next operation sees them."""
        return self.crop[:, 2:] - self.crop[:, :2]

    def sizes_of_window(self) -> Ints:
        return self.window[:, 2:] - self.window[:, :2]

    def resized(self, sizes: Ints) -> _Frame:
        folded = self.folded()
        return _Frame(folded.window, sizes, np.concatenate([np.zeros_like(sizes), sizes], axis=1))

    def cropped(self, box: Ints) -> _Frame:
        return replace(self, crop=box + np.tile(self.crop[:, :2], 2))

    def folded(self) -> _Frame:
        """Moves crops of unresized images into the window, so that only the window is decoded."""
        if self.resize is not None:
            return self
        origin = np.tile(self.window[:, :2], 2)
        size = np.tile(self.sizes_of_window(), 2)
        inside = np.clip(self.crop, 0, size)
        crop = self.crop - np.tile(inside[:, :2], 2)
        return _Frame(origin + inside, None, crop)


def _random_resized_crop(op: RandomResizedCrop, frame: _Frame, draws: _Draws, number: int) -> _Frame:
    frame = frame.cropped(_random_window(op, frame.sizes(), draws, number))
    height, width = op.size
    return frame.resized(np.tile(np.array([[width, height]], np.int64), (len(frame.window), 1)))


def _random_window(op: RandomResizedCrop, sizes: Ints, draws: _Draws, number: int) -> Ints:
    """RandomResizedCrop's window: up to ten tries, then the central fallback.

    Source: torchvision.transforms.RandomResizedCrop.get_params.
    """
    fits, boxes = _try_window(op, sizes, draws.words(number, 0))
    open_rows = np.flatnonzero(~fits)
    for attempt in range(1, _TRIES):
        if len(open_rows) == 0:
            return boxes
        fits, box = _try_window(op, sizes[open_rows], draws.at(open_rows).words(number, attempt))
        boxes[open_rows[fits]] = box[fits]
        open_rows = open_rows[~fits]
    boxes[open_rows] = _fallback_window(op, sizes[open_rows])
    return boxes


def _try_window(op: RandomResizedCrop, sizes: Ints, words: list[Words]) -> tuple[npt.NDArray[np.bool_], Ints]:
    width, height = sizes[:, 0], sizes[:, 1]
    area = width * height * (op.scale[0] + uniform(words[0]) * (op.scale[1] - op.scale[0]))
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    aspect = portable_exp(low + uniform(words[1]) * (high - low))
    w = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    h = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    left = np.floor(uniform(words[2]) * (width - w + 1)).astype(np.int64)
    top = np.floor(uniform(words[3]) * (height - h + 1)).astype(np.int64)
    return fits, np.stack([left, top, left + w, top + h], axis=1)


def _fallback_window(op: RandomResizedCrop, sizes: Ints) -> Ints:
    width, height = sizes[:, 0], sizes[:, 1]
    ratio = width / height
    low, high = min(op.ratio), max(op.ratio)
    w = np.where(ratio > high, np.rint(height * high).astype(np.int64), width)
    h = np.where(ratio < low, np.rint(width / low).astype(np.int64), height)
    left, top = (width - w) // 2, (height - h) // 2
    return np.stack([left, top, left + w, top + h], axis=1)


def _resized_sizes(op: Resize, sizes: Ints) -> Ints:
    """Output (width, height) of a resize."""
    resized = [op.size_from((height, width)) for width, height in sizes.tolist()]
    return np.array(resized, np.int64).reshape(-1, 2)[:, ::-1]


def _center_box(op: CenterCrop, sizes: Ints) -> Ints:
    """The middle box, outside the image where that is smaller.  Source: torchvision's center_crop."""
    crop = np.array([[op.size[1], op.size[0]]], np.int64)
    before = np.maximum(crop - sizes, 0) // 2  # columns and rows of black added left and above
    padded = np.maximum(sizes, crop)
    start = np.rint((padded - crop) / 2.0).astype(np.int64) - before
    return np.concatenate([start, start + crop], axis=1)


def _random_box(op: RandomCrop, sizes: Ints, draws: _Draws, number: int) -> Ints:
    """A box of the padded image, in pixels of the image itself.  Source: torchvision.transforms.RandomCrop."""
    crop = np.array([[op.size[1], op.size[0]]], np.int64)
    before, after = np.array(op.padding, np.int64).reshape(2, 1, 2)
    padded = sizes + before + after
    if op.pad_if_needed:
        missing = np.maximum(crop - padded, 0)
        before, padded = before + missing, padded + 2 * missing
    if (padded < crop).any():
        width, height = padded[(padded < crop).any(axis=1)][0].tolist()
        raise ValueError(f"Required crop size {op.size} is larger than input image size {(height, width)}")
    fraction = np.stack([uniform(word) for word in draws.words(number, 0)[:2]], axis=1)
    start = np.floor(fraction * (padded - crop + 1)).astype(np.int64) - before
    return np.concatenate([start, start + crop], axis=1)
