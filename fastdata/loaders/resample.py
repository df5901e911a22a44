"""Resizes with the installed Pillow's bits: by the native core if it is proven to give them, else by Pillow."""

from __future__ import annotations

from functools import cache

import numpy as np

from fastdata import limits, native
from fastdata.loaders import pillow
from fastdata.loaders.backend import Pixels
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, windows_of

__all__ = ["exact_core", "has_tensors_bits", "options_for", "resize_window", "see"]


def exact_core() -> tuple[native.Core, native.PassOrder]:
    """Returns the native core and the order of passes in which it resizes exactly as the installed Pillow.

    Raises:
        NativeMissing: there is no core, or it agrees with this Pillow in neither order.
    """
    core, order = native.load(), _exact_order()
    if order is None:
        raise native.NativeMissing(f"its resize differs from that of {pillow.version()}")
    return core, order


@cache
def _exact_order() -> native.PassOrder | None:
    """Returns the order of passes in which the core gives Pillow's bits; None if neither does.

    Pillow 13 resizes vertically first if the height shrinks more; older versions resize horizontally first.  Both
    orders are tried on two small images.
    """
    core = native.available()
    if core is None:
        return None
    sizes = ((9, 90), (90, 60))
    return next((order for order in native.PassOrder if all(_agrees(core, order, size) for size in sizes)), None)


def options_for(order: native.PassOrder, fidelity: str) -> native.Options:
    """Returns the core's options for a fidelity, with Pillow's limit of pixels and ours of encoded bytes."""
    return native.Options(
        pass_order=order,
        fast=fidelity == "fast",
        max_pixels=pillow.most_pixels(),
        max_file_bytes=limits.MAX_ENCODED_BYTES,
    )


def resize_window(pixels: Pixels, stride_px: int, view: View, out: Pixels, *, pixel_bytes: int = 4) -> None:
    """Resizes, crops and flips a decoded window into `out`, with Pillow's arithmetic.

    Args:
        pixels: flat uint8 pixels, beginning at the window's first pixel.
        stride_px: pixels from one row to the next.
        view: the view; its window gives the width and height at `pixels`.
        out: uint8 (height, width, 3), contiguous.
        pixel_bytes: 3 for RGB, 4 for RGBX.
    """
    core, order = native.available(), _exact_order()
    if core is not None and order is not None:
        options, seen = options_for(order, "exact"), windows_of([view])
        if core.resize(pixels, stride_px, seen, out, options=options, pixel_bytes=pixel_bytes):
            return
    pillow.resize_window(pixels, stride_px, view, out, pixel_bytes=pixel_bytes)


def see(pixels: Pixels, view: View) -> Pixels:
    """Applies a view to contiguous RGB pixels (height, width, 3); returns RGB pixels in new memory."""
    left, top, *_ = view.window_px
    if view.is_beside:
        return np.array(pillow.apply_view(pillow.from_pixels(pixels), view))
    width = pixels.shape[1]
    out = np.empty((*view.size, 3), np.uint8)
    resize_window(pixels.reshape(-1)[3 * (top * width + left) :], width, view, out, pixel_bytes=3)
    return out


@cache
def has_tensors_bits() -> bool:
    """True if the core resizes uint8 tensors with the installed torch's and torchvision's bits, tried on small images.

    Depending on the processor, torchvision has torch resize bytes, or floats that are then rounded.
    """
    core, order = native.available(), _exact_order()
    if core is None or order is None:
        return False
    cases = [((9, 90), Interpolation.TENSOR_BILINEAR), ((90, 60), Interpolation.TENSOR_BILINEAR)]
    cases += [(size, Interpolation.TENSOR_BICUBIC) for size, _ in cases]
    try:
        return all(_agrees(core, order, *case) for case in cases)
    except ImportError:  # no torchvision, whose filters these are
        return False


def _agrees(
    core: native.Core,
    order: native.PassOrder,
    size: tuple[int, int],
    filter_: Interpolation = Interpolation.BILINEAR,
) -> bool:
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, height * width * 4, dtype=np.uint8)
    view = View(
        window_px=(0, 0, width, height),
        resize_px=(12, 20),
        crop_px=(0, 0, 12, 20),
        flip_horizontal=False,
        flip_vertical=False,
        interpolation=filter_,
    )
    ours, theirs = np.empty((20, 12, 3), np.uint8), np.empty((20, 12, 3), np.uint8)
    core.resize(pixels, width, windows_of([view]), ours, options=options_for(order, "exact"))
    pillow.resize_window(pixels, width, view, theirs)
    return bool((ours == theirs).all())
