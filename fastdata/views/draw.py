"""Draws views: the window of each image, its resize, crop and flips.

Views are drawn for many samples at once by a counter-based generator keyed by (seed, epoch, sample index), so a view
does not depend on the backend, on the number of threads, or on which samples were drawn before it.
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
from fastdata.tables import Windows
from fastdata.views.philox import Key, Words, philox4x32, portable_exp, uniform
from fastdata.views.plan import (
    CenterCrop,
    Flip,
    Op,
    Pad,
    RandomCrop,
    RandomCropOrPad,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Resizing,
)
from fastdata.views.resampling import BLACK, Interpolation, Outside
from fastdata.views.to_native import geometry
from fastdata.views.view import View, view_of

__all__ = ["ImageTooSmall", "draw_view", "draw_views"]

Ints: TypeAlias = npt.NDArray[np.signedinteger[Any]]

_TRIES = 10  # torchvision's RandomResizedCrop gives up after ten windows that do not fit


class ImageTooSmall(ValueError):
    """Raised if a RandomCrop is larger than the image; torchvision raises a ValueError of the same text."""


def draw_views(
    ops: Sequence[Op],
    sizes_px: Ints,
    indices: Ints,
    *,
    key: Key,
    occurrences: Ints | int = 0,
    given: Ints | None = None,
) -> Windows:
    """Draws the views of N samples.

    Args:
        ops: the plan's geometry.
        sizes_px: int64, (N, 2): width and height of each source image.
        indices: int64, (N,): the samples' positions in the dataset.
        key: seed and epoch.
        occurrences: int64, (N,) or 0: tells apart several views of one sample in one epoch.
        given: int64, (N, operations, GIVEN_NUMBERS): numbers that were drawn elsewhere, for the native core only.

    Returns:
        N views.

    Raises:
        ValueError: a RandomCrop is larger than an image, as in torchvision.
    """
    columns = np.broadcast_to(indices, len(sizes_px)), np.broadcast_to(occurrences, len(sizes_px))
    core = native.available()
    if core is None:
        assert given is None
        return _draw_with_numpy(ops, sizes_px, *columns, key=key)
    given = None if given is None else np.ascontiguousarray(given, np.int64)
    drawn, failed = core.draw_views(sizes_px, *columns, geometry(ops, key), given)
    if failed >= 0:  # says in torchvision's words why it cannot be drawn
        _draw_with_numpy(
            ops, sizes_px[failed : failed + 1], *(column[failed : failed + 1] for column in columns), key=key
        )
    return drawn


_one_view = native.OneView()


@lru_cache(maxsize=32)
def _geometry(ops: tuple[Op, ...], key: Key) -> native.Geometry:
    return geometry(ops, key)


def draw_view(
    ops: tuple[Op, ...], size_px: tuple[int, int], index: int, occurrence: int, *, key: Key, given: Ints | None = None
) -> View:
    """Draws the view of one sample, as `draw_views` does; `size_px` is the image's (width, height).

    Raises:
        ValueError: a RandomCrop is larger than the image, as in torchvision.
    """
    core = native.available()
    drawn = _one_view.draw(core, size_px, index, occurrence, _geometry(ops, key), given) if core is not None else None
    if drawn is None:
        sizes, columns = np.array([size_px], np.int64), (np.array([index], np.int64), np.array([occurrence], np.int64))
        drawn = draw_views(ops, sizes, columns[0], key=key, occurrences=columns[1], given=given)
    return view_of(drawn, 0)


def _draw_with_numpy(ops: Sequence[Op], sizes_px: Ints, indices: Ints, occurrences: Ints, *, key: Key) -> Windows:
    """Draws views without the native core, with identical bits; views.cpp repeats every line of it."""
    frame = _Frame.whole(sizes_px)
    draws = _ViewDraws(indices=indices, occurrences=occurrences, key=key.words())
    for number, op in enumerate(ops):
        match op:
            case RandomResizedCrop():
                window = frame.cropped(_random_window(op, frame.sizes(), draws, number))
                width_height = np.array([op.size[::-1]], np.int64)
                frame = window.resized(np.tile(width_height, (len(sizes_px), 1)), draws.filters(op, number))
            case Resize():
                frame = frame.resized(_resized_sizes(op, frame.sizes()), draws.filters(op, number))
            case ResizeKeepRatio():
                sizes = _sizes_keeping_ratio(op, frame.sizes(), draws.words(number, 0))
                frame = frame.resized(sizes, draws.filters(op, number))
            case Flip():
                frame = frame.flipped(op.axis, uniform(draws.words(number, 0)[0]) < op.p)
            case _:
                frame = frame.cropped(_box(op, frame.sizes(), draws, number), op.outside)
    return frame.views()


@dataclass(frozen=True)
class _ViewDraws:
    """Random words for N samples, numbered by operation and by draw within it."""

    indices: Ints
    occurrences: Ints
    key: tuple[int, int]

    def words(self, op: int, draw: npt.ArrayLike) -> list[Words]:
        return philox4x32((self.indices, self.occurrences, draw, op), self.key)

    def at(self, rows: npt.NDArray[np.intp]) -> _ViewDraws:
        return replace(self, indices=self.indices[rows], occurrences=self.occurrences[rows])

    def filters(self, op: Resizing, number: int) -> Ints:
        """Returns one of the step's filters for each sample: (N,)."""
        known = np.array([each.value for each in op.filters], np.int64)
        if len(known) == 1:
            return np.repeat(known, len(self.indices))
        return known[(uniform(self.words(number, _TRIES)[0]) * len(known)).astype(np.int64)]


