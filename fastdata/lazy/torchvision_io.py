"""Makes torchvision's decoders, `decode_image`, `read_image` and `decode_jpeg`, leave ordinary images pending.

Their pixels are those of Pillow and of the core for JPEGs and PNGs of 8 bits in RGB (tests compare them), so the same
pending tensor stands for either.  Where the core does not decode a file, torchvision decides about it: its batch is
made again.  In streams nothing would be gained, as the whole image is decoded at once.
"""

from __future__ import annotations

import io
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from fastdata.lazy.encoded_source import EncodedSource, find_source
from fastdata.lazy.pending_tensor import pending
from fastdata.lazy.sample_context import count_fused, decodes_at_once, note_opened, note_source, opens_encoded
from fastdata.lazy.undecoded import Undecoded
from fastdata.views.levels import UINT8
from fastdata.views.view import View

__all__ = ["DECODERS", "leaving_pending", "noting_files"]

DECODERS = ("decode_image", "decode_jpeg")  # torch's operators, behind all of torchvision's functions
_UNCHANGED, _RGB = 0, 3  # values of torchvision.io.ImageReadMode

_this_thread = threading.local()


def noting_files(original: Callable[[str], torch.Tensor]) -> Callable[[str], torch.Tensor]:
    """Wraps the operator that reads a file, to know the path of what is decoded next."""

    @wraps(original)
    def read_file(path: str) -> torch.Tensor:
        data = original(path)
        if opens_encoded():
            _this_thread.read = weakref.ref(data), path
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
        if opens_encoded() and not decodes_at_once() and mode in (_UNCHANGED, _RGB) and not apply_exif_orientation:
            source = _source_of(data, began())
            if source is not None and _is_rgb(source, mode):
                assert source.header is not None
                note_source(source)
                count_fused(1)
                whole = View.whole(source.header.width, source.header.height)
                return pending(Undecoded(source, whole, UINT8, channels_last=True))
        return original(data, mode, apply_exif_orientation)

    return decode


def _source_of(data: Any, began: float) -> EncodedSource | None:
    """The image in a tensor of bytes, by the path that they were read from if they are unchanged."""
    if type(data) is not torch.Tensor or data.dtype is not torch.uint8 or data.dim() != 1 or data.is_inference():
        return None
    read, path = getattr(_this_thread, "read", (None, ""))
    is_of_file = read is not None and read() is data and data._version == 0
    note_opened(path if is_of_file else None)
    source = find_source(path if is_of_file else io.BytesIO(data.numpy().tobytes()), keep_paths_before=began)
    if source is not None:
        source.only_core = True
    return source


def _is_rgb(source: EncodedSource, mode: int) -> bool:
    """True for images of three channels, and grey JPEGs that are to be RGB."""
    is_grey_jpeg = source.header is not None and source.header.kind == "jpeg" and source.mode == "L"
    return source.mode == "RGB" or (is_grey_jpeg and mode == _RGB)
