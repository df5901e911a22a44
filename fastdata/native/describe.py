"""Inputs and results of the native core as Python objects, and their conversion to C structs."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.native.abi import (
    MESSAGE_BYTES,
    CFormat,
    CGeometry,
    CIndexes,
    COp,
    COptions,
    CViews,
    PassOrder,
    Status,
)
from fastdata.tables import EFFECT, EffectTable, Format, PackedRows, Windows

__all__ = [
    "Effects",
    "Geometry",
    "JpegIndexes",
    "Options",
    "Results",
    "format_to_c",
    "joined",
    "windows_to_c",
]

Ints: TypeAlias = npt.NDArray[np.int64]

_NO_LIMIT = (1 << 63) - 1


def format_to_c(format: Format) -> CFormat:  # noqa: A002 - the C interface's word
    """Returns the C struct of a format; valid as long as the format lives."""
    address = None if format.table is None else format.table.ctypes.data
    return CFormat(int(format.channels_first), format.element_bytes, format.channels, address, format.strides)


def windows_to_c(windows: Windows) -> CViews:
    """Returns the C struct of contiguous columns; valid as long as they live."""
    return CViews(*(column.ctypes.data for column in windows))


class Effects:
    """The effects on the pixels of N images before they are stored.

    Args:
        table: dtype `EFFECT`, (N, effects of each image, in order); None for none.
        images: N, the number of images.
    """

    def __init__(self, table: EffectTable | None, images: int) -> None:
        self._table = table if table is not None and table.size else None
        if self._table is not None and (
            self._table.dtype != EFFECT or self._table.ndim != 2 or len(self._table) != images
        ):
            raise ValueError(f"effects of dtype {self._table.dtype} and shape {self._table.shape} for {images} images")
        if self._table is not None:
            self._table = np.ascontiguousarray(self._table)

    def to_c(self) -> tuple[int | None, int]:
        """Returns the table's address and the number of effects per image; valid as long as this object lives."""
        return (None, 0) if self._table is None else (self._table.ctypes.data, self._table.shape[1])


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options and limits of decoding and resizing.

    Attributes:
        pass_order: order of a resize's two passes, that of the installed Pillow.
        fast: scaled DCT where it fits, and cheap chroma upsampling.
        max_pixels: most pixels of a whole image; None for no limit.
        max_scans: most scans of a progressive JPEG.  Real files have about ten.
        max_memory_bytes: most memory that libjpeg may use for one image.
        max_file_bytes: most bytes of an encoded image that is read from a file; None for no limit.
    """

    pass_order: PassOrder
    fast: bool = False
    max_pixels: int | None = None
    max_scans: int = 100
    max_memory_bytes: int = 4 << 30
    max_file_bytes: int | None = None

    def to_c(self) -> COptions:
        """Returns the C struct."""
        pixels, file_bytes = (_NO_LIMIT if most is None else most for most in (self.max_pixels, self.max_file_bytes))
        return COptions(self.pass_order, self.fast, self.max_scans, pixels, self.max_memory_bytes, file_bytes)


@dataclass(frozen=True)
class Results:
    """The outcome for each of N images.

    Attributes:
        statuses: int32, (N,), values of `Status`.
        messages: the core's error messages, MESSAGE_BYTES for each; see `reason`.
        read_bytes: int64, (N,): encoded bytes of each image, in the first of the rows that share it.
        read_s: seconds spent reading, summed over threads.
        decode_s: seconds spent on everything else, likewise.
        records: N unpacked records where those were asked for: b"" of an image that can have none, None where none was
            made.
        packed: what a device needs to decode images, where that was asked for.
    """

    statuses: npt.NDArray[np.int32]
    messages: ctypes.Array[ctypes.c_char]
    read_bytes: Ints
    read_s: float = 0.0
    decode_s: float = 0.0
    records: Sequence[bytes | None] = ()
    packed: PackedRows | None = None

    def reason(self, row: int) -> str:
        """Returns why an image failed, in words."""
        text = ctypes.string_at(ctypes.addressof(self.messages) + row * MESSAGE_BYTES)
        status = Status(int(self.statuses[row]))
        return text.decode("utf-8", "replace") or status.name.lower().replace("_", " ")

    @classmethod
    def empty(cls, count: int) -> Results:
        """Allocates memory for N results."""
        messages = ctypes.create_string_buffer(max(1, count * MESSAGE_BYTES))
        return cls(np.zeros(count, np.int32), messages, np.zeros(count, np.int64))


class Geometry:
    """The steps with which views are drawn, and the key of their random numbers.

    Args:
        ops: the steps, in order.
        key: two 32-bit words, from seed and epoch.
    """

    def __init__(self, ops: Sequence[COp], key: tuple[int, int]) -> None:
        self._struct = CGeometry((COp * len(ops))(*ops), len(ops), key)
        self.pointer, self.steps = ctypes.addressof(self._struct), len(ops)


@dataclass(frozen=True, kw_only=True)
class JpegIndexes:
    """The indexes of N JPEGs, as `Core.index_jpeg` makes them.

    Attributes:
        addresses: uint64, (N,): address of each index; 0 if there is none.
        lengths: int64, (N,): length of each index in bytes.
        memory: object that owns the indexes' memory.
        uses: int32, (N,): receives an `IndexUse` for each.
        file_bytes: int64, (N,): size of each image's file; an index with another size is wrong.  None, and -1: not
            compared.
        modified_ns: int64, (N,): modification time of each image's file, compared as its size is.
    """

    addresses: npt.NDArray[np.uint64]
    lengths: Ints
    memory: object
    uses: npt.NDArray[np.int32]
    file_bytes: Ints | None = None
    modified_ns: Ints | None = None

    @classmethod
    def of(cls, stored: Sequence[bytes | None]) -> JpegIndexes:
        """Makes columns of indexes in memory; None for an image without one."""
        arrays = [np.frombuffer(each or b"\0", np.uint8) for each in stored]
        return cls(
            addresses=np.array([array.ctypes.data for array in arrays], np.uint64),
            lengths=np.array([len(each or b"") for each in stored], np.int64),
            memory=arrays,
            uses=np.zeros(len(arrays), np.int32),
        )

    def to_c(self, count: int) -> CIndexes:
        """Returns the C struct, for N images; valid as long as this object lives."""
        columns = self.addresses, self.lengths, self.file_bytes, self.modified_ns, self.uses
        if any(each is not None and (len(each) != count or not each.flags.c_contiguous) for each in columns):
            raise ValueError(f"indexes of {len(self.addresses)} images for {count}")
        return CIndexes(*(each.ctypes.data if each is not None else None for each in columns))


def joined(paths: Sequence[str | os.PathLike[str]]) -> bytes:
    """Returns the encoded paths, each ended by NUL."""
    if not paths:
        return b""
    try:
        text = "\0".join(paths)  # type: ignore[arg-type]
    except TypeError:
        text = "\0".join([os.fspath(path) for path in paths])
    return os.fsencode(text + "\0")