@dataclass(frozen=True)
class _Frame:
    """Views under construction: a window in the source, an optional resize, a crop of the result, and flips.

    Attributes:
        window: (N, 4), box in the source.
        window_flips: bool, (N, 2), flips before the resize.
        resize: (N, 2), width and height after the resize; None if there is none.
        filters: (N,), numbers of the resize's filters.
        crop: (N, 4), box in the resized window.
        flips: bool, (N, 2), final flips: left to right, top to bottom.
        outside: (N, 4), numbers of `Outside`, the fill of pixels outside the image.
    """

    window: Ints
    window_flips: npt.NDArray[np.bool_]
    resize: Ints | None
    filters: Ints
    crop: Ints
    flips: npt.NDArray[np.bool_]
    outside: Ints

    @classmethod
    def whole(cls, sizes_px: Ints) -> _Frame:
        """Returns views of whole images, of sizes (N, 2): width and height."""
        count = len(sizes_px)
        whole = np.concatenate([np.zeros((count, 2), np.int64), sizes_px], axis=1)
        no_flips = np.zeros((count, 2), np.bool_)
        bilinear = np.full(count, Interpolation.BILINEAR.value, np.int64)
        return cls(whole, no_flips, None, bilinear, whole, no_flips, np.zeros((count, 4), np.int64))

    def views(self) -> Windows:
        folded = self.folded()
        resize = folded.sizes_of_window() if folded.resize is None else folded.resize
        flips = np.concatenate([folded.flips, folded.window_flips], axis=1)
        columns: Any = folded.window, resize, folded.crop, flips, folded.filters, folded.outside
        return Windows(*columns).contiguous()

    def sizes(self) -> Ints:
        """(N, 2): width and height of the image for the next operation."""
        return self.crop[:, 2:] - self.crop[:, :2]

    def sizes_of_window(self) -> Ints:
        return self.window[:, 2:] - self.window[:, :2]

    def resized(self, sizes: Ints, filters: Ints) -> _Frame:
        folded = self.folded()
        return replace(
            folded,
            window_flips=self.flips,
            resize=sizes,
            filters=filters,
            crop=np.concatenate([np.zeros_like(sizes), sizes], axis=1),
            flips=np.zeros_like(self.flips),
        )

    def flipped(self, axis: str, chosen: Any) -> _Frame:
        column = np.array([axis == "horizontal", axis == "vertical"])
        return replace(self, flips=self.flips ^ (chosen[:, np.newaxis] & column))

    def cropped(self, box: Ints, outside: Outside = BLACK) -> _Frame:
        """Crops to a box (N, 4) in pixels of the current image, which may be mirrored."""
        sizes = self.sizes()
        reaches_out = np.any(box[:, :2] < 0, axis=1) | np.any(box[:, 2:] > sizes, axis=1)
        mirrored = np.concatenate([sizes - box[:, 2:], sizes - box[:, :2]], axis=1)
        box = np.where(np.tile(self.flips, 2), mirrored, box)
        padding = np.where(reaches_out[:, np.newaxis], np.array(outside.numbers()), self.outside)
        return replace(self, crop=box + np.tile(self.crop[:, :2], 2), outside=padding)

    def folded(self) -> _Frame:
        """Moves crops of unresized images into the window, so that only the window is decoded.

        If the padding repeats pixels of the image, the window stays as it is.
        """
        if self.resize is not None:
            return self
        origin = np.tile(self.window[:, :2], 2)
        size = np.tile(self.sizes_of_window(), 2)
        inside = np.clip(self.crop, 0, size)
        crop = self.crop - np.tile(inside[:, :2], 2)
        stays = self.outside[:, :1] != 0
        return replace(
            self, window=np.where(stays, self.window, origin + inside), crop=np.where(stays, self.crop, crop)
        )


