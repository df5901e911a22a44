"""The C interface for ctypes: `fastdata_native.h` is the specification, and only this file repeats its structs."""

from __future__ import annotations

import ctypes
import os
import sys
from enum import IntEnum
from pathlib import Path
from typing import Any

from fastdata.tables import EFFECT, PACKED_HEAD

__all__ = [
    "MESSAGE_BYTES",
    "READS_PNGS",
    "CArray",
    "CFormat",
    "CGeometry",
    "CIndexes",
    "CRecipes",
    "CViews",
    "COp",
    "COptions",
    "IndexUse",
    "NativeMissing",
    "OpKind",
    "PassOrder",
    "Status",
    "open_library",
]

MESSAGE_BYTES = 128

READS_PNGS = 1  # a bit of fd_features

_ABI_VERSION = 25


class NativeMissing(Exception):
    """The core was not built or cannot be loaded; the text says why."""


class Status(IntEnum):
    """The outcome for one image; `fd_status` in the header."""

    OK = 0
    UNSUPPORTED = 1
    CORRUPT = 2
    LIMIT = 3
    UNREADABLE = 4
    BAD_REQUEST = 5
    OUT_OF_MEMORY = 6
    NO_VIEW = 7


class IndexUse(IntEnum):
    """The use of an image's index: not used, used, or wrong; `fd_index_use` in the header."""

    UNUSED = 0
    USED = 1
    WRONG = 2


class PassOrder(IntEnum):
    """The order of a resize's two passes; `fd_pass_order` in the header."""

    HORIZONTAL_FIRST = 0
    SHRINK_FIRST = 1


class OpKind(IntEnum):
    """The kind of a geometric step; `fd_op_kind` in the header."""

    RANDOM_RESIZED_CROP = 0
    RESIZE = 1
    CENTER_CROP = 2
    RANDOM_CROP = 3
    FLIP_HORIZONTAL = 4
    FLIP_VERTICAL = 5
    PAD = 6
    RESIZE_KEEP_RATIO = 7
    RANDOM_CROP_OR_PAD = 8


_i32, _i64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


class CFormat(ctypes.Structure):
    """fd_format."""

    _fields_ = [("layout", _i32), ("element", _i32), ("channels", _i32), ("table", _pointer), ("strides", _i64 * 2)]


class COptions(ctypes.Structure):
    """fd_options."""

    _fields_ = [
        ("pass_order", _i32),
        ("fast", _i32),
        ("max_scans", _i32),
        ("max_pixels", _i64),
        ("max_memory_bytes", _i64),
        ("max_file_bytes", _i64),
    ]


class CIndexes(ctypes.Structure):
    """fd_indexes."""

    _fields_ = [(name, _pointer) for name in ("data", "data_bytes", "file_bytes", "modified_ns", "uses")]


class CViews(ctypes.Structure):
    """fd_views."""

    _fields_ = [(name, _pointer) for name in ("windows_px", "resizes_px", "crops_px", "flips", "filters", "outside")]


class COp(ctypes.Structure):
    """fd_op."""

    _fields_ = [
        ("kind", _i32),
        *((name, _i32) for name in ("width", "height", "shorter", "longest", "pad_if_needed")),
        *((name, _i32 * 4) for name in ("padding", "outside", "filters")),
        ("filter_count", _i32),
        ("scale_is_of_area", _i32),
        *((name, ctypes.c_double * 2) for name in ("scale", "ratio", "log_ratio")),
        ("p", ctypes.c_double),
        ("chances", ctypes.c_double * 2),
    ]


class CGeometry(ctypes.Structure):
    """fd_geometry."""

    _fields_ = [("ops", ctypes.POINTER(COp)), ("op_count", _i64), ("key", ctypes.c_uint32 * 2)]


class CArray(ctypes.Structure):
    """fd_array."""

    _fields_ = [
        ("memory", _pointer),
        *((name, _i64) for name in ("memory_bytes", "first_byte")),
        ("strides_bytes", _i64 * 4),
        ("images", _i64),
        *((name, _i32) for name in ("width", "height", "channels", "reserved")),
    ]


class CRecipes(ctypes.Structure):
    """fd_recipes."""

    _fields_ = [
        ("count", _i64),
        ("paths", ctypes.c_char_p),
        ("paths_bytes", _i64),
        *((name, _pointer) for name in ("offsets", "lengths", "crcs", "data", "data_bytes", "array", "rows")),
        *((name, _pointer) for name in ("same_as", "indexes", "views", "indices", "occurrences", "given")),
        ("out_size_px", _i32 * 2),
        *((name, _pointer) for name in ("out", "effects")),
        ("effects_per_image", _i64),
        *((name, _pointer) for name in ("kept", "statuses", "messages", "read_bytes", "records", "record_bytes")),
        *((name, _pointer) for name in ("packed", "packed_bytes")),
        *((name, _i64) for name in ("read_ns", "decode_ns")),
    ]


