"""Pillow as the fallback of all backends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastdata.loaders import pillow
from fastdata.loaders.backend import Encoded, HandBack, Pixels
from fastdata.views.header import parse_header
from fastdata.views.view import View

__all__ = ["asking_pillow", "by_pillow", "inspect", "is_asking_pillow"]


class _Asking(threading.local):
    now = False


_this_thread = _Asking()


@contextmanager
def asking_pillow() -> Iterator[None]:
    """Marks a `with` block in which this thread has Pillow decode: replacements of `PIL.Image.open` leave it alone."""
    before, _this_thread.now = _this_thread.now, True
    try:
        yield
    finally:
        _this_thread.now = before


def is_asking_pillow() -> bool:
    """True within `asking_pillow`, in this thread."""
    return _this_thread.now


def inspect(data: bytes | bytearray | memoryview) -> Encoded:
    """Finds an encoded image's size from its header, or by asking Pillow.

    Raises:
        OSError, PIL.Image.DecompressionBombError: Pillow cannot or will not open it.
    """
    data = data if isinstance(data, bytes) else bytes(data)
    header = parse_header(data)
    if header is not None:
        return Encoded(data=data, header=header, width=header.width, height=header.height)
    with asking_pillow():
        width, height = pillow.size_of(data)
    return Encoded(data=data, header=None, width=width, height=height)


def by_pillow(image: Encoded, view: View, out: Pixels, refusal: Exception | None = None) -> Exception | None:
    """Decodes by Pillow an image that a library refused, unless finally (no HandBack); returns the error or None."""
    try:
        pillow.check_pixel_count(image.width, image.height)
        if refusal is not None and not isinstance(refusal, HandBack):
            return refusal
        with asking_pillow():
            pillow.decode_view(image.data, view, out)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
        return error
    return None
