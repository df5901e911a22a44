"""The native core, loaded with ctypes: from compressed bytes to the batch without the interpreter.

`fastdata_native.h` is its specification; this file repeats the structs and nothing else knows of them.  The package
works without the core: `load` then says why it is missing.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.plan import Interpolation

if TYPE_CHECKING:
    from fastdata.views import View, Views

__all__ = [
    "Core",
    "Files",
    "Format",
    "NativeMissing",
    "Options",
    "PassOrder",
    "Pool",
    "Results",
    "Status",
    "available",
    "load",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]

_ABI_VERSION = 2
_MESSAGE_BYTES = 128
_NO_LIMIT = (1 << 63) - 1


class NativeMissing(Exception):
    """The core was not built or cannot be loaded; the text says why."""


class Status(IntEnum):
    """What became of one image; `fd_status` in the header."""

    OK = 0
    UNSUPPORTED = 1
    CORRUPT = 2
    LIMIT = 3
    UNREADABLE = 4
    BAD_REQUEST = 5
    OUT_OF_MEMORY = 6


class PassOrder(IntEnum):
    """The order of a resize's two passes; `fd_pass_order` in the header."""

    HORIZONTAL_FIRST = 0
    SHRINK_FIRST = 1


class _Format(ctypes.Structure):
    _fields_ = [("layout", ctypes.c_int32), ("element", ctypes.c_int32), ("table", ctypes.c_void_p)]


class _Options(ctypes.Structure):
    _fields_ = [
        ("filter", ctypes.c_int32),
        ("pass_order", ctypes.c_int32),
        ("fast", ctypes.c_int32),
        ("max_scans", ctypes.c_int32),
        ("max_pixels", ctypes.c_int64),
        ("max_memory_bytes", ctypes.c_int64),
    ]


class _Images(ctypes.Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        *(
            (name, ctypes.c_void_p)
            for name in ("data", "data_bytes", "windows_px", "resizes_px", "crops_px", "flips", "out")
        ),
        ("statuses", ctypes.c_void_p),
        ("messages", ctypes.c_void_p),
    ]


