"""The functions of the native core, and its thread pool."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import MESSAGE_BYTES, READS_PNGS, CImages, NativeMissing, Status, open_library
from fastdata.native.describe import (
    Effects,
    Geometry,
    JpegIndexes,
    Options,
    Records,
    Results,
    format_to_c,
    joined,
    windows_to_c,
)
from fastdata.tables import EffectTable, Format, Windows

__all__ = ["Core", "Pool", "available", "load"]

Ints: TypeAlias = npt.NDArray[np.int64]
Pixels: TypeAlias = npt.NDArray[np.uint8]


class Pool:
    """Threads of the core, started when first used; `close` joins them, and so does dropping the pool.

    Nothing is joined at interpreter exit: users of the pool close it, unless a call hangs in it.
    """

    def __init__(self, core: Core, threads: int) -> None:
        self._library = core.library
        self.handle = core.library.fd_pool_create(threads)
        if not self.handle:
            raise MemoryError("no memory for the core's thread pool")
        self.close = weakref.finalize(self, core.library.fd_pool_destroy, self.handle)
        self.close.atexit = False

    def abandon(self) -> None:
        """Drops threads of which one may hang forever; waits for none."""
        if self.close.detach() is not None:
            self._library.fd_pool_abandon(self.handle)


class Core:
    """The loaded library; all methods release Python's GIL while they work.

    Attributes:
        library: the functions of fastdata_native.h.
        description: names of the libraries that it was built with and of its inner loops, for people.
        reads_pngs: it was built with libdeflate, so it decodes PNGs.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.description: str = library.fd_description().decode()
        self.reads_pngs = bool(library.fd_features() & READS_PNGS)

    @property
    def kernels(self) -> str:
        """Name of the inner loops in use: "AVX2", "NEON" or "plain"."""
        return str(self.library.fd_kernels().decode())

    def draw_views(
        self, sizes_px: Ints, indices: Ints, occurrences: Ints, geometry: Geometry, given: Ints | None = None
    ) -> tuple[Windows, int]:
        """Draws the views of N images; see `fastdata.views.draw`.  `given` is contiguous.

        Returns:
            N views, and the first row without one since its image is smaller than a random crop, or -1.
        """
        count = len(sizes_px)
        ints = [np.ascontiguousarray(column, np.int64) for column in (sizes_px, indices, occurrences)]
        drawn = Windows.empty(count)
        row = self.library.fd_draw_views(
            count,
            *(column.ctypes.data for column in ints),
            None if given is None else given.ctypes.data,
            geometry.pointer,
            ctypes.byref(windows_to_c(drawn)),
        )
        if row < -1:
            raise ValueError(f"sizes or geometry make no sense: {sizes_px.tolist()}")
        return drawn, row

    def decode(
        self,
        data: npt.NDArray[np.uint64],
        data_bytes: npt.NDArray[np.int64],
        windows: Windows,
        out: npt.NDArray[np.uint64],
        *,
        format: Format,  # noqa: A002 - the C interface's word
        options: Options,
        pool: Pool | None = None,
        paths: Sequence[str | os.PathLike[str]] | None = None,
        same_as: Ints | None = None,
        read_bytes: Ints | None = None,
        effects: EffectTable | None = None,
        indexes: JpegIndexes | None = None,
        ranges: Sequence[Ints | None] = (None, None, None),
        records: Records | None = None,
    ) -> Results:
        """Decodes N images to given addresses.

        Args:
            data: uint64, (N,): addresses of the encoded bytes, valid during the call; 0 where a path is given.
            data_bytes: int64, (N,): lengths of the encoded bytes.
            windows: views of the N images; each window lies inside its image.
            out: uint64, (N,): addresses for the results, each of the crop's height x width x channels elements.
            format: format of the stored pixels.
            options: options of decoding.
            pool: threads that decode; None for the calling thread.
            paths: paths of images to read from files; "" where data is given; None if data is given for all.
            same_as: int64, (N,): the first row of the same encoded image, which is then decoded once; such rows
                must be adjacent.  None if all differ.
            read_bytes: int64, (N,): receives the encoded bytes of each image, in its first row.
            effects: effects on each image's pixels before they are stored, (N, any number); None for none.
            indexes: indexes of JPEGs, if there are some; for one encoded image that of its first row is used.
            ranges: offsets, lengths and CRC-32Cs of images in files, int64, (N,), as in `fastdata.tables.FileBatch`.
            records: unpacked records that are to be made, of first rows; None for none.
        """
        count = len(windows.window_px)
        described = Effects(effects, count)
        results = Results.empty(count)
        names = joined(paths) if paths is not None else None
        same, read, *places_in_files = (_data(each, count) for each in (same_as, read_bytes, *ranges))
        kinds = (data, np.uint64), (data_bytes, np.int64), (out, np.uint64), (results.statuses, np.int32)
        columns: list[npt.NDArray[Any]] = [np.ascontiguousarray(column, kind) for column, kind in kinds]
        seen = windows.contiguous()
        if any(len(column) != count for column in (*columns, *seen)):
            raise ValueError(f"columns of {[len(column) for column in (*columns, *seen)]} rows for {count} windows")
        given, places = ([column.ctypes.data for column in some] for some in (columns[:2], columns[2:]))
        indexes_c = None if indexes is None else indexes.to_c(count)
        ends = ctypes.addressof(results.messages), *described.to_c(), _address(indexes_c), *places_in_files
        kept = (None,) * 3 if records is None else records.to_c()
        images = CImages(count, names, len(names or b""), *given, same, read, windows_to_c(seen), *places, *ends, *kept)
        self.library.fd_decode(
            pool.handle if pool is not None else None,
            ctypes.byref(images),
            ctypes.byref(format_to_c(format)),
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
        """Computes Philox-4x32-10 for N contiguous counters: (4, N) words of 32 bits."""
        words = np.empty((4, len(first)), np.uint64)
        columns = (column.ctypes.data for column in (first, second, third))
        self.library.fd_philox(len(first), *columns, fourth, (ctypes.c_uint32 * 2)(*key), words.ctypes.data)
        return words

    def normals(
        self, count: int, index: int, occurrence: int, stream: int, key: tuple[int, int]
    ) -> npt.NDArray[np.float32]:
        """Draws `count` numbers of the standard normal distribution for one sample."""
        out = np.empty(count, np.float32)
        self.library.fd_normals(count, index, occurrence, stream, (ctypes.c_uint32 * 2)(*key), out.ctypes.data)
        return out

    def resize(
        self, pixels: Pixels, stride_px: int, view: Windows, out: Pixels, *, options: Options, pixel_bytes: int = 4
    ) -> bool:
        """Resizes, crops and flips a decoded window into uint8 (height, width, 3).

        Args:
            pixels: flat pixels, beginning at the window's first pixel.
            stride_px: pixels from one row to the next.
            view: the view, of one row.
            out: contiguous array of the crop's size.
            options: the order of passes.
            pixel_bytes: 3, or 4 with the last one ignored.

        Returns:
            False if the core does not do this: a side would be longer than 65,536 pixels.
        """
        seen = view.contiguous()
        left, top, right, bottom = seen.crop_px[0].tolist()
        if out.shape != (bottom - top, right - left, 3) or not out.flags.c_contiguous or not pixels.flags.c_contiguous:
            raise ValueError(
                f"out has shape {out.shape}, the crop is {right - left} × {bottom - top}; both must be contiguous"
            )
        status = self.library.fd_resize(
            pixels.ctypes.data,
            pixels.nbytes,
            pixel_bytes,
            pixel_bytes * stride_px,
            ctypes.byref(windows_to_c(seen)),
            out.ctypes.data,
            ctypes.byref(format_to_c(Format())),
            ctypes.byref(options.to_c()),
        )
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(f"no memory to resize a window to {seen.resize_px[0].tolist()} pixels")
        return bool(status == Status.OK)

    def has_whole_scans(self, data: bytes | memoryview, scan_at: int, *, one_scan: bool) -> bool:
        """True if a JPEG's entropy-coded data runs to an end marker and holds no marker that may not occur there.

        Args:
            data: bytes of the file.
            scan_at: offset in bytes of the first scan's marker.
            one_scan: nothing may come between scans.
        """
        address = data if isinstance(data, bytes) else np.frombuffer(data, np.uint8).ctypes.data
        return bool(self.library.fd_has_whole_scans(address, len(data), scan_at, one_scan))

    def index_jpeg(self, data: bytes, *, step: int, options: Options) -> bytes | None:
        """Makes the index of a JPEG (docs/format.md), with which a window is decoded without the data around it.

        Args:
            data: bytes of the file.
            step: MCUs from one entry to the next in a row; 0 for one entry a row.
            options: limits.

        Returns:
            The index, or None for files that have none: other formats, progressive and damaged files.
        """
        return self._made("index", data, len(data), step, ctypes.byref(options.to_c()))

    def unpack(self, data: bytes, *, options: Options) -> bytes | None:
        """Makes a record of a JPEG, its coefficients not entropy-coded (docs/format.md); it decodes to the same pixels.

        Args:
            data: bytes of the file.
            options: limits.

        Returns:
            The record, or None for files that have none: other formats, damaged files, and files with unusual entropy
            coding, which cannot be restored byte for byte.
        """
        return self._made("unpack", data, len(data), ctypes.byref(options.to_c()), True)

    def restore(self, record: bytes, *, options: Options) -> bytes | None:
        """Restores the file that a record was made from; returns None if it is not a record, or damaged."""
        return self._made("restore", record, len(record), ctypes.byref(options.to_c()))

    def _made(self, what: str, *arguments: Any, after: tuple[Any, ...] = ()) -> bytes | None:
        """Returns bytes that the core makes of an image by its function `what`, or None if it makes none."""
        made, size = ctypes.c_void_p(), ctypes.c_int64()
        function = getattr(self.library, f"fd_{what}")
        status = function(*arguments, ctypes.byref(made), ctypes.byref(size), *after)
        if status == Status.OUT_OF_MEMORY:
            raise MemoryError(f"no memory to {what} an image")
        if status != Status.OK:
            return None
        try:
            return ctypes.string_at(made.value or 0, size.value)
        finally:
            self.library.fd_free(made)

    def repack(self, data: bytes, *, restart_rows: int, options: Options) -> bytes | None:
        """Encodes a JPEG's coefficients again: baseline, Huffman tables made for it, no metadata, the same pixels.

        Args:
            data: bytes of the file.
            restart_rows: rows of MCUs between restart markers, by which readers can skip; 0 for none.
            options: limits.

        Returns:
            The new file, or None if it is not a plain JPEG, damaged, or beyond a limit.
        """
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        return self._made("repack", data, len(data), restart_rows, ctypes.byref(options.to_c()), after=(message,))

    def warp(self, rgb: Pixels, effect: EffectTable, size: tuple[int, int]) -> Pixels:
        """Maps contiguous RGB pixels to RGB pixels of `size` (height, width), by one effect, a table (1, 1)."""
        height, width, _ = rgb.shape
        described, out = Effects(effect, 1), np.empty((*size, 3), np.uint8)
        if not rgb.flags.c_contiguous or effect.shape != (1, 1):
            raise ValueError("pixels must be contiguous, and the effect one")
        effects, _ = described.to_c()
        out_size = (ctypes.c_int32 * 2)(size[1], size[0])
        status = self.library.fd_warp(rgb.ctypes.data, width, height, effects, out_size, out.ctypes.data)
        _check(status, f"cannot map {rgb.shape} pixels to {out.shape}")
        return out

    def convert(self, rgb: Pixels, out: int, format: Format, effects: EffectTable | None = None) -> None:  # noqa: A002
        """Applies effects, (1, K), to contiguous RGB pixels (height, width, 3), and stores the result at an address."""
        described = Effects(effects, 1)
        height, width, _ = rgb.shape
        if not rgb.flags.c_contiguous:
            raise ValueError("pixels must be contiguous")
        status = self.library.fd_convert(
            rgb.ctypes.data, width, height, *described.to_c(), out, ctypes.byref(format_to_c(format))
        )
        _check(status, f"cannot convert {rgb.shape} pixels")


def load() -> Core:
    """Returns the core, loaded at the first call.

    Raises:
        NativeMissing: the core is missing, or of another version.
    """
    found = _load_once()
    if isinstance(found, str):
        raise NativeMissing(found)
    return found


def available() -> Core | None:
    """Returns the core, or None if it is missing; later calls cost nothing."""
    found = _load_once()
    return None if isinstance(found, str) else found


@cache
def _load_once() -> Core | str:  # why it is missing; an exception would keep its caller's frames alive
    try:
        return Core(open_library())
    except NativeMissing as missing:
        return str(missing)


def _data(column: Ints | None, count: int) -> int | None:
    """Address of a column that may be left out."""
    if column is not None and (len(column) != count or column.dtype != np.int64):
        raise ValueError(f"same_as, read_bytes and ranges must be int64 of {count} rows")
    return None if column is None else column.ctypes.data


def _address(struct: ctypes.Structure | None) -> int | None:
    return None if struct is None else ctypes.addressof(struct)


def _check(status: int, what: str) -> None:
    if status == Status.OUT_OF_MEMORY:
        raise MemoryError(what)
    if status != Status.OK:
        raise ValueError(what)
