"""Fields of samples: values by the extensions of their members, as WebDataset names them, and members by values."""

from __future__ import annotations

import io
import json
import math
import os
import re
from typing import Any

import numpy as np

from fastdata.errors import ConversionError
from fastdata.shards.tar import IMAGE_EXTENSIONS
from fastdata.views.header import parse_header

__all__ = ["CLASS", "IMAGE", "KEY", "decoded", "encoded", "has_format", "is_field", "names_image"]

IMAGE, CLASS, KEY = "image", "cls", "__key__"  # fields that every shard has
_TEXT = frozenset({"txt", "text", "caption", "transcript"})
_PICTURES = IMAGE_EXTENSIONS - {"npy", "fdc"}


def names_image(field: str) -> bool:
    """True for names of a sample's image: "image", or the extension of an image file."""
    return field == IMAGE or field in IMAGE_EXTENSIONS


def is_field(name: object) -> bool:
    """True for what can be the extension of a member: small letters, digits, _ and -, with dots between them."""
    return isinstance(name, str) and re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name) is not None


def has_format(field: str, data: bytes) -> bool:
    """True if an extension of image files may be that of an encoded image; of formats without a known header always."""
    header = parse_header(data)
    if header is None or field in ("img", "image"):
        return field not in ("jpg", "jpeg", "png", "npy")
    return field in {"jpeg": ("jpg", "jpeg"), "unpacked": ("jpg", "jpeg", "fdc")}.get(header.kind, (header.kind,))


def decoded(field: str, data: bytes) -> Any:
    """The value of a member.

    Args:
        field: the member's extension; what is behind its last dot decides: "mask.png" is an image.
        data: the member's bytes.

    Returns:
        For JSON what it holds; for txt, text, caption and transcript a str; for npy an array; for an image a
        `PIL.Image.Image` in the mode of its file; for anything else the bytes.

    Raises:
        ValueError: they are not what the extension says, or an array of Python objects.
        OSError: it is no image that Pillow knows.
    """
    kind = _kind(field)
    if kind in ("json", "jsn"):
        return json.loads(data)
    if kind in _TEXT:
        return data.decode()
    if kind == "npy":
        return _array(data)
    if kind in _PICTURES:
        from fastdata.lazy.opening import open_image  # imports Pillow

        return open_image(data)
    return data


def _array(data: bytes) -> Any:
    """The array of an NPY file, whose size is compared with what its header claims before memory is taken."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which would be unpickled")
    if math.prod(shape) * dtype.itemsize > len(data):
        raise ValueError(f"its header claims the shape {shape} of {dtype}, more than its {len(data)} bytes")
    return np.load(io.BytesIO(data), allow_pickle=False)


def encoded(field: str, value: Any, where: str) -> bytes:
    """The bytes of a member for a value; see `decoded`.

    Args:
        field: the member's extension.
        value: bytes of a file, or its path (`pathlib.Path`), for every extension; or a str for text; anything that
            JSON can hold for JSON; an array for npy; an array or image for png, which is stored without loss.
        where: the sample, with which messages begin.

    Raises:
        ConversionError: the value is not one for this extension.
        OSError: the file cannot be read.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, os.PathLike):
        from fastdata.system.files import read_file

        return read_file(value)
    kind = _kind(field)
    try:
        if kind in ("json", "jsn"):
            return json.dumps(value, ensure_ascii=False, default=_plain).encode()
        if kind in _TEXT and isinstance(value, str):
            return value.encode()
        if kind == "npy":
            buffer = io.BytesIO()
            np.save(buffer, np.asarray(value), allow_pickle=False)
            return buffer.getvalue()
        if kind == "png":
            from fastdata.loaders.pillow_files import encode_png

            return encode_png(value)
    except (TypeError, ValueError) as error:
        raise ConversionError(f"{where}: field {field!r} cannot be stored: {error}") from error
    raise ConversionError(
        f"{where}: field {field!r} is a {type(value).__name__}; give the bytes of a file, or a pathlib.Path of one"
    )


def _kind(field: str) -> str:
    return field.rpartition(".")[2].lower()


def _plain(value: Any) -> Any:
    """Arrays, tensors and NumPy's numbers as JSON can hold them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON can hold")
