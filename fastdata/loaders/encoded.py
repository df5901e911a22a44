"""An encoded image with what its header says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastdata.views.header import ImageHeader, JpegFrame, has_whole_scans

__all__ = ["Encoded"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """An encoded image: its bytes, its parsed header (None when the kind is unknown), its size in pixels.

    A backend that decodes image by image gets `bytes`; one that decodes whole batches may get parts of a larger block.
    `has_whole_scans` is True if the core has found that already, while it read the file.
    """

    data: Any
    header: ImageHeader | None
    width: int
    height: int
    has_whole_scans: bool = False

    def is_plain_jpeg(self) -> bool:
        """True for 8-bit grey or three-component JPEGs, the only files a JPEG library decodes here."""
        jpeg = self.jpeg
        return jpeg is not None and jpeg.precision_bits == 8 and jpeg.components in (1, 3)

    def is_for_core(self) -> bool:
        """True for the kinds of files that the native core may decode."""
        return self.is_plain_jpeg() or (self.header is not None and self.header.kind in ("png", "npy"))

    def is_whole_jpeg(self) -> bool:
        """True for a plain JPEG without missing or misplaced data, for libraries that do not report such damage."""
        if not self.is_plain_jpeg() or self.jpeg is None:
            return False
        return self.has_whole_scans or has_whole_scans(self.data, self.jpeg)

    @property
    def jpeg(self) -> JpegFrame | None:
        """Coding details of a JPEG; None for other kinds."""
        return self.header.jpeg if self.header is not None else None
