"""The native core without a loader around it, and what Pillow makes of the same view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from fastdata import native
from fastdata.loaders import create_backend, pillow, resample
from fastdata.loaders.native import NativeBackend
from fastdata.tables import FileBatch, Format
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan, Resize
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, Views

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
    results = core.decode(
        np.array([np.frombuffer(data or b"\0", np.uint8).ctypes.data], np.uint64),
        np.array([len(data)], np.int64),
        Views.of([view]).columns,
        np.array([out.ctypes.data], np.uint64),
        format=format_,
        options=resample.options_for(order, fidelity),
        indexes=indexes,
    )
    return out, results


def reference(data: bytes, view: View) -> np.ndarray:
    """The same view by Pillow."""
    out = np.empty((*view.size, 3), np.uint8)
    pillow.decode_view(data, view, out)
    return out


def file_loader(op: Any = TINY, *, pool: native.Pool | None = None) -> native.BatchLoader:
    """Reads files and does one thing with each."""
    plan = Plan(ops=(op,), output=Output.UINT8)
    backend = create_backend("native", fidelity="exact")
    assert isinstance(backend, NativeBackend)
    return backend.core_loader(plan, Key(seed=1, epoch=1), format=Format(), pool=pool)


def load(paths: list[str], *, pool: native.Pool | None = None, **ranges: Any) -> native.Loaded:
    """Files, or ranges of them, as 8 × 8 pixels."""
    out = np.zeros((len(paths), 8, 8, 3), np.uint8)
    return file_loader(pool=pool).load(file_batch(paths, out, **ranges))


def file_batch(paths: Sequence[str], out: np.ndarray, **columns: Any) -> FileBatch:
    """Files, or ranges of them, to be stored in `out` by a loader that does this itself."""
    ranges = {name: None if values is None else np.array(values) for name, values in columns.items()}
    given: dict[str, Any] = {"indices": range(len(paths)), "occurrences": [0] * len(paths), **ranges}
    return FileBatch(paths=paths, out=out.ctypes.data, store=_not_called, **given)


def _not_called(row: int, pixels: np.ndarray) -> None:
    raise AssertionError("the core stores pixels itself")