@dataclass(frozen=True, kw_only=True)
class Format:
    """How finished pixels are stored.

    Attributes:
        channels_first: (3, height, width) instead of (height, width, 3).
        table: the element of every (channel, level), shape (3, 256), 16 or 32 bits wide; None for uint8 pixels.
    """

    channels_first: bool = False
    table: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        table = self.table
        if table is not None and (table.shape != (3, 256) or not table.flags.c_contiguous):
            raise ValueError(f"a table has shape (3, 256) and is contiguous, not {table.shape}")
        if table is not None and table.itemsize not in (2, 4):
            raise ValueError(f"elements have 16 or 32 bits, not {8 * table.itemsize}")

    def to_c(self) -> _Format:
        """The struct; valid as long as this object lives."""
        if self.table is None:
            return _Format(int(self.channels_first), 1, None)
        return _Format(int(self.channels_first), self.table.itemsize, self.table.ctypes.data)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How images are decoded and resized.

    Attributes:
        interpolation: Pillow's filter.
        pass_order: as the installed Pillow has it.
        fast: scaled DCT where it fits, and cheap chroma upsampling.
        max_pixels: of a whole image; None for no limit.
        max_scans: of a progressive JPEG.  Real files have about ten.
        max_memory_bytes: libjpeg's own, for one image.
    """

    interpolation: Interpolation
    pass_order: PassOrder
    fast: bool = False
    max_pixels: int | None = None
    max_scans: int = 100
    max_memory_bytes: int = 4 << 30

    def to_c(self) -> _Options:
        """The struct."""
        limit = _NO_LIMIT if self.max_pixels is None else self.max_pixels
        return _Options(
            self.interpolation.value, self.pass_order, self.fast, self.max_scans, limit, self.max_memory_bytes
        )


@dataclass(frozen=True)
class Results:
    """What became of N images.

    Attributes:
        statuses: int32, (N,), values of `Status`.
    """

    statuses: npt.NDArray[np.int32]
    _messages: ctypes.Array[ctypes.c_char]

    def reason(self, row: int) -> str:
        """Why an image failed, in words."""
        text = ctypes.string_at(ctypes.addressof(self._messages) + row * _MESSAGE_BYTES)
        status = Status(int(self.statuses[row]))
        return text.decode("utf-8", "replace") or status.name.lower().replace("_", " ")

    @classmethod
    def empty(cls, count: int) -> Results:
        """Room for N results."""
        return cls(np.zeros(count, np.int32), ctypes.create_string_buffer(max(1, count * _MESSAGE_BYTES)))


class Pool:
    """Threads of the core, started when first used; `close` joins them, and so does dropping the pool."""

    def __init__(self, core: Core, threads: int) -> None:
        self.handle = core.library.fd_pool_create(threads)
        if not self.handle:
            raise MemoryError("no memory for the core's thread pool")
        self.close = weakref.finalize(self, core.library.fd_pool_destroy, self.handle)


class Files:
    """The bytes of N files, held by the core until this object is dropped.

    Attributes:
        sizes_px: int32, (N, 2): width and height where the status is OK.
        results: OK, UNREADABLE, or UNSUPPORTED for a readable file that is not a JPEG.
    """

    def __init__(self, core: Core, handle: int, sizes_px: npt.NDArray[np.int32], results: Results) -> None:
        self.handle, self.sizes_px, self.results = handle, sizes_px, results
        count = len(results.statuses)
        self.data = _array_at(core.library.fd_files_data(handle), np.uint64, count)
        self.data_bytes = _array_at(core.library.fd_files_bytes(handle), np.int64, count)
        self._free = weakref.finalize(self, core.library.fd_files_free, handle)


class Core:
    """The loaded library.  All methods release the interpreter's lock while they work."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        _declare(library)
        self.description: str = library.fd_description().decode()

    def read_files(self, ranges: Sequence[tuple[str, int, int]], pool: Pool | None = None) -> Files:
        """Reads N files or parts of them and parses the sizes of the JPEGs.

        Args:
            ranges: (path, offset, length) of each; a length below 0 means the rest of the file.
            pool: who works; None for the calling thread.
        """
        count = len(ranges)
        paths = (ctypes.c_char_p * max(1, count))(*[os.fsencode(path) for path, _, _ in ranges])
        whole = all(offset == 0 and length < 0 for _, offset, length in ranges)
        offsets = np.array([offset for _, offset, _ in ranges], np.int64)
        lengths = np.array([length for _, _, length in ranges], np.int64)
        sizes, results = np.zeros((count, 2), np.int32), Results.empty(count)
        handle = self.library.fd_files_read(
            pool.handle if pool is not None else None,
            count,
            paths,
            None if whole else offsets.ctypes.data,
            None if whole else lengths.ctypes.data,
            sizes.ctypes.data,
            results.statuses.ctypes.data,
            results._messages,
        )
        if not handle:
            raise MemoryError(f"no memory to read {count} files")
        return Files(self, handle, sizes, results)

    def decode(
        self,
        data: npt.NDArray[np.uint64],
        data_bytes: npt.NDArray[np.int64],
        views: Views,
        out: npt.NDArray[np.uint64],
        *,
        format: Format,  # noqa: A002 - the C interface's word
        options: Options,
        pool: Pool | None = None,
    ) -> Results:
        """Decodes N images into their places.

        Args:
            data: addresses of the encoded bytes, which must stay valid during the call.
            data_bytes: their lengths.
            views: N views, whose windows lie inside the images.
            out: addresses of N places, each of the view's height x width x 3 elements.
            format: how pixels are stored there.
            options: how to decode.
            pool: who works; None for the calling thread.
        """
        count = len(views)
        results = Results.empty(count)
        flips = np.stack([views.flip_horizontal, views.flip_vertical], axis=1).astype(np.uint8)
        columns: list[npt.NDArray[Any]] = [
            np.ascontiguousarray(data, np.uint64),
            np.ascontiguousarray(data_bytes, np.int64),
            np.ascontiguousarray(views.window_px, np.int32),
            np.ascontiguousarray(views.resize_px, np.int32),
            np.ascontiguousarray(views.crop_px, np.int32),
            flips,
            np.ascontiguousarray(out, np.uint64),
            results.statuses,
        ]
        if any(len(column) != count for column in columns):
            raise ValueError(f"columns of {[len(column) for column in columns]} rows for {count} views")
        images = _Images(count, *(column.ctypes.data for column in columns), ctypes.addressof(results._messages))
        self.library.fd_decode(
            pool.handle if pool is not None else None,
            ctypes.byref(images),
            ctypes.byref(format.to_c()),
            ctypes.byref(options.to_c()),
        )
        return results

    def philox(
        self,
        first: npt.NDArray[np.int64],
        second: npt.NDArray[np.int64],
        third: npt.NDArray[np.int64],
        fourth: int,
        key: tuple[int, int],
    ) -> npt.NDArray[np.uint64]:
        """Philox-4x32-10 for N contiguous counters: (4, N) words of 32 bits."""
        words = np.empty((4, len(first)), np.uint64)
        columns = (column.ctypes.data for column in (first, second, third))
        self.library.fd_philox(len(first), *columns, fourth, (ctypes.c_uint32 * 2)(*key), words.ctypes.data)
        return words

    def resize(self, rgbx: Pixels, stride_px: int, view: View, out: Pixels, *, options: Options) -> None:
        """Resizes, crops and flips a decoded window into uint8 (height, width, 3).

        Args:
            rgbx: flat 4-byte pixels that begin at the window's first.
            stride_px: pixels from one row to the next.
            view: the view; of its window only the size counts.
            out: contiguous, of the view's size.
            options: filter and pass order.
        """
        left, top, right, bottom = view.window_px
        if out.shape != (*view.size, 3) or not out.flags.c_contiguous or not rgbx.flags.c_contiguous:
            raise ValueError(f"out has shape {out.shape}, the view {view.size}; both arrays must be contiguous")
        status = self.library.fd_resize(
            rgbx.ctypes.data,
            rgbx.nbytes,
            4 * stride_px,
            right - left,
            bottom - top,
            (ctypes.c_int32 * 2)(*view.resize_px),
            (ctypes.c_int32 * 4)(*view.crop_px),
            (ctypes.c_uint8 * 2)(view.flip_horizontal, view.flip_vertical),
            out.ctypes.data,
            ctypes.byref(_Format(0, 1, None)),
            ctypes.byref(options.to_c()),
        )
        _check(status, f"cannot resize {right - left} × {bottom - top} pixels for {view}")

    def convert(self, rgb: Pixels, out: int, format: Format) -> None:  # noqa: A002
        """Stores contiguous RGB pixels (height, width, 3) in another format at an address."""
        height, width, _ = rgb.shape
        if not rgb.flags.c_contiguous:
            raise ValueError("pixels must be contiguous")
        status = self.library.fd_convert(rgb.ctypes.data, width, height, out, ctypes.byref(format.to_c()))
        _check(status, f"cannot convert {rgb.shape} pixels")


