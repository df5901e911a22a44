"""Calls of the native core for one image, in memory that each thread reuses: new columns take longer than the work."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import CRecipes
from fastdata.native.core import Core
from fastdata.native.describe import Geometry, Options, Results, format_to_c, windows_to_c
from fastdata.tables import Format, Windows

__all__ = ["OneImage", "OneView"]

Ints: TypeAlias = npt.NDArray[np.int64]
Pixels: TypeAlias = npt.NDArray[np.uint8]


class OneView(threading.local):
    """Draws one view at a time, in memory that each thread reuses, so that a call per image is cheap."""

    def __init__(self) -> None:
        self._given, self._drawn = np.zeros(4, np.int64), Windows.empty(1)
        given, self._views = self._given.ctypes.data, windows_to_c(self._drawn)
        self._arguments = (given, given + 16, given + 24)

    def draw(
        self,
        core: Core,
        size_px: tuple[int, int],
        index: int,
        occurrence: int,
        geometry: Geometry,
        given: Ints | None = None,
    ) -> Windows | None:
        """Draws a view, valid until this thread's next call; None if the image is smaller than a random crop."""
        self._given[:] = (*size_px, index, occurrence)
        views, numbers = ctypes.addressof(self._views), None if given is None else given.ctypes.data
        row = core.library.fd_draw_views(1, *self._arguments, numbers, geometry.pointer, views)
        if row < -1:
            raise ValueError(f"an image of {size_px[0]} × {size_px[1]} pixels, or its geometry, makes no sense")
        return self._drawn if row < 0 else None


class OneImage(threading.local):
    """Decodes one image at a time, with columns that each thread reuses: new ones take longer than a small image."""

    def __init__(self) -> None:
        self._data, self._data_bytes, self._out = ctypes.c_char_p(), ctypes.c_int64(), ctypes.c_void_p()
        self._windows, self._results = Windows.empty(1), Results.empty(1)
        self._views = windows_to_c(self._windows)
        self._recipes = CRecipes(count=1, views=ctypes.addressof(self._views), out=ctypes.addressof(self._out))
        self._recipes.data = ctypes.addressof(self._data)
        self._recipes.data_bytes = ctypes.addressof(self._data_bytes)
        self._recipes.statuses = self._results.statuses.ctypes.data
        self._recipes.messages = ctypes.addressof(self._results.messages)

    def decode(
        self,
        core: Core,
        data: bytes,
        window: Sequence[Any],
        out: Pixels,
        *,
        format: Format,  # noqa: A002 - the C interface's word
        options: Options,
    ) -> Results:
        """Decodes one image; see `Core.fill`.

        Args:
            core: the core.
            data: the encoded bytes.
            window: the values of one row of `Windows`.
            out: receives the view's pixels.
            format: format of the stored pixels.
            options: options of decoding.

        Returns:
            The outcome, valid until this thread's next call.
        """
        columns: Any = self._windows
        for column, values in zip(columns, window, strict=True):
            column[0] = values
        self._data.value, self._data_bytes.value, self._out.value = data, len(data), out.ctypes.data
        self._results.statuses[0] = 0
        core.library.fd_fill(
            None,
            ctypes.byref(self._recipes),
            None,
            ctypes.byref(format_to_c(format)),
            ctypes.byref(options.to_c()),
        )
        self._data.value = None
        return self._results
