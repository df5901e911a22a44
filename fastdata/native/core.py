"""The functions of the native core, and its thread pool."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import MESSAGE_BYTES, READS_PNGS, NativeMissing, Status, open_library
from fastdata.native.describe import Effects, Geometry, JpegIndexes, Options, Results, format_to_c, windows_to_c
from fastdata.native.recipes_call import RecipesCall
from fastdata.tables import EffectTable, Format, Recipes, Windows

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

    def fill(
        self,
        recipes: Recipes,
        *,
        options: Options,
        pool: Pool | None = None,
        geometry: Geometry | None = None,
        size: tuple[int, int] = (0, 0),
        indexes: JpegIndexes | None = None,
    ) -> Results:
        """Reads, decodes, resizes, changes and stores N images; each window of a given view lies inside its image.

        Args:
            recipes: the images; of `origins` and `stamps` the core knows nothing.
            options: options of decoding.
            pool: threads that work; None for the calling thread.
            geometry: steps with which views are drawn; None where they are given.
            size: (height, width) of every image whose view is drawn.
            indexes: indexes of JPEGs, if there are some; for one encoded image that of its first row is used.
        """
        steps = 0 if geometry is None else geometry.steps
        call = RecipesCall(self.library, recipes, size=size, indexes=indexes, steps=steps)
        self.library.fd_fill(
            pool.handle if pool is not None else None,
            ctypes.addressof(call.struct),
            geometry.pointer if geometry is not None else None,
            ctypes.byref(format_to_c(recipes.format)),
            ctypes.byref(options.to_c()),
        )
        return call.results()

    def gather(self, pieces: npt.NDArray[np.uint64], sizes: Ints, places: npt.NDArray[np.uint64]) -> None:
        """Copies N pieces of memory, given by their addresses and bytes, to places of their own."""
        columns = [np.ascontiguousarray(each) for each in (pieces, sizes, places)]
        self.library.fd_gather(len(sizes), *(column.ctypes.data for column in columns))

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


def _check(status: int, what: str) -> None:
    if status == Status.OUT_OF_MEMORY:
        raise MemoryError(what)
    if status != Status.OK:
        raise ValueError(what)