def _box(op: CenterCrop | RandomCrop | RandomCropOrPad | Pad, sizes: Ints, draws: _ViewDraws, number: int) -> Ints:
    """(N, 4): box of a crop or padding, in pixels of the image."""
    match op:
        case CenterCrop():
            return _center_box(op, sizes)
        case RandomCrop():
            return _random_box(op, sizes, draws, number)
        case RandomCropOrPad():
            return _box_or_pad(op, sizes, draws.words(number, 0))
        case Pad():
            left, top, right, bottom = op.padding
            more = np.array([[right, bottom]], np.int64)
            return np.concatenate([np.full_like(sizes, -1) * [left, top], sizes + more], axis=1)


def _random_window(op: RandomResizedCrop, sizes: Ints, draws: _ViewDraws, number: int) -> Ints:
    """Draws RandomResizedCrop's window: up to ten tries, then the central fallback.

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
    """(N, 2): width and height after a resize."""
    resized = [op.size_from((height, width)) for width, height in sizes.tolist()]
    return np.array(resized, np.int64).reshape(-1, 2)[:, ::-1]


def _center_box(op: CenterCrop, sizes: Ints) -> Ints:
    """(N, 4): centred box, which reaches outside images that are smaller.  Source: torchvision's center_crop."""
    crop = np.array([[op.size[1], op.size[0]]], np.int64)
    before = np.maximum(crop - sizes, 0) // 2  # columns and rows added left and above
    padded = np.maximum(sizes, crop)
    start = np.rint((padded - crop) / 2.0).astype(np.int64) - before
    return np.concatenate([start, start + crop], axis=1)


def _random_box(op: RandomCrop, sizes: Ints, draws: _ViewDraws, number: int) -> Ints:
    """Draws a box of the padded image, in pixels of the image itself.  Source: torchvision.transforms.RandomCrop."""
    crop = np.array([[op.size[1], op.size[0]]], np.int64)
    before, after = np.array(op.padding, np.int64).reshape(2, 1, 2)
    padded = sizes + before + after
    if op.pad_if_needed:
        missing = np.maximum(crop - padded, 0)
        before, padded = before + missing, padded + 2 * missing
    if (padded < crop).any():
        width, height = padded[(padded < crop).any(axis=1)][0].tolist()
        raise ImageTooSmall(f"Required crop size {op.size} is larger than input image size {(height, width)}")
    fraction = np.stack([uniform(word) for word in draws.words(number, 0)[:2]], axis=1)
    start = np.floor(fraction * (padded - crop + 1)).astype(np.int64) - before
    return np.concatenate([start, start + crop], axis=1)


def _box_or_pad(op: RandomCropOrPad, sizes: Ints, words: list[Words]) -> Ints:
    """Draws a box that lies in a larger image, or contains a smaller one.  Source: timm's RandomCropOrPad."""
    crop = np.array([[op.size[1], op.size[0]]], np.int64)
    more = np.abs(sizes - crop)
    start = (np.stack([uniform(word) for word in words[:2]], axis=1) * (more + 1)).astype(np.int64)
    start = np.where(sizes < crop, -start, start)
    return np.concatenate([start, start + crop], axis=1)


def _sizes_keeping_ratio(op: ResizeKeepRatio, sizes: Ints, words: list[Words]) -> Ints:
    """Draws (N, 2): width and height after a resize.  Source: timm's ResizeKeepRatio."""
    width, height = sizes[:, 0].astype(np.float64), sizes[:, 1].astype(np.float64)
    tall, wide = height / op.size[0], width / op.size[1]
    ratio = np.maximum(tall, wide) * op.longest + np.minimum(tall, wide) * (1.0 - op.longest)
    scale = op.scale[0] + uniform(words[1]) * (op.scale[1] - op.scale[0])
    scale = 1.0 / np.sqrt(scale) if op.scale_is_of_area else scale
    factor = np.where(uniform(words[0]) < op.scale_chance, scale, 1.0)
    low, high = math.log(op.ratio[0]), math.log(op.ratio[1])
    aspect = np.sqrt(portable_exp(low + uniform(words[3]) * (high - low)))
    aspect = np.where(uniform(words[2]) < op.ratio_chance, aspect, 1.0)
    return np.stack(
        [np.rint(width * (factor * aspect) / ratio), np.rint(height * (factor / aspect) / ratio)], axis=1
    ).astype(np.int64)
