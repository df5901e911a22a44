"""The reference backend: Pillow decodes the whole image, crops, resizes and flips it."""

from __future__ import annotations

from types import MappingProxyType

from fastdata.loaders import pillow
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.per_image import PerImageBackend
from fastdata.loaders.pixel_memory import dct_denominator
from fastdata.views.view import View

__all__ = ["PilBackend"]


class PilBackend(PerImageBackend):
    """Pillow; always available, and the reference for every other backend's pixels."""

    name = "pil"
    mean_tolerance = MappingProxyType({"exact": 0.0, "fast": 4.0})
    install_hint = "install it with: pip install Pillow"

    @classmethod
    def version(cls) -> str:
        try:
            return pillow.version()
        except ImportError as error:
            raise cls.unavailable(error) from error

    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        denominator = dct_denominator(view) if self.fidelity == "fast" and image.is_plain_jpeg() else 1
        if denominator > 1:
            pillow.decode_scaled(image.data, denominator, view, out)
        else:
            pillow.decode_view(image.data, view, out)
