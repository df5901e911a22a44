"""Conversion of one image: keep it, repack it losslessly, shrink it, unpack it, or store raw pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError
from fastdata.loaders.unpacked import as_file, unpack
from fastdata.shards.tar import IMAGE_EXTENSIONS
from fastdata.views.header import parse_header

__all__ = ["Image", "Recoding", "described"]

_DEFAULT_QUALITY = 90
_SHRINKING = ("max_side", "min_side", "quality")  # options that encode images anew
UNPACKED = "fdc"
_EXTENSIONS = {"jpeg": "jpg", "unpacked": UNPACKED}  # of kinds of images, where it is another word
_SOI, _SOS, _APP0, _APP1, _APP2 = b"\xff\xd8", 0xDA, 0xE0, 0xE1, 0xE2  # markers of a JPEG's segments


class Image(NamedTuple):
    """An image as it is stored in a shard.

    Attributes:
        extension: its format: "jpg", "png", ..., "npy" for raw pixels, uint8 (height, width, 3), or "fdc" for an
            unpacked JPEG.
        data: the encoded bytes.
        width: width in pixels.
        height: height in pixels.
    """

    extension: str
    data: bytes
    width: int
    height: int


@dataclass(frozen=True, kw_only=True)
class Recoding:
    """Conversion to apply to every image; by default its bytes are kept.

    Attributes:
        max_side: shrink images whose longer side exceeds this many pixels.
        min_side: shrink images whose shorter side exceeds this many pixels.
        quality: JPEG quality of re-encoded images, 1 to 100; None is 90.  If given, every image is re-encoded.
        lossless: store JPEGs as baseline with optimised Huffman tables: the same pixels in fewer bytes, and with an
            index, which progressive ones cannot have.  JPEGs that would not become smaller, and other formats, are
            kept.
        raw: store raw pixels, of the image shrunk to this longer side.
        unpacked: store JPEGs, repacked or shrunk if that is asked for, as records of open coefficients: 1.2 times the
            bytes, half the time to decode, and the file again byte for byte.  What cannot be one stays what it is.

    Re-encoded images keep EXIF orientation and ICC profile, which decide how their pixels look, and lose other metadata
    (the profile of CMYK or grey images, which become RGB, is dropped).  Raw pixels have no metadata.
    """

    max_side: int | None = None
    min_side: int | None = None
    quality: int | None = None
    lossless: bool = False
    raw: int | None = None
    unpacked: bool = False

    def __post_init__(self) -> None:
        for name in ("max_side", "min_side", "raw"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 65500:  # what a JPEG can hold
                raise OptionError(f"{name}={value} is not between 1 and 65500 pixels")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise OptionError(f"quality={self.quality} is not between 1 and 100")
        for names in (*(("lossless", "raw", each) for each in _SHRINKING), ("raw", "unpacked")):
            given = [f"{name}={value}" for name in names if (value := getattr(self, name)) not in (None, False)]
            if len(given) > 1:
                raise OptionError(f"{' and '.join(given)} cannot be combined; choose one")
        if self.lossless or self.unpacked:
            _repacker("lossless" if self.lossless else "unpacked")  # says at once what is missing

    @property
    def _shrinks(self) -> bool:
        return any(getattr(self, name) is not None for name in _SHRINKING)

    @property
    def keeps_bytes(self) -> bool:
        """True if images are stored unchanged."""
        return self == Recoding()

    def apply(self, data: bytes) -> Image:
        """Recodes one encoded image.

        Raises:
            OSError, ValueError, and whatever else Pillow raises: the image cannot be decoded.
        """
        if self.keeps_bytes:
            return described(data)
        data = as_file(data)
        if self.raw is not None:
            return _raw(data, self.raw)
        if self.lossless:
            image = described(_repacked(data))
        else:
            image = self._shrunk(data) if self._shrinks else described(data)
        return _unpacked(image) if self.unpacked else image

    def _shrunk(self, data: bytes) -> Image:
        from fastdata.loaders import pillow, pillow_files

        image = described(data)
        size = self._size_for(image.width, image.height)
        if size is None and self.quality is None:
            return image
        pixels = pillow.shrunk(data, size)
        quality = self.quality if self.quality is not None else _DEFAULT_QUALITY
        orientation, profile = pillow_files.look_of(data)
        encoded = pillow_files.encode_jpeg(pixels, quality, orientation=orientation, profile=profile)
        return Image("jpg", encoded, *pixels.size)

    def _size_for(self, width: int, height: int) -> tuple[int, int] | None:
        """(width, height) that an image is shrunk to; None to leave it."""
        limits = [(self.max_side, max(width, height)), (self.min_side, min(width, height))]
        ratios = [limit / side for limit, side in limits if limit is not None and side > limit]
        if not ratios:
            return None
        return max(1, round(width * min(ratios))), max(1, round(height * min(ratios)))


def described(data: bytes) -> Image:
    """Encoded bytes with the extension and the size that they have.

    Raises:
        OSError, and whatever else Pillow raises: it cannot be opened.
    """
    header = parse_header(data)
    if header is not None:
        return Image(_EXTENSIONS.get(header.kind, header.kind), data, header.width, header.height)
    from fastdata.loaders import pillow

    extension, width, height = pillow.kind_of(data)
    return Image(extension if extension in IMAGE_EXTENSIONS else "img", data, width, height)


def _raw(data: bytes, side: int) -> Image:
    from fastdata.loaders import pillow

    size = Recoding(max_side=side)._size_for(*pillow.size_of(data))
    pixels = np.asarray(pillow.shrunk(data, size))
    buffer = io.BytesIO()
    np.save(buffer, pixels)
    return Image("npy", buffer.getvalue(), pixels.shape[1], pixels.shape[0])


def _repacked(data: bytes) -> bytes:
    """The image repacked, if it is a JPEG that becomes smaller, and Pillow sees the same pixels in both.

    Raises:
        OSError, and whatever else Pillow raises: it is a JPEG that cannot be decoded.
    """
    from fastdata.loaders import pillow

    if data[:2] != _SOI:
        return data
    pixels = np.asarray(pillow.open_rgb(data))  # the core repacks what it can, also of a file that is cut short
    core, options = _repacker("lossless")
    plain: bytes | None = core.repack(data, restart_rows=0, options=options)
    if plain is None:
        return data
    repacked = _with_look(plain, data)
    if len(repacked) >= len(data) or not np.array_equal(pixels, np.asarray(pillow.open_rgb(repacked))):
        return data
    return repacked


def _with_look(plain: bytes, original: bytes) -> bytes:
    """A JPEG with the orientation and the ICC profile of another, whose pixels it has."""
    from fastdata.loaders import pillow_files

    orientation, _ = pillow_files.look_of(original)
    exif = _segment(_APP1, pillow_files.orientation_exif(orientation)) if orientation != 1 else b""
    profile = b"".join(
        _segment(_APP2, content)
        for marker, content in _segments(original)
        if marker == _APP2 and content.startswith(b"ICC_PROFILE\0")
    )
    after = len(_SOI)
    if plain[after : after + 2] == bytes((0xFF, _APP0)):  # JFIF wants to come first
        after += 2 + int.from_bytes(plain[after + 2 : after + 4], "big")
    return plain[:after] + exif + profile + plain[after:]


def _segment(marker: int, content: bytes) -> bytes:
    return bytes((0xFF, marker)) + (2 + len(content)).to_bytes(2, "big") + content


def _segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The markers and contents of a JPEG's segments before its first scan (ITU T.81, B.1.1.4)."""
    at = len(_SOI)
    while at + 4 <= len(data) and data[at] == 0xFF and data[at + 1] != _SOS:
        if data[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], data[at + 4 : at + 2 + length]
        at += 2 + max(2, length)


def _unpacked(image: Image) -> Image:
    record = unpack(image.data) if image.extension == "jpg" else None
    return image if record is None else image._replace(extension=UNPACKED, data=record)


def _repacker(option: str) -> tuple[Any, Any]:
    """The native core, which does this with libjpeg-turbo's coefficient interface, and its limits."""
    from fastdata.loaders import resample
    from fastdata.native import NativeMissing

    try:
        core, order = resample.exact_core()
    except NativeMissing as error:
        raise OptionError(f"{option} needs the native backend, which is not available: {error}") from error
    return core, resample.options_for(order, "exact")
