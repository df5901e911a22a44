"""The contract between the pipeline and a decode backend.

A backend turns encoded images and the views drawn for them into pixels.  It receives decisions and takes none: it
draws no random number, reads no file, starts no thread.

Input
    `Encoded` images: the file's bytes and the header parsed from them (None when the kind is unknown).  They are
    read-only and may be shared with other threads.
    One `View` per image.  Its window lies inside the image.

Output
    ``out[i]`` is a caller-owned, C-contiguous uint8 array of shape (height, width, 3), RGB, of the view's size.
    The backend fills it completely, or reports why not; it keeps no reference to it.

Pixels
    With ``fidelity="exact"`` they are those of Pillow: ``open → convert("RGB") → crop → resize → crop → transpose``.
    EXIF orientation is left alone.  `MEAN_TOLERANCE` states the mean absolute difference from that, in grey levels,
    that each backend is allowed; the tests read it.
    With ``fidelity="fast"`` a JPEG may be decoded at 1/2, 1/4 or 1/8 when its window is at least that much larger
    than the result, and with cheaper chroma upsampling.

Failures
    `decode` returns one entry per image: None, or the exception that stopped that image.  It never raises for an
    image, and a bad image leaves its neighbours unharmed.  What a backend cannot decode it hands to Pillow, so every
    backend accepts what Pillow accepts.  It refuses what Pillow refuses, but that damage below the window may go
    unseen: those rows are not decoded.  A file without an end is always noticed.

Threads
    `decode` may run in several threads at once.  Scratch memory is per thread.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import BackendUnavailable
from fastdata.header import ImageHeader, JpegFrame, has_whole_scans, parse_header
from fastdata.views import View

__all__ = [
    "FIDELITIES",
    "MEAN_TOLERANCE",
    "Backend",
    "Encoded",
    "HandBack",
    "PerImageBackend",
    "Scratch",
    "dct_denominator",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]

FIDELITIES = ("exact", "fast")

# Mean absolute difference from Pillow, in grey levels of 255, allowed per image.  "exact" OpenCV decodes with the
# libjpeg-turbo of its own build; the wheels' build decodes like Pillow's, a distribution's may round chroma otherwise.
MEAN_TOLERANCE: dict[str, dict[str, float]] = {
    "exact": {"pil": 0.0, "native": 0.0, "turbojpeg": 0.0, "opencv": 0.5, "dali": 0.6},
    "fast": {"pil": 4.0, "native": 4.0, "turbojpeg": 4.0, "opencv": 6.0, "dali": 4.0},
}

_SCRATCH_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """One encoded image: its bytes, its parsed header (None when the kind is unknown), its size in pixels."""

    data: bytes
    header: ImageHeader | None
    width: int
    height: int

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Encoded:
        """Finds an image's size from its header, or by asking Pillow.

        Raises:
            OSError, PIL.Image.DecompressionBombError: Pillow cannot or will not open it.
        """
        data = data if isinstance(data, bytes) else bytes(data)
        header = parse_header(data)
        if header is not None:
            return cls(data=data, header=header, width=header.width, height=header.height)
        from fastdata.loaders import pillow

        width, height = pillow.size_of(data)
        return cls(data=data, header=None, width=width, height=height)

    def is_plain_jpeg(self) -> bool:
        """True for 8-bit grey or three-component JPEGs, the only files a JPEG library decodes here."""
        jpeg = self.jpeg
        return jpeg is not None and jpeg.precision_bits == 8 and jpeg.components in (1, 3)

    def is_for_core(self) -> bool:
        """True for the kinds that the native core may decode."""
        return self.is_plain_jpeg() or (self.header is not None and self.header.kind in ("png", "npy"))

    def is_whole_jpeg(self) -> bool:
        """True for a plain JPEG in which nothing is missing or out of place, for libraries that do not say so."""
        return self.is_plain_jpeg() and self.jpeg is not None and has_whole_scans(self.data, self.jpeg)

    @property
    def jpeg(self) -> JpegFrame | None:
        """How the file is coded, if it is a JPEG."""
        return self.header.jpeg if self.header is not None else None


class Backend(ABC):
    """Turns encoded images and views into pixels; see the module's text for the contract."""

    name: ClassVar[str]
    install_hint: ClassVar[str]

    def __init__(self, *, fidelity: str = "exact") -> None:
        self.fidelity = fidelity

    def __reduce__(self) -> tuple[partial[Backend], tuple[()]]:
        return partial(type(self), fidelity=self.fidelity), ()  # a copy opens its library anew

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The library's version in words.

        Raises:
            BackendUnavailable: it is not installed or cannot be used.
        """

    @abstractmethod
    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        """Decodes every image into its place.

        Args:
            images: N encoded images.
            views: N views.
            out: N uint8 arrays (height, width, 3) of the views' sizes; an (N, H, W, 3) array is one.

        Returns:
            N entries: None, or what stopped that image.
        """

    @classmethod
    def unavailable(cls, reason: object) -> BackendUnavailable:
        """The error that says why this backend cannot be used and what to install."""
        return BackendUnavailable(f"backend '{cls.name}' is not available ({reason}); {cls.install_hint}")


class HandBack(Exception):
    """Raised by `decode_view` for an image that Pillow must decode."""


def by_pillow(image: Encoded, view: View, out: Pixels, refusal: Exception | None = None) -> Exception | None:
    """Decodes by Pillow what a library did not, unless its refusal is final (no HandBack); returns what went wrong."""
    from fastdata.loaders import pillow

    try:
        pillow.check_pixel_count(image.width, image.height)
        if refusal is not None and not isinstance(refusal, HandBack):
            return refusal
        pillow.decode_view(image.data, view, out)
    except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
        return error
    return None


class PerImageBackend(Backend):
    """A backend that supplies only `decode_view`; what that hands back goes to Pillow."""

    @abstractmethod
    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        """Decodes one image into `out`, (height, width, 3).

        Raises:
            HandBack: Pillow is to decode this image.
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
        from fastdata.loaders import pillow

        pillow.check_pixel_count(image.width, image.height)
        try:
            self.decode_view(image, view, out)
        except HandBack:
            pillow.decode_view(image.data, view, out)


class Scratch(threading.local):
    """Memory that one thread uses again for every image."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> Pixels:
        """A flat uint8 array of exactly `size_bytes`, valid until this thread's next call."""
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if self._bytes.size < size_bytes:
            self._bytes = np.empty(size_bytes, np.uint8)
        return self._bytes[:size_bytes]


def dct_denominator(view: View) -> int:
    """The largest of 8, 4, 2, 1 by which the view's window can shrink and still not be smaller than the result."""
    left, top, right, bottom = view.window_px
    width, height = view.resize_px
    for denominator in (8, 4, 2):
        if right - left >= denominator * width and bottom - top >= denominator * height:
            return denominator
    return 1
