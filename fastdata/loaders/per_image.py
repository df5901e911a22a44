"""Backends that decode image by image, and Pillow as the fallback of all backends."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fastdata.loaders import pillow
from fastdata.loaders.backend import Backend, Encoded, Pixels
from fastdata.native import load
from fastdata.tables import Recipes
from fastdata.views.header import parse_header
from fastdata.views.view import View

__all__ = ["HandBack", "PerImageBackend", "asking_pillow", "by_pillow", "inspect", "is_asking_pillow", "store"]


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


class HandBack(Exception):
    """Raised by `decode_view` for an image that Pillow must decode."""


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


def store(recipes: Recipes, row: int, pixels: Pixels) -> None:
    """Does a row's effects to contiguous RGB pixels (height, width, 3), and stores them at its place; for fillers.

    Raises:
        NativeMissing: there is no native core, which does it.
    """
    effects = None if recipes.effects is None else recipes.effects[row : row + 1]
    load().convert(pixels, int(recipes.out[row]), recipes.format, effects)


class PerImageBackend(Backend):
    """A backend that supplies only `decode_view`; images that it hands back go to Pillow."""

    @abstractmethod
    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        """Decodes one image into `out`, (height, width, 3).

        Raises:
            HandBack: Pillow must decode this image.
            Exception: the image cannot be decoded at all.
        """

    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        statuses: list[Exception | None] = []
        for image, view, place in zip(images, views, out, strict=True):
            try:
                self._decode_or_hand_back(image, view, place)
                statuses.append(None)
            except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
                statuses.append(error)
        return statuses

    def _decode_or_hand_back(self, image: Encoded, view: View, out: Pixels) -> None:
        pillow.check_pixel_count(image.width, image.height)
        try:
            if view.is_beside:
                raise HandBack("nothing of the image is seen, but what is beside it")
            self.decode_view(image, view, out)
        except HandBack:
            pillow.decode_view(image.data, view, out)
