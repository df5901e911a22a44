"""Decodes JPEGs by libjpeg-turbo's TurboJPEG library through PyTurboJPEG, resized with Pillow's arithmetic.

It works with libjpeg-turbo 2.1 (PyTurboJPEG 1.8) and 3.x (1.8 and 2.x).

The rows below the window are not decoded: TurboJPEG 2.1 has no call for that, but in a sequential JPEG whose one scan
holds all components the rows are coded from top to bottom, so a copy of the file that claims to be less high decodes
to the same first rows.  libjpeg then reports the unread rest as "extraneous bytes", which is expected, and still
runs to the end of the file, so truncation is noticed exactly as in a full decode.  Any other error or warning
of the library sends the image to Pillow, which decides.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from types import MappingProxyType
from typing import Any

from fastdata.loaders import pillow, resample
from fastdata.loaders.backend import Encoded, Fidelity, HandBack, Pixels
from fastdata.loaders.per_image import PerImageBackend
from fastdata.loaders.pixel_memory import Scratch, dct_denominator
from fastdata.system.installed import install_command
from fastdata.views.view import View

__all__ = ["TurboJpegBackend"]

_UNREAD_ROWS = re.compile(r"extraneous bytes before marker 0xd[0-79]")


class TurboJpegBackend(PerImageBackend):
    """libjpeg-turbo for JPEGs, Pillow for the rest."""

    name = "turbojpeg"
    mean_tolerance = MappingProxyType({"exact": 0.0, "fast": 4.0})
    install_hint = (
        f"install PyTurboJPEG and the TurboJPEG library: {install_command('turbojpeg')}, then "
        "apt-get install libturbojpeg0 (Debian; libturbojpeg on Ubuntu), dnf install turbojpeg (Fedora), "
        "or brew install jpeg-turbo (macOS)"
    )

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self._scratch = Scratch()
        self._library = _load_library()

    @classmethod
    def version(cls) -> str:
        _load_library()
        from importlib.metadata import version

        return f"PyTurboJPEG {version('PyTurboJPEG')}"

    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        # A progressive file may leave coefficients out; libjpeg then smooths blocks, otherwise from version to version,
        # so the one in Pillow has to do it.  Nothing is lost: all of a progressive file must be decoded anyway.
        if not image.is_plain_jpeg() or image.jpeg is None or not image.jpeg.sequential:
            raise HandBack
        denominator = dct_denominator(view) if self.fidelity == "fast" else 1
        if denominator > 1:
            self._decode_scaled(image, denominator, view, out)
        else:
            self._decode_window(image, view, out)

    def _decode_window(self, image: Encoded, view: View, out: Pixels) -> None:
        import turbojpeg

        left, top, _, bottom = view.window_px
        data, rows = _without_rows_below(image, bottom)
        flat = self._scratch.take(4 * image.width * rows)
        place = flat.reshape(rows, image.width, 4)
        flags = turbojpeg.TJFLAG_FASTUPSAMPLE | turbojpeg.TJFLAG_FASTDCT if self.fidelity == "fast" else 0
        _decode(self._library, data, place, rows < image.height, flags=flags)
        resample.resize_window(flat[4 * (top * image.width + left) :], image.width, view, out)

    def _decode_scaled(self, image: Encoded, denominator: int, view: View, out: Pixels) -> None:
        import turbojpeg

        width, height = -(-image.width // denominator), -(-image.height // denominator)
        place = self._scratch.take(4 * width * height).reshape(height, width, 4)
        flags = turbojpeg.TJFLAG_FASTUPSAMPLE | turbojpeg.TJFLAG_FASTDCT
        _decode(self._library, image.data, place, False, flags=flags, scaling_factor=(1, denominator))
        pillow.resize_scaled(place, (image.width, image.height), view, out)


def _without_rows_below(image: Encoded, bottom: int) -> tuple[bytes | bytearray, int]:
    """Returns a JPEG with the same rows down to `bottom`, and the number of rows in its header."""
    jpeg = image.jpeg
    if jpeg is None or not jpeg.single_scan:
        return image.data, image.height
    # Chroma upsampling looks one chroma row below, so a whole row of MCUs is added.
    rows = (-(-bottom // jpeg.mcu_height_px) + 1) * jpeg.mcu_height_px
    if rows >= image.height:
        return image.data, image.height
    shorter = bytearray(image.data)
    struct.pack_into(">H", shorter, jpeg.height_at, rows)
    return shorter, rows


def _decode(library: Any, data: bytes | bytearray, place: Pixels, rows_unread: bool, **options: Any) -> None:
    import turbojpeg

    try:
        decoded = library.decode(data, pixel_format=turbojpeg.TJPF_RGBX, dst=place, **options)
    except _Complaint as complaint:
        if not (rows_unread and _UNREAD_ROWS.search(str(complaint))):
            raise HandBack from complaint
        return
    except OSError as error:
        raise HandBack from error
    if decoded is not place:
        raise HandBack  # the library and the header parser disagree about the size


class _Complaint(OSError):
    """An error or warning that TurboJPEG reported."""


@cache
def _load_library() -> Any:
    """Returns the one TurboJPEG object; each call makes its own decompressor, so threads may share it."""
    try:
        import turbojpeg
    except ImportError as error:
        raise TurboJpegBackend.unavailable(error) from error
    hooks = ("_TurboJPEG__report_error", "_TurboJPEG__get_error_string")
    if not all(hasattr(turbojpeg.TurboJPEG, hook) for hook in hooks):
        raise TurboJpegBackend.unavailable("this version of PyTurboJPEG reports errors in an unknown way")

    class StrictTurboJpeg(turbojpeg.TurboJPEG):  # type: ignore[misc, unused-ignore]
        """Raises for warnings, too: PyTurboJPEG only prints them, and a truncated image would pass."""

        def _TurboJPEG__report_error(self, handle: Any) -> None:  # noqa: N802 - PyTurboJPEG's private name
            raise _Complaint(self._TurboJPEG__get_error_string(handle))

    try:
        return StrictTurboJpeg()
    except (OSError, RuntimeError, AttributeError) as error:
        raise TurboJpegBackend.unavailable(error) from error
