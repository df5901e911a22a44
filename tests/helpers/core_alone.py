"""The native core without a loader around it, and what Pillow makes of the same view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastdata import native
from fastdata.loaders import pillow, resample
from fastdata.tables import Format, Recipes, addresses
from fastdata.views.philox import Key
from fastdata.views.plan import Resize
from fastdata.views.resampling import Interpolation
from fastdata.views.to_native import geometry
from fastdata.views.view import View, windows_of

TINY = Resize(size=(8, 8), filters=(Interpolation.BILINEAR,))


def view_of(window: tuple[int, int, int, int], resize: tuple[int, int] | None = None, **changes: object) -> View:
    """A view of a window, resized to (width, height) or left as large as it is."""
    resize = resize or (window[2] - window[0], window[3] - window[1])
    options = {
        "crop_px": (0, 0, *resize),
        "flip_horizontal": False,
        "flip_vertical": False,
        "interpolation": Interpolation.BILINEAR,
    }
    return View(window_px=window, resize_px=resize, **(options | changes))  # type: ignore[arg-type]


@st.composite
def windows(draw: st.DrawFn, width: int, height: int) -> tuple[int, int, int, int]:
    """Any window of an image of this size."""
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return left, top, draw(st.integers(left + 1, width)), draw(st.integers(top + 1, height))


def decode(
    data: bytes,
    view: View,
    format_: Format | None = None,
    fidelity: str = "exact",
    indexes: native.JpegIndexes | None = None,
) -> np.ndarray:
    """One image by the core alone; fails if the core hands it back."""
    out, results = _decode(data, view, format_ or Format(), fidelity, indexes)
    assert results.statuses[0] == native.Status.OK, results.reason(0)
    return out


def decoded(data: bytes, view: View, *, indexes: native.JpegIndexes | None = None) -> np.ndarray | None:
    """One image by the core alone; None if the core hands it back."""
    out, results = _decode(data, view, Format(), "exact", indexes)
    return out if results.statuses[0] == native.Status.OK else None


def _decode(
    data: bytes, view: View, format_: Format, fidelity: str, indexes: native.JpegIndexes | None
) -> tuple[np.ndarray, native.Results]:
    core, order = resample.exact_core()
    dtype = np.uint8 if format_.table is None else format_.table.dtype
    out = np.zeros((3, *view.size) if format_.channels_first else (*view.size, 3), dtype)
    recipes = Recipes(data=[data], windows=windows_of([view]), format=format_, out=addresses(out.ctypes.data, 1, 1))
    results = core.fill(recipes, options=resample.options_for(order, fidelity), indexes=indexes)
    return out, results


def reference(data: bytes, view: View) -> np.ndarray:
    """The same view by Pillow."""
    out = np.empty((*view.size, 3), np.uint8)
    pillow.decode_view(data, view, out)
    return out


def fill(recipes: Recipes, op: Any = TINY, **options: Any) -> native.Results:
    """Fills by the core alone, which draws views by one step."""
    core, order = resample.exact_core()
    drawing = {"geometry": geometry((op,), Key(seed=1, epoch=1)), "size": op.size}
    return core.fill(recipes, options=resample.options_for(order, "exact"), **drawing, **options)


def load(paths: list[str], *, pool: native.Pool | None = None, **ranges: Any) -> native.Results:
    """Files, or ranges of them, as 8 × 8 pixels."""
    out = np.zeros((len(paths), 8, 8, 3), np.uint8)
    return fill(of_files(paths, out, **ranges), pool=pool)


def of_files(paths: Sequence[str], out: np.ndarray, **columns: Any) -> Recipes:
    """Files, or ranges of them, to be stored in `out`, with views that are drawn."""
    ranges = {name: None if values is None else np.array(values) for name, values in columns.items()}
    given: dict[str, Any] = {"indices": range(len(paths)), "occurrences": [0] * len(paths), **ranges}
    return Recipes(paths=paths, format=Format(), out=addresses(out.ctypes.data, out.strides[0], len(paths)), **given)