_STRUCTS = {
    "fd_format": CFormat,
    "fd_options": COptions,
    "fd_indexes": CIndexes,
    "fd_views": CViews,
    "fd_op": COp,
    "fd_geometry": CGeometry,
    "fd_array": CArray,
    "fd_recipes": CRecipes,
}


def open_library() -> ctypes.CDLL:
    """Finds and loads the library.

    Raises:
        NativeMissing: the library is missing, or of another version.
    """
    path = _find()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeMissing(f"{path} cannot be loaded: {error}") from error
    version = library.fd_abi_version()
    if version != _ABI_VERSION:
        raise NativeMissing(f"{path} has interface version {version}, this package needs {_ABI_VERSION}; reinstall it")
    try:
        _declare(library)
    except AttributeError as error:
        raise NativeMissing(f"{path} comes from another build: {error}; reinstall it") from error
    if differing := [name for name, own in _layouts().items() if _layout_in(library, name) != own]:
        raise NativeMissing(f"{path} lays out {', '.join(differing)} in another way than this package; reinstall it")
    return library


def _layouts() -> dict[str, list[int]]:
    """Size and offsets of the members of each struct, as they are here."""
    found = {}
    for name, struct in _STRUCTS.items():
        offsets = [getattr(struct, field[0]).offset for field in struct._fields_]
        found[name] = [ctypes.sizeof(struct), *offsets]
    found["PackedHead"] = [4 * len(PACKED_HEAD), *range(0, 4 * len(PACKED_HEAD), 4)]
    fields: Any = EFFECT.fields
    return {**found, "fd_effect": [EFFECT.itemsize, *(offset for _, offset in fields.values())]}


def _layout_in(library: ctypes.CDLL, name: str) -> list[int]:
    numbers = (_i32 * 64)()
    return list(numbers[: library.fd_struct_layout(name.encode(), numbers, len(numbers))])


def _find() -> Path:
    name = {"darwin": "libfastdata_native.dylib", "win32": "fastdata_native.dll"}.get(
        sys.platform, "libfastdata_native.so"
    )
    named = os.environ.get("FASTDATA_NATIVE_LIBRARY")
    if named:
        return Path(named)
    package = sys.modules[__package__.partition(".")[0]]
    folders = [Path(folder) / "native" for folder in package.__path__]  # two in an editable install
    for folder in folders:
        if (folder / name).exists():
            return folder / name
    raise NativeMissing("this installation was made without a C++ compiler or libjpeg-turbo's headers")


def _declare(library: ctypes.CDLL) -> None:
    pointer, i32, i64 = _pointer, _i32, _i64
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "fd_description": (ctypes.c_char_p, []),
        "fd_struct_layout": (i32, [ctypes.c_char_p, pointer, i32]),
        "fd_features": (i32, []),
        "fd_kernels": (ctypes.c_char_p, []),
        "fd_choose_kernels": (i32, [ctypes.c_char_p]),
        "fd_pool_create": (pointer, [i32]),
        "fd_pool_destroy": (None, [pointer]),
        "fd_pool_abandon": (None, [pointer]),
        "fd_fill": (None, [pointer] * 5),
        "fd_gather": (None, [i64, *[pointer] * 3]),
        "fd_read": (None, [pointer] * 5),
        "fd_has_whole_scans": (i32, [pointer, i64, i64, i32]),
        "fd_draw_views": (i64, [i64, *[pointer] * 6]),
        "fd_resize": (i32, [pointer, i64, i32, i64, *[pointer] * 4]),
        "fd_index": (i32, [pointer, i64, i32, *[pointer] * 3]),
        "fd_unpack": (i32, [pointer, i64, pointer, i32, *[pointer] * 2]),
        "fd_restore": (i32, [pointer, i64, *[pointer] * 3]),
        "fd_repack": (i32, [pointer, i64, i32, *[pointer] * 4]),
        "fd_free": (None, [pointer]),
        "fd_normals": (None, [i64, i64, i64, i64, pointer, pointer]),
        "fd_philox": (None, [i64, pointer, pointer, pointer, i64, pointer, pointer]),
        "fd_warp": (i32, [pointer, i32, i32, *[pointer] * 3]),
        "fd_convert": (i32, [pointer, i32, i32, pointer, i64, pointer, pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
