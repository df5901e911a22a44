"""`fastdata.tables.Recipes` as the core's struct, with the memory that it refers to."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import CArray, CRecipes
from fastdata.native.describe import Effects, JpegIndexes, Results, joined, windows_to_c
from fastdata.tables import GIVEN_NUMBERS, PackedRows, Recipes

__all__ = ["RecipesCall"]

Ints: TypeAlias = npt.NDArray[np.int64]
Pixels: TypeAlias = npt.NDArray[np.uint8]


class RecipesCall:
    """The struct of one call, valid as long as this object and the recipes live, and its results.

    Args:
        library: the core's functions.
        recipes: N images.
        size: (height, width) of every image whose view the core draws.
        indexes: indexes of JPEGs; None for none.
        steps: number of steps with which the core draws views.

    Raises:
        ValueError: a column has another shape than it must.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        recipes: Recipes,
        *,
        size: tuple[int, int] = (0, 0),
        indexes: JpegIndexes | None = None,
        steps: int = 0,
    ) -> None:
        self._count = count = len(recipes)
        self._alive: list[Any] = []
        self._results, self._records = Results.empty(count), _Records(library, count if recipes.kept is not None else 0)
        self.struct = CRecipes(count=count, out=self._column(recipes.out, np.uint64), out_size_px=(size[1], size[0]))
        self._tell_sources(recipes)
        for name in ("rows", "same_as", "indices", "occurrences"):
            setattr(self.struct, name, self._column(getattr(recipes, name)))
        self.struct.given = self._column(recipes.given, shape=(steps, GIVEN_NUMBERS))
        if recipes.windows is not None:
            windows = self._keep(recipes.windows.contiguous(count))
            self.struct.views = ctypes.addressof(self._keep(windows_to_c(windows)))
        if indexes is not None:
            self.struct.indexes = ctypes.addressof(self._keep(indexes.to_c(count)))
        effects = self._keep(Effects(recipes.effects, count))
        self.struct.effects, self.struct.effects_per_image = effects.to_c()
        self.struct.kept = self._column(recipes.kept, np.uint8)
        self.struct.records, self.struct.record_bytes = self._records.to_c()
        self._packed = PackedRows(count, library.fd_free) if recipes.packed else None
        if self._packed is not None:
            self.struct.packed = self._packed.addresses.ctypes.data
            self.struct.packed_bytes = self._packed.sizes.ctypes.data
        self.struct.statuses, self.struct.read_bytes = (
            column.ctypes.data for column in (self._results.statuses, self._results.read_bytes)
        )
        self.struct.messages = ctypes.addressof(self._results.messages)

    def results(self) -> Results:
        """Returns what became of the images, after the call."""
        read_s, decode_s = self.struct.read_ns / 1e9, self.struct.decode_ns / 1e9
        records = self._records.taken()
        return replace(self._results, read_s=read_s, decode_s=decode_s, records=records, packed=self._packed)

    def _tell_sources(self, recipes: Recipes) -> None:
        struct = self.struct
        if recipes.array is not None:
            struct.array = ctypes.addressof(self._keep(_array_to_c(recipes.array)))
        if recipes.paths is not None:
            names = joined(recipes.paths)
            struct.paths, struct.paths_bytes = names, len(names)
        for name in ("offsets", "lengths", "crcs"):
            setattr(struct, name, self._column(getattr(recipes, name)))
        if recipes.data is not None:
            given = self._keep([np.frombuffer(each, np.uint8) if each else None for each in recipes.data])
            places = [(0, 0) if each is None else (each.ctypes.data, each.size) for each in given]
            struct.data = self._column([address for address, _ in places], np.uint64)
            struct.data_bytes = self._column([size for _, size in places])

    def _column(
        self, values: Sequence[Any] | npt.NDArray[Any] | None, dtype: Any = np.int64, shape: tuple[int, ...] = ()
    ) -> int | None:
        """Returns the address of a column, whose rows have a shape; None for one that is left out."""
        if values is None:
            return None
        column = np.ascontiguousarray(values, dtype)
        if column.shape != (self._count, *shape):
            raise ValueError(f"a column of shape {column.shape}, not {(self._count, *shape)}")
        return int(self._keep(column).ctypes.data)

    def _keep(self, owner: Any) -> Any:
        self._alive.append(owner)
        return owner


def _array_to_c(images: Pixels) -> CArray:
    """Returns the C struct of an array of images, (images, height, width, channels); valid as long as that lives."""
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"an array of images is uint8 and has four dimensions, not {images.dtype} {images.shape}")
    begin, end = _byte_bounds(images)
    sizes = (images.shape[axis] for axis in (2, 1, 3))
    return CArray(begin, end - begin, images.ctypes.data - begin, images.strides, images.shape[0], *sizes)


def _byte_bounds(array: Pixels) -> tuple[int, int]:
    """Returns the addresses of an array's first byte in memory and of the byte after its last."""
    reaches = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    first: int = array.ctypes.data
    return first + sum(min(0, reach) for reach in reaches), first + sum(max(0, reach) for reach in reaches) + 1


class _Records:
    """Unpacked records that the core is to make of some of N images.

    Args:
        library: the core's functions.
        count: N; 0 if none is wanted.
    """

    def __init__(self, library: ctypes.CDLL, count: int) -> None:
        self._free, self._made, self._bytes = library.fd_free, (ctypes.c_void_p * count)(), np.zeros(count, np.int64)

    def to_c(self) -> tuple[int, int]:
        """Returns the members `records` and `record_bytes` of the struct."""
        return ctypes.addressof(self._made), self._bytes.ctypes.data

    def taken(self) -> tuple[bytes | None, ...]:
        """Returns the records, and frees the core's memory: b"" of an image that can have none, None if none was made.

        () if none was asked for.
        """
        taken: list[bytes | None] = []
        for memory, size in zip(self._made, self._bytes.tolist(), strict=True):
            if memory is None:
                taken.append(b"" if size < 0 else None)
                continue
            try:
                taken.append(ctypes.string_at(memory, size))
            finally:
                self._free(memory)
        return tuple(taken)
