"""Decodes JPEGs by OpenCV's imdecode, resized with Pillow's arithmetic ("exact") or by OpenCV itself ("fast")."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any

import numpy as np

from fastdata.loaders import resample
from fastdata.loaders.backend import Encoded, Fidelity, HandBack, Pixels
from fastdata.loaders.per_image import PerImageBackend
from fastdata.loaders.pixel_memory import dct_denominator
from fastdata.system.installed import install_command
from fastdata.views.view import View

__all__ = ["OpenCvBackend"]

_DISTRIBUTIONS = (
    "opencv-python",
    "opencv-python-headless",
    "opencv-contrib-python",
    "opencv-contrib-python-headless",
)


class OpenCvBackend(PerImageBackend):
    """OpenCV for JPEGs, Pillow for the rest."""

    name = "opencv"
    # It has a libjpeg-turbo of its own: the wheels' decodes like Pillow's, a distribution's may round chroma otherwise.
    mean_tolerance = MappingProxyType({"exact": 0.5, "fast": 6.0})
    install_hint = (
        f"install it with: {install_command('opencv')}; on a server with the extra opencv-headless instead "
        "(or your own build of opencv-python)"
    )

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        super().__init__(fidelity=fidelity)
        self.version()

    @classmethod
    def version(cls) -> str:
        try:
            import cv2
        except ImportError as error:
            raise cls.unavailable(_in_words(error)) from error
        return f"OpenCV {cv2.__version__}{_installed()}"

    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        if not image.is_whole_jpeg():
            raise HandBack
        if self.fidelity == "fast":
            self._decode_fast(image, view, out)
        else:
            self._decode_exact(image, view, out)

    def _decode_exact(self, image: Encoded, view: View, out: Pixels) -> None:
        import cv2

        pixels = _imdecode(image, 1)
        left, top, right, bottom = view.window_px
        window = cv2.cvtColor(pixels[top:bottom, left:right], cv2.COLOR_BGR2RGBA)
        resample.resize_window(window.reshape(-1), right - left, view, out)

    def _decode_fast(self, image: Encoded, view: View, out: Pixels) -> None:
        import cv2

        denominator = dct_denominator(view)
        pixels = _imdecode(image, denominator)
        left, top, right, bottom = (edge // denominator for edge in view.window_px)
        window = pixels[top:bottom, left:right]
        shrinks = window.shape[1] >= view.resize_px[0] and window.shape[0] >= view.resize_px[1]
        filter_ = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        rgb = cv2.cvtColor(cv2.resize(window, view.resize_px, interpolation=filter_), cv2.COLOR_BGR2RGBA)
        whole = replace(view, window_px=(0, 0, *view.resize_px))
        resample.resize_window(rgb.reshape(-1), view.resize_px[0], whole, out)


def _in_words(error: ImportError) -> str:
    """Returns why an installed OpenCV cannot be imported, and the remedy if libGL is missing."""
    if "libGL" not in str(error):
        return str(error)
    return (
        f"{error}: opencv-python draws windows, for which it needs libGL; apt-get install libgl1, or on a server "
        f"pip uninstall -y opencv-python, then {install_command('opencv-headless')}"
    )


@cache
def _installed() -> str:
    """Returns the names of the installed OpenCV distributions, for `fastdata info`."""
    known = [name for name in _DISTRIBUTIONS if _is_installed(name)]
    if len(known) < 2:
        return f" ({known[0]})" if known else ""
    return (
        f" ({' and '.join(known)}, which overwrite each other's files: pip uninstall -y {' '.join(known)}, then "
        "install one of them)"
    )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _imdecode(image: Encoded, denominator: int) -> Any:
    import cv2

    reduced = {
        1: cv2.IMREAD_COLOR,
        2: cv2.IMREAD_REDUCED_COLOR_2,
        4: cv2.IMREAD_REDUCED_COLOR_4,
        8: cv2.IMREAD_REDUCED_COLOR_8,
    }[denominator]
    try:
        pixels = cv2.imdecode(np.frombuffer(image.data, np.uint8), reduced | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise HandBack from error
    size = (-(-image.height // denominator), -(-image.width // denominator))
    if pixels is None or pixels.shape[:2] != size:
        raise HandBack
    return pixels
