"""An opened file that stays encoded: beside the image, what Pillow's classes of files have."""

from __future__ import annotations

from typing import Any

from PIL.Image import Exif
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from fastdata.lazy.encoded_image import JPEG, EncodedImage
from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.pillow_likeness import MODE, PIXELS, name_as_pillows
from fastdata.views.view import View

__all__ = ["EncodedFile"]

_HIDDEN_METHODS = ("_getexif", "_getmp")  # private methods of Pillow's file classes that users call


class EncodedFile(EncodedImage):
    """A whole file, like the result of `PIL.Image.open`; see `EncodedImage`."""

    _is_verified = False  # before it was used: Pillow has closed its file then
    _is_left = False  # its `with` block, before it was used: likewise

    @classmethod
    def opened(cls, source: EncodedSource) -> EncodedFile:
        """Returns the image of a source."""
        header = source.header
        assert header is not None
        made = _EncodedPng if header.kind == "png" else _EncodedJpeg
        image = made(source, View.whole(header.width, header.height), source.mode)
        image.filename = source.name
        image.readonly = 1  # until it is loaded, as in Pillow
        return image

    def getexif(self) -> Exif:
        """See PIL.Image.Image.getexif."""
        if self.format == "PNG" and self._exif is None and "exif" not in self.info:
            self._use()  # Pillow looks for it behind the pixels
            if self._source.has_late_metadata():
                self._as_opened().load()
                self.info.update(self._as_opened().info)
        return super().getexif()

    def seek(self, frame: int) -> None:
        """See PIL.Image.Image.seek, which looks at pixels."""
        if frame or self._seen is None:
            self._as_opened().seek(frame)

    def __exit__(self, *_: object) -> None:
        self._is_left = not self._is_used
        super().__exit__()

    def _use(self) -> None:
        self._source.ask()
        if self._is_left:
            self._as_opened().__exit__(None, None, None)
        if self._is_left or self._is_verified:
            self._as_opened().load()
        super()._use()

    def draft(self, mode: str | None, size: tuple[int, int] | None) -> Any:
        """See PIL.Image.Image.draft; a drafted file is decoded immediately and is a plain image from then on."""
        if self._is_used or self._seen is None:  # Pillow drafts nothing that is loaded
            return super().draft(mode, size)
        opened = self._as_opened()
        drafted = opened.draft(mode, size)
        if drafted is not None:
            opened.load()
            setattr(self, MODE, opened.mode)
            self._size = opened.size
            self._set_pixels(getattr(opened, PIXELS))
        return drafted

    def verify(self) -> None:
        """See PIL.Image.Image.verify; an image that has not been loaded before it cannot be used after it."""
        opened = self._as_opened()
        if self._is_used:
            opened.load()
        opened.verify()
        self._opened, self._is_verified = (None, False) if self._is_used else (opened, True)

    def __getattr__(self, name: str) -> Any:
        """Gets attributes that only Pillow's image of a file has, like `quantization`."""
        hidden = name.startswith("_") and name not in _HIDDEN_METHODS
        if hidden:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if self.format == "PNG" and (name == "text" or (name == "_getexif" and "exif" not in self.info)):
            self._use()  # as above
        return getattr(self._as_opened(), name)


class _EncodedJpeg(EncodedFile):
    pillows = JpegImageFile
    format, format_description = "JPEG", JPEG


class _EncodedPng(EncodedFile):
    pillows = PngImageFile
    format, format_description = "PNG", "Portable network graphics"


for _class in (EncodedFile, _EncodedJpeg, _EncodedPng):
    name_as_pillows(_class)
