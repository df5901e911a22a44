"""Tables that describe the images of a batch to whatever decodes it: where they are, their windows, effects and format.

The layouts of rows are those of the structs in `fastdata/native/fastdata_native.h`, which says what each number means.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "EFFECT",
    "GIVEN_NUMBERS",
    "PACKED_HEAD",
    "PackedRows",
    "EffectKind",
    "EffectTable",
    "Format",
    "Recipes",
    "Stamp",
    "Windows",
    "addresses",
]

Ints: TypeAlias = npt.NDArray[np.int64]
Pixels: TypeAlias = npt.NDArray[np.uint8]

Stamp: TypeAlias = tuple[int, int, int, int, int]  # a file's device, inode, size, mtime and ctime in ns

EffectTable: TypeAlias = npt.NDArray[np.void]  # dtype EFFECT, (images, effects of each, in order)


class EffectKind(IntEnum):
    """The kind of an effect on pixels; `fastdata/native/fastdata_native.h` says what each does with its values."""

    NONE = 0
    BRIGHTNESS = 1
    CONTRAST = 2
    SATURATION = 3
    HUE = 4
    SHARPNESS = 5
    GREY = 6
    INVERT = 7
    POSTERIZE = 8
    SOLARIZE = 9
    AUTOCONTRAST = 10
    EQUALIZE = 11
    BLUR = 12
    PERMUTE = 13
    AFFINE = 14
    PERSPECTIVE = 15
    BOX_BLUR = 16
    SOLARIZE_ADD = 17
    FLIP = 18
    MIX_BEGIN = 19
    MIX_ADD = 20
    MIX_END = 21
    MIX_BLEND = 22
    TENSOR_CONTRAST = 23
    TENSOR_SATURATION = 24
    TENSOR_HUE = 25
    TENSOR_SHARPNESS = 26
    TENSOR_GREY = 27
    TENSOR_AUTOCONTRAST = 28


GIVEN_NUMBERS = 5  # for each step of a geometry; `fastdata/native/fastdata_native.h` says what they are

EFFECT = np.dtype([("kind", np.int32), ("filter", np.int32), ("values", np.float64, 11)], align=True)


PACKED_HEAD = (  # the int32 members of PackedHead (`fastdata/native/jpeg/packed.h`), in order
    "bytes",
    "components",
    "halved_x",
    "halved_y",
    "width",
    "height",
    "left",
    "top",
    "source_width",
    "source_height",
    "first_column",
    "first_row",
    "columns",
    "rows",
    "is_entropy_coded",
    "tile",
    "tiles",
    "result_width",
    "result_height",
    "across_taps",
    "down_taps",
    "down_first",
    "flip_x",
    "flip_y",
    "steps",
    "effects_at",
    "blurs",
    "steps_at",
    "across_at",
    "down_at",
    "begins_at",
    "tiles_at",
    "dc_0_at",
    "ac_0_at",
    "dc_1_at",
    "ac_1_at",
    "dc_2_at",
    "ac_2_at",
)


@dataclass(frozen=True, kw_only=True)
class Format:
    """The format in which finished pixels are stored.

    Attributes:
        channels_first: (channels, height, width) instead of (height, width, channels).
        table: the element of every (channel, level), shape (channels, 256), 16 or 32 bits wide; None for uint8 pixels.
        channels: 3, or 1 to store the first alone.
        strides: elements from one row to the next, and from one channel to the next where those come first; (0, 0) for
            images with nothing between.
    """

    channels_first: bool = False
    table: npt.NDArray[Any] | None = None
    channels: int = 3
    strides: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        table = self.table
        if self.channels not in (1, 3):
            raise ValueError(f"one channel or three are stored, not {self.channels}")
        if table is not None and (table.shape != (self.channels, 256) or not table.flags.c_contiguous):
            raise ValueError(f"a table has shape ({self.channels}, 256) and is contiguous, not {table.shape}")
        if table is not None and table.itemsize not in (2, 4):
            raise ValueError(f"elements have 16 or 32 bits, not {8 * table.itemsize}")

    @property
    def element_bytes(self) -> int:
        """Bytes of one stored element."""
        return 1 if self.table is None else self.table.itemsize


class Windows(NamedTuple):
    """The views of N images, in columns.

    Attributes:
        window_px: int32, (N, 4): left, top, right, bottom in the image.
        resize_px: int32, (N, 2): width and height the window is resized to.
        crop_px: int32, (N, 4): left, top, right, bottom in the resized window, or outside it.
        flips: uint8, (N, 4): mirror the result left to right, top to bottom; mirror the window left to right,
            top to bottom, before its resize.
        filters: int32, (N,): numbers of the resize filters.
        outside: uint8, (N, 4): fill of pixels outside the image: padding mode, red, green, blue.
    """

    window_px: npt.NDArray[np.int32]
    resize_px: npt.NDArray[np.int32]
    crop_px: npt.NDArray[np.int32]
    flips: npt.NDArray[np.uint8]
    filters: npt.NDArray[np.int32]
    outside: npt.NDArray[np.uint8]

    @classmethod
    def empty(cls, count: int) -> Windows:
        """Allocates memory for N views."""
        columns: Any = (np.empty((count, *shape), dtype) for shape, dtype in _COLUMNS)
        return cls(*columns)

    @classmethod
    def of(cls, views: Sequence[Sequence[Any]]) -> Windows:
        """Makes columns of N views, each given by its values in every column."""
        columns: Any = (
            np.array([view[at] for view in views], dtype).reshape(-1, *shape)
            for at, (shape, dtype) in enumerate(_COLUMNS)
        )
        return cls(*columns)

    def at(self, rows: npt.NDArray[np.intp]) -> Windows:
        """Returns the views of some rows."""
        columns: Any = (column[rows] for column in self)
        return Windows(*columns)

    def contiguous(self, count: int | None = None) -> Windows:
        """Returns contiguous columns with the dtypes that the core reads.

        Raises:
            ValueError: a column has another shape than `count` rows have; None: as many as the first column has.
        """
        rows = len(self.window_px) if count is None else count
        columns: list[Any] = []
        for column, (shape, dtype) in zip(self, _COLUMNS, strict=True):
            columns.append(np.ascontiguousarray(column, dtype))
            if columns[-1].shape != (rows, *shape):
                raise ValueError(f"a column of views of shape {columns[-1].shape}, not {(rows, *shape)}")
        return Windows(*columns)


_COLUMNS: tuple[tuple[tuple[int, ...], Any], ...] = (
    ((4,), np.int32),
    ((2,), np.int32),
    ((4,), np.int32),
    ((4,), np.uint8),
    ((), np.int32),
    ((4,), np.uint8),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipes:
    """N images: where each comes from, how it is seen, what is done to it, and where it goes.

    What crosses from who decides to who decodes.  Columns have N rows; one that is None says the same for all images.

    Attributes:
        paths: paths of files; "" where `data` is given; None: no image is in a file.
        offsets: int64: offset in bytes of each image in its file; None for 0.
        lengths: int64: length of each image in bytes; None, and -1, for the rest of the file.
        crcs: int64: CRC-32C of each image, to be compared; None, and -1, if it is not known.
        data: encoded bytes; None where there is a path, and for all.
        parsed: `fastdata.loaders.encoded.Encoded` of `data`, where headers have been parsed already; None for none.
        origins: the file that each image is from, where that is not `paths`; "" if it is not known.
        stamps: state of the file at `origins` when it was opened; None where it is not known, and for all.
        array: uint8, (images, height, width, channels), 3 channels or 1, with any strides, in place of files and data.
        rows: row of each image in `array`.
        same_as: int64: the first row of the same encoded image; such rows are adjacent, and what is said of the image
            counts in the first.  None: all differ.
        windows: views of the images; None: whoever decodes draws them, for the sizes that it finds.
        indices: indices of the samples, for which views are drawn.
        occurrences: distinguishes several views of one sample.
        given: int64, (N, steps of the geometry, GIVEN_NUMBERS): numbers that were drawn for the views already, as
            `draw_views` takes them; None: views are drawn by seed, epoch, sample.
        effects: effects on each image's pixels before they are stored; None for none.
        format: format of the stored pixels.
        out: uint64: address of each result.
        kept: bool: images of which an unpacked record is wanted as well; None for none.
        packed: images that a device can decode are handed over for it, and their places are not written; a filler that
            knows none writes them.
    """

    paths: Sequence[str | os.PathLike[str]] | None = None
    offsets: Ints | None = None
    lengths: Ints | None = None
    crcs: Ints | None = None
    data: Sequence[Any] | None = None
    parsed: Sequence[Any] | None = None
    origins: Sequence[str] | None = None
    stamps: Sequence[Stamp | None] | None = None
    array: Pixels | None = None
    rows: Sequence[int] | Ints | None = None
    same_as: Ints | None = None
    windows: Windows | None = None
    indices: Sequence[int] | None = None
    occurrences: Sequence[int] | None = None
    given: Ints | None = None
    effects: EffectTable | None = None
    format: Format
    out: npt.NDArray[np.uint64]
    kept: npt.NDArray[np.bool_] | None = None
    packed: bool = False

    def __len__(self) -> int:
        return len(self.out)

    def at(self, rows: npt.NDArray[np.intp]) -> Recipes:
        """Returns some rows, given in ascending order; those of one image stay together."""
        images = rows if self.same_as is None else self.same_as[rows]
        chosen = {name: _some(getattr(self, name), images) for name in _OF_IMAGES}
        chosen |= {name: _some(getattr(self, name), rows) for name in _OF_ROWS}
        if self.windows is not None:
            chosen["windows"] = self.windows.at(rows)
        if self.same_as is not None:
            _, firsts, group = np.unique(images, return_index=True, return_inverse=True)
            chosen["same_as"] = firsts[group].astype(np.int64)
        return replace(self, **chosen)


_OF_IMAGES = "paths", "offsets", "lengths", "crcs", "data", "parsed", "origins", "stamps", "kept"  # in first rows
_OF_ROWS = "rows", "indices", "occurrences", "given", "effects", "out"


def _some(column: Any, rows: npt.NDArray[np.intp]) -> Any:
    if column is None or isinstance(column, np.ndarray):
        return None if column is None else column[rows]
    return [column[row] for row in rows.tolist()]


def addresses(first: int, stride_bytes: int, count: int) -> npt.NDArray[np.uint64]:
    """Returns addresses of `count` images, one after the other from `first` on."""
    return np.arange(first, first + count * stride_bytes, stride_bytes, dtype=np.uint64)


class PackedRows:
    """Images of N that a device is to decode, as `fastdata/native/jpeg/packed.h` has them, in memory that goes with it.

    Args:
        count: N.
        free: frees the memory of one, given by its address.

    Attributes:
        addresses: uint64, (N,): where each begins; 0 for an image that is decoded already, or refused.
        sizes: int64, (N,): bytes of each; 0 likewise.
    """

    def __init__(self, count: int, free: Callable[[int], object]) -> None:
        self.addresses, self.sizes = np.zeros(count, np.uint64), np.zeros(count, np.int64)
        weakref.finalize(self, _free_all, self.addresses, free).atexit = False

    def take(self, row: int, others: PackedRows, other: int) -> None:
        """Takes over row `other` of others as `row`."""
        self.addresses[row], self.sizes[row] = others.addresses[other], others.sizes[other]
        others.addresses[other] = others.sizes[other] = 0


def _free_all(addresses: npt.NDArray[np.uint64], free: Callable[[int], object]) -> None:
    for address in addresses[addresses != 0].tolist():
        free(address)