def load() -> Core:
    """The core, loaded once.

    Raises:
        NativeMissing: it is not there, or of another version.
    """
    found = _load_once()
    if isinstance(found, NativeMissing):
        raise found
    return found


def available() -> Core | None:
    """The core, or None; costs nothing once it has been asked for."""
    found = _load_once()
    return None if isinstance(found, NativeMissing) else found


@cache
def _load_once() -> Core | NativeMissing:
    try:
        return _load()
    except NativeMissing as missing:
        return missing


def _load() -> Core:
    path = _find()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeMissing(f"{path} cannot be loaded: {error}") from error
    version = library.fd_abi_version()
    if version != _ABI_VERSION:
        raise NativeMissing(f"{path} has interface version {version}, this package needs {_ABI_VERSION}; reinstall it")
    try:
        return Core(library)
    except AttributeError as error:
        raise NativeMissing(f"{path} is of another build: {error}; reinstall it") from error


def _find() -> Path:
    name = {"darwin": "libfastdata_native.dylib", "win32": "fastdata_native.dll"}.get(
        sys.platform, "libfastdata_native.so"
    )
    named = os.environ.get("FASTDATA_NATIVE_LIBRARY")
    if named:
        return Path(named)
    import fastdata

    folders = [Path(folder) / "native" for folder in fastdata.__path__]  # two in an editable install
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise NativeMissing("this installation was made without a C++ compiler or libjpeg-turbo's headers")


def _array_at(address: int, dtype: Any, count: int) -> npt.NDArray[Any]:
    """A copy of N values at an address."""
    bytes_ = count * np.dtype(dtype).itemsize
    return np.frombuffer(ctypes.string_at(address, bytes_), dtype) if count else np.empty(0, dtype)


def _check(status: int, what: str) -> None:
    if status == Status.OUT_OF_MEMORY:
        raise MemoryError(what)
    if status != Status.OK:
        raise ValueError(what)


def _declare(library: ctypes.CDLL) -> None:
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "fd_description": (ctypes.c_char_p, []),
        "fd_choose_kernels": (i32, [ctypes.c_char_p]),
        "fd_pool_create": (pointer, [i32]),
        "fd_pool_destroy": (None, [pointer]),
        "fd_files_read": (pointer, [pointer, i64, *[pointer] * 6]),
        "fd_files_data": (pointer, [pointer]),
        "fd_files_bytes": (pointer, [pointer]),
        "fd_files_free": (None, [pointer]),
        "fd_decode": (None, [pointer] * 4),
        "fd_resize": (i32, [pointer, i64, i64, i32, i32, *[pointer] * 6]),
        "fd_philox": (None, [i64, pointer, pointer, pointer, i64, pointer, pointer]),
        "fd_convert": (i32, [pointer, i32, i32, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
