"""Reads many encoded images from files with a call of the core."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import Status
from fastdata.native.core import Core, Pool
from fastdata.native.describe import Options
from fastdata.native.recipes_call import RecipesCall
from fastdata.tables import Format, Recipes

__all__ = ["FileReader"]

Ints: TypeAlias = npt.NDArray[np.int64]


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
        """Reads N images; the columns are those of `fastdata.tables.Recipes`.

        Returns:
            The bytes of each, as parts of one block of memory, None for what cannot be read or has another checksum;
            True for each that is a JPEG with whole scans (`has_whole_scans` finds others among those with False); and
            seconds spent reading, summed over threads.
        """
        count = len(paths)
        nowhere = np.zeros(count, np.uint64)
        files = Recipes(paths=paths, offsets=offsets, lengths=lengths, crcs=crcs, format=Format(), out=nowhere)
        call = RecipesCall(self._library, files)
        handle = self._pool.handle if self._pool is not None else None
        arguments = handle, ctypes.addressof(call.struct), ctypes.addressof(self._options_c)
        self._library.fd_read(*arguments, None, None)
        results = call.results()
        known = results.statuses == Status.OK
        ends = np.cumsum(np.where(known, results.read_bytes, 0))
        begins = ends - np.where(known, results.read_bytes, 0)
        block = np.empty(int(ends[-1]) + 1 if count else 0, np.uint8)  # a byte more, so that no image is outside
        addresses = np.where(known, begins + block.ctypes.data, 0)
        whole = np.zeros(count, np.bool_)
        self._library.fd_read(*arguments, addresses.ctypes.data, whole.ctypes.data)
        memory = block.data
        places = zip(results.statuses.tolist(), begins.tolist(), results.read_bytes.tolist(), strict=True)
        found = [memory[first : first + size] if status == Status.OK else None for status, first, size in places]
        return found, whole.tolist(), results.read_s + call.results().read_s

    def close(self, ended: bool) -> None:
        """Joins the threads; abandons them if one may hang in a read."""
        if self._pool is not None:
            (self._pool.close if ended else self._pool.abandon)()
