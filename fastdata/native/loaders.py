"""Reads encoded images, or loads them from files or an array into a finished batch, many with a call of the core."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import CArrays, CFiles, Status
from fastdata.native.core import Core, Pool
from fastdata.native.describe import (
    Effects,
    Geometry,
    JpegIndexes,
    Loaded,
    Options,
    Records,
    Results,
    format_to_c,
    joined,
)
from fastdata.tables import ArrayBatch, FileBatch, Format

__all__ = ["ArrayLoader", "BatchLoader", "FileReader"]

Ints: TypeAlias = npt.NDArray[np.int64]
Pixels: TypeAlias = npt.NDArray[np.uint8]


class _Loader:
    """Base class of loaders: the settings that are the same for every batch.

    Args:
        core: the core.
        pool: threads that decode; None for the calling thread.
        geometry: steps with which views are drawn.
        format: format of the stored pixels.
        options: options of decoding and resizing.
        size: (height, width) of every finished image.
    """

    _function: str  # name of the core's function

    def __init__(
        self,
        core: Core,
        pool: Pool | None,
        *,
        geometry: Geometry,
        format: Format,  # noqa: A002 - the C interface's word
        options: Options,
        size: tuple[int, int],
    ) -> None:
        self._load, self._pool, self._library = getattr(core.library, self._function), pool, core.library
        self._geometry, self._format, self._format_c = geometry, format, format_to_c(format)
        self._options_c, self._size = options.to_c(), (size[1], size[0])
        self._stride_bytes = format.channels * size[0] * size[1] * format.element_bytes

    def _into(self, out: int, results: Results) -> tuple[Any, ...]:
        """Returns the members of a struct for the addresses of images, statuses and messages."""
        addresses = results.statuses.ctypes.data, ctypes.addressof(results.messages)
        return out, self._stride_bytes, self._size, *addresses

    def _call(self, images: CFiles | CArrays) -> None:
        self._load(
            self._pool.handle if self._pool is not None else None,
            ctypes.addressof(images),
            self._geometry.pointer,
            ctypes.addressof(self._format_c),
            ctypes.addressof(self._options_c),
        )


class BatchLoader(_Loader):
    """Loads files into a finished batch."""

    _function = "fd_load"

    def load(self, batch: FileBatch, *, indexes: JpegIndexes | None = None) -> Loaded:
        """Loads a batch; `indexes` are the indexes of its JPEGs, None if there are none."""
        count = len(batch.paths)
        described = Effects(batch.effects, count)
        names = joined(batch.paths)
        results, data_bytes = Results.empty(count), np.zeros(count, np.int64)
        given = batch.offsets, batch.lengths, batch.crcs, batch.indices, batch.occurrences, batch.given
        columns = [None if column is None else np.ascontiguousarray(column, np.int64) for column in given]
        if any(column is not None and len(column) != count for column in columns):
            raise ValueError(f"columns of other lengths than {count} paths")
        indexes_c = None if indexes is None else indexes.to_c(count)
        records = Records(self._library, batch.kept, count)
        files = CFiles(
            count,
            names,
            len(names),
            *(None if column is None else column.ctypes.data for column in columns),
            *self._into(batch.out, results),
            data_bytes.ctypes.data,
            0,
            0,
            *described.to_c(),
            None if indexes_c is None else ctypes.addressof(indexes_c),
            *records.to_c(),
        )
        self._call(files)
        return Loaded(results, data_bytes, files.read_ns / 1e9, files.decode_ns / 1e9, records.taken())


class FileReader:
    """Reads many encoded images side by side, without the interpreter, whose lock Python's threads would wait for.

    Args:
        core: the core.
        pool: threads that read, which this object closes; None for the calling thread.
        options: of which `max_file_bytes` counts.
    """

    def __init__(self, core: Core, pool: Pool | None, options: Options) -> None:
        self._library, self._pool, self._options_c = core.library, pool, options.to_c()

    def read(
        self, paths: Sequence[Any], offsets: Ints | None = None, lengths: Ints | None = None, crcs: Ints | None = None
    ) -> tuple[list[memoryview | None], list[bool], float]:
        """Reads N images; the columns are those of `fastdata.tables.FileBatch`.

        Returns:
            The bytes of each, as parts of one block of memory, None for what cannot be read or has another checksum;
            True for each that is a JPEG with whole scans (`has_whole_scans` finds others among those with False); and
            seconds spent reading, summed over threads.
        """
        count, names = len(paths), joined(paths)
        results, data_bytes = Results.empty(count), np.zeros(count, np.int64)
        columns = [None if each is None else np.ascontiguousarray(each, np.int64) for each in (offsets, lengths, crcs)]
        if any(column is not None and len(column) != count for column in columns):
            raise ValueError(f"columns of other lengths than {count} paths")
        files = CFiles(count, names, len(names), *(None if each is None else each.ctypes.data for each in columns))
        files.statuses, files.messages = results.statuses.ctypes.data, ctypes.addressof(results.messages)
        files.data_bytes = data_bytes.ctypes.data
        handle = self._pool.handle if self._pool is not None else None
        arguments = handle, ctypes.addressof(files), ctypes.addressof(self._options_c)
        self._library.fd_read(*arguments, None, None)
        measured_ns = files.read_ns
        known = results.statuses == Status.OK
        ends = np.cumsum(np.where(known, data_bytes, 0))
        begins = ends - np.where(known, data_bytes, 0)
        block = np.empty(int(ends[-1]) + 1 if count else 0, np.uint8)  # a byte more, so that no image is outside
        addresses = np.where(known, begins + block.ctypes.data, 0)
        whole = np.zeros(count, np.bool_)
        self._library.fd_read(*arguments, addresses.ctypes.data, whole.ctypes.data)
        memory = block.data
        places = zip(results.statuses.tolist(), begins.tolist(), data_bytes.tolist(), strict=True)
        found = [memory[first : first + size] if status == Status.OK else None for status, first, size in places]
        return found, whole.tolist(), (measured_ns + files.read_ns) / 1e9

    def close(self, ended: bool) -> None:
        """Joins the threads; abandons them if one may hang in a read."""
        if self._pool is not None:
            (self._pool.close if ended else self._pool.abandon)()


class ArrayLoader(_Loader):
    """Loads images of one array into a finished batch."""

    _function = "fd_load_arrays"

    def load(self, batch: ArrayBatch) -> tuple[Results, float]:
        """Loads a batch; returns the outcome for each image, and seconds spent, summed over threads."""
        images = batch.images
        columns = [np.ascontiguousarray(column, np.int64) for column in (batch.rows, batch.indices, batch.occurrences)]
        given = None if batch.given is None else np.ascontiguousarray(batch.given, np.int64)
        lengths = [len(column) for column in (*columns, *([] if given is None else [given]))]
        count = lengths[0]
        if images.dtype != np.uint8 or images.ndim != 4 or any(length != count for length in lengths):
            raise ValueError(f"{images.dtype} {images.shape} with columns of {lengths} rows")
        results, described = Results.empty(count), Effects(batch.effects, count)
        begin, end = _byte_bounds(images)
        arrays = CArrays(
            count,
            begin,
            end - begin,
            images.ctypes.data - begin,
            images.strides,
            images.shape[0],
            *(images.shape[axis] for axis in (2, 1, 3)),
            0,
            *(column.ctypes.data for column in columns),
            None if given is None else given.ctypes.data,
            *self._into(batch.out, results),
            0,
            *described.to_c(),
        )
        self._call(arrays)
        return results, arrays.decode_ns / 1e9


def _byte_bounds(array: Pixels) -> tuple[int, int]:
    """Returns the addresses of an array's first byte in memory and of the byte after its last."""
    reaches = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first: int = array.ctypes.data
    return first + sum(min(0, reach) for reach in reaches), first + sum(max(0, reach) for reach in reaches) + 1
