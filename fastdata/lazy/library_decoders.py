"""Makes torchvision's and torchcodec's decoders of images leave ordinary ones pending.

These are torchvision's `decode_image`, `read_image` and `decode_jpeg`, and torchcodec's `decode_image`, `decode_jpeg`
and `decode_png`.  Their pixels are those of Pillow and of the core for JPEGs and PNGs of 8 bits in RGB (tests compare
them), so the same pending tensor stands for either.  Where the core does not decode a file, the library decides about
it: its batch is made again.  In streams nothing would be gained, as the whole image is decoded at once.
"""

from __future__ import annotations

import io
import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from fastdata.lazy.encoded_source import EncodedSource, find_source
from fastdata.lazy.pending_tensor import pending
from fastdata.lazy.sample_context import context
from fastdata.lazy.undecoded import Undecoded
from fastdata.loaders import pillow_files
from fastdata.views.levels import UINT8
from fastdata.views.view import View

__all__ = ["DECODERS", "READS", "TORCHCODECS", "leaving_pending", "leaving_upright_pending", "noting_files"]

DECODERS = ("decode_image", "decode_jpeg")  # torch's operators, behind all of torchvision's functions
# Those behind torchcodec's, by their names in its module, and what reads a file there.
TORCHCODECS, READS = ("_decode_jpeg", "_decode_png"), "_source_to_tensor"
_UNCHANGED, _RGB = 0, 3  # values of torchvision.io.ImageReadMode, and of torchcodec's
_MOST_PIXELS = 89_478_485  # Pillow's limit unless a program changes it; for 256 MB of pixels
_UINT16 = 1  # what torchcodec's operator for PNGs calls this dtype

_EXIF = b"Exif\0\0"

_this_thread = threading.local()


def noting_files(original: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """Wraps the function that reads a file, to know the path of what is decoded next."""

    @wraps(original)
    def read_file(path: Any) -> torch.Tensor:
        data = original(path)
        if isinstance(path, str | Path) and context.opens_encoded:
            _this_thread.read = weakref.ref(data), os.fspath(path)
        return data

    return read_file


def leaving_pending(original: Callable[..., torch.Tensor], began: Callable[[], float]) -> Callable[..., torch.Tensor]:
    """Wraps an operator that decodes.

    Args:
        original: the operator.
        began: gives the time, in seconds since 1970, since which files that are read again must not have changed.
    """

    @wraps(original)
    def decode(data: torch.Tensor, mode: int = _UNCHANGED, apply_exif_orientation: bool = False) -> torch.Tensor:
        source = None if apply_exif_orientation else _pending_source(data, mode, began())
        return original(data, mode, apply_exif_orientation) if source is None else _left_pending(source)

    return decode


def leaving_upright_pending(
    original: Callable[..., torch.Tensor], began: Callable[[], float]
) -> Callable[..., torch.Tensor]:
    """Wraps an operator of torchcodec's, which turns images as their metadata say; see `leaving_pending`."""

    @wraps(original)
    def decode(data: torch.Tensor, mode: int = _UNCHANGED, *dtype: int) -> torch.Tensor:
        source = None if _UINT16 in dtype else _pending_source(data, mode, began())
        if source is None or not _is_upright(source):
            return original(data, mode, *dtype)
        return _left_pending(source)

    return decode


def _pending_source(data: Any, mode: int, began: float) -> EncodedSource | None:
    """The image in a tensor of bytes, if it may stay encoded."""
    context.notes.others += context.is_for_others
    if not context.opens_encoded or context.decodes_at_once or mode not in (_UNCHANGED, _RGB):
        return None
    source = _source_of(data, began)
    return source if source is not None and _is_rgb(source, mode) and not _is_huge(source) else None


def _is_huge(source: EncodedSource) -> bool:
    """True for a size of which the library itself is to decide if it may be."""
    header = source.header
    return header is None or header.width * header.height > _MOST_PIXELS


def _left_pending(source: EncodedSource) -> torch.Tensor:
    assert source.header is not None
    context.note_source(source)
    context.notes.fused += 1
    whole = View.whole(source.header.width, source.header.height)
    return pending(Undecoded(source, whole, UINT8, channels_last=True))


def _is_upright(source: EncodedSource) -> bool:
    """True if the image's metadata, if it has any, do not turn it."""
    assert source.header is not None
    frame = source.header.jpeg
    if frame is not None and not frame.has_metadata:
        return True
    data = source.read()
    if frame is None:
        return b"eXIf" not in data  # of a PNG
    head = data[: frame.scan_at]
    if head.count(_EXIF) != 1:
        return head.count(_EXIF) == 0
    return pillow_files.orientation(head[head.index(_EXIF) :]) == 1


def _source_of(data: Any, began: float) -> EncodedSource | None:
    """The image in a tensor of bytes, by the path that they were read from if they are unchanged."""
    if type(data) is not torch.Tensor or data.dtype is not torch.uint8 or data.dim() != 1 or data.is_inference():
        return None
    read, path = getattr(_this_thread, "read", (None, ""))
    is_of_file = read is not None and read() is data and data._version == 0
    context.opened = path if is_of_file else None
    source = find_source(path if is_of_file else io.BytesIO(data.numpy().tobytes()), keep_paths_before=began)
    if source is not None:
        source.only_core = True
    return source


def _is_rgb(source: EncodedSource, mode: int) -> bool:
    """True for images of three channels, and grey JPEGs that are to be RGB."""
    is_grey_jpeg = source.header is not None and source.header.kind == "jpeg" and source.mode == "L"
    return source.mode == "RGB" or (is_grey_jpeg and mode == _RGB)
