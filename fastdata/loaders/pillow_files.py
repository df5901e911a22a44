"""Files as Pillow writes them, and the metadata that decide how an image looks."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata.loaders.pillow import open_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["encode_jpeg", "encode_png", "look_of", "orientation", "orientation_exif", "write_sheet"]

_ORIENTATION = 0x0112  # number of the EXIF tag


def look_of(data: bytes) -> tuple[int, bytes | None]:
    """Returns an image's EXIF orientation (1: not to be turned) and ICC profile.

    The profile is None if there is none, or if it is for other colours than RGB, since pixels are converted to RGB.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        if image.format == "TIFF":
            image.load()  # turns the image, and notes that in its EXIF
        profile = image.info.get("icc_profile")
        try:
            orientation = image.getexif().get(_ORIENTATION, 1)
        except Exception:  # noqa: BLE001 - of damaged EXIF Pillow raises many kinds, and the pixels need none of it
            orientation = 1
    is_rgb = isinstance(profile, bytes) and profile[16:20] == b"RGB "
    return orientation if orientation in range(1, 9) else 1, profile if is_rgb else None


def orientation(exif: bytes) -> int:
    """Returns the orientation in EXIF data, 1 where it says nothing; 0 for data that Pillow cannot read."""
    from PIL import Image

    found = Image.Exif()
    try:
        found.load(exif)
        value = found.get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - of damaged metadata
        return 0
    return value if isinstance(value, int) else 0


def orientation_exif(orientation: int) -> bytes:
    """Returns the content of a JPEG's EXIF segment that holds only an orientation."""
    from PIL import Image

    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    return exif.tobytes()


def encode_jpeg(image: Image, quality: int, *, orientation: int = 1, profile: bytes | None = None) -> bytes:
    """Encodes a baseline JPEG with its own Huffman tables, and with no other metadata than the given one."""
    buffer = io.BytesIO()
    exif = orientation_exif(orientation) if orientation != 1 else b""
    no = {"comment": b"", "xmp": b""}  # by default Pillow copies the opened file's
    image.save(buffer, "JPEG", quality=quality, optimize=True, exif=exif, icc_profile=profile, **no)
    return buffer.getvalue()


def encode_png(picture: Any) -> bytes:
    """Encodes an image of Pillow's, or an array that `PIL.Image.fromarray` takes, as a PNG file.

    Raises:
        TypeError, ValueError: it is neither, or has a shape, dtype or mode that a PNG cannot hold.
    """
    from PIL import Image

    buffer = io.BytesIO()
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(np.asarray(picture))
    try:
        image.save(buffer, "PNG")
    except OSError as error:  # Pillow's, for a mode
        raise ValueError(str(error)) from error
    return buffer.getvalue()


def write_sheet(images: Sequence[tuple[bytes, str]], path: Path, *, columns: int = 8, side: int = 120) -> None:
    """Writes a PNG of thumbnails side by side, with the name and the size in pixels below each.

    Args:
        images: encoded images, each with the name of its class; one that cannot be decoded is a grey square.
        path: path of the PNG.
        columns: thumbnails side by side.
        side: side of a thumbnail, in pixels.
    """
    import PIL.Image
    import PIL.ImageDraw

    gap, line = 6, 12
    height = side + 2 * line + gap
    rows = -(-len(images) // columns)
    sheet = PIL.Image.new("RGB", (columns * (side + gap) + gap, rows * (height + gap) + gap), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    for number, (data, name) in enumerate(images):
        try:
            picture = open_rgb(data).copy()
            size = f"{picture.width} x {picture.height}"
        except Exception:  # noqa: BLE001 - Pillow's plugins raise many kinds
            picture, size = PIL.Image.new("RGB", (side, side), "grey"), "cannot be decoded"
        picture.thumbnail((side, side))
        row, column = divmod(number, columns)
        left, top = gap + column * (side + gap), gap + row * (height + gap)
        sheet.paste(picture, (left + (side - picture.width) // 2, top + (side - picture.height) // 2))
        for place, text in enumerate((_shortened(name, draw, side), size)):
            draw.text((left, top + side + 2 + place * line), text, "black")
    sheet.save(path, "PNG")


def _shortened(name: str, draw: Any, width: int) -> str:
    """Shortens a name, in the letters of Pillow's own font, to a width in pixels; "~" replaces the end."""
    whole = text = "".join(each if each.isascii() and each.isprintable() else "?" for each in name)
    while draw.textlength(text) > width:
        whole = whole[:-1]
        text = f"{whole}~"
    return text
