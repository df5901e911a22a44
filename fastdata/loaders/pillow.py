"""Pillow, the reference: what it decodes.

Other backends use `decode_view` for files they hand back, and `resize_window` through resample.py.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata.loaders.backend import Pixels
from fastdata.views.header import parse_header
from fastdata.views.resampling import BLACK, Interpolation, Padding
from fastdata.views.view import View

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "apply_view",
    "as_seen",
    "bomb_error",
    "check_pixel_count",
    "decode_scaled",
    "decode_view",
    "from_pixels",
    "is_rgb",
    "kind_of",
    "most_pixels",
    "open_rgb",
    "resize_scaled",
    "resize_window",
    "shrunk",
    "size_of",
    "version",
]


_LATE_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"eXIf")  # PNG chunks that may follow the pixels


def version() -> str:
    """Returns the versions of Pillow and of its libjpeg."""
    import PIL
    from PIL import features

    return f"Pillow {PIL.__version__}, libjpeg {features.version('jpg') or 'missing'}"


def most_pixels() -> int | None:
    """Returns the most pixels of an image that Pillow does not refuse as a decompression bomb; None for no limit."""
    from PIL import Image

    return None if Image.MAX_IMAGE_PIXELS is None else 2 * Image.MAX_IMAGE_PIXELS


def check_pixel_count(width: int, height: int) -> None:
    """Raises for a decompression bomb before memory is allocated, by Pillow's own rule.

    Raises:
        PIL.Image.DecompressionBombError: the image has more than twice `PIL.Image.MAX_IMAGE_PIXELS` pixels.
    """
    limit = most_pixels()
    if limit is not None and width * height > limit:
        raise bomb_error()(
            f"{width} × {height} pixels exceed the limit of {limit}; if you trust the file, raise "
            "PIL.Image.MAX_IMAGE_PIXELS (half the limit), or set it to None"
        )


def bomb_error() -> type[Exception]:
    """Returns Pillow's exception class for images with too many pixels, which is not an OSError."""
    from PIL import Image

    return Image.DecompressionBombError


def size_of(data: bytes) -> tuple[int, int]:
    """Returns (width, height) of an encoded image.

    Raises:
        PIL.UnidentifiedImageError: not an image Pillow knows.
        OSError: a damaged header.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        return width, height


def kind_of(data: bytes) -> tuple[str, int, int]:
    """Returns the usual extension, width and height of an encoded image.

    Raises:
        PIL.UnidentifiedImageError: not an image Pillow knows.
        OSError: a damaged header.
    """
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        extension = {"JPEG": "jpg", "MPO": "jpg"}.get(image.format or "", (image.format or "img").lower())
        return extension, *image.size


def shrunk(data: bytes, size: tuple[int, int] | None) -> Image:
    """Returns the whole image in RGB, resized to (width, height) by Lanczos' filter unless `size` is None."""
    from PIL import Image

    image = open_rgb(data)
    return image if size is None else image.resize(size, Image.Resampling.LANCZOS)


def open_rgb(data: bytes) -> Image:
    """Decodes the whole image to RGB, as torchvision's default loader does; raw pixels, too (NumPy's file format).

    Raises:
        PIL.UnidentifiedImageError, OSError, ValueError: it cannot be decoded.
    """
    import PIL.Image

    if data[:6] == b"\x93NUMPY":
        header = parse_header(data)
        size = 3 * header.width * header.height if header is not None else 0
        if header is None or len(data) < size:
            raise ValueError("raw pixels are uint8 (height, width, 3) in NumPy's format 1.0, and this file is not")
        pixels = np.frombuffer(data, np.uint8, size, len(data) - size).reshape(header.height, header.width, 3)
        return PIL.Image.fromarray(pixels)
    with PIL.Image.open(io.BytesIO(data)) as image:
        image.load()
        rgb: Image = image if image.mode == "RGB" else image.convert("RGB")  # convert() to the same mode only copies
        return rgb


def decode_view(data: bytes, view: View, out: Pixels) -> None:
    """Decodes one image with Pillow alone into `out`, uint8 (height, width, 3)."""
    _crop_resize_write(open_rgb(data), view.window_px, view, out)


def decode_scaled(data: bytes, denominator: int, view: View, out: Pixels) -> None:
    """Decodes one image as `decode_view` does, but a JPEG at 1/`denominator` of its size (Pillow's draft mode)."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        full = image.size
        image.draft("RGB", (full[0] // denominator, full[1] // denominator))
        scaled = image.convert("RGB")
    _resize_box(scaled, full, view, out)


def resize_window(pixels: Pixels, stride_px: int, view: View, out: Pixels, *, pixel_bytes: int = 4) -> None:
    """Resizes, crops and flips a decoded window into `out`, with Pillow's arithmetic.

    Args:
        pixels: flat uint8 pixels, beginning at the window's first pixel.
        stride_px: pixels from one row to the next.
        view: the view; its window gives the width and height at `pixels`.
        out: uint8 (height, width, 3).
        pixel_bytes: 3 for RGB, 4 for RGBX.
    """
    from PIL import Image

    left, top, right, bottom = view.window_px
    mode = "RGBX"[:pixel_bytes]
    size = (right - left, bottom - top)
    # Copied into an RGB image: resampling three channels instead of four gains more than the copy costs.
    window = Image.frombytes("RGB", size, pixels, "raw", mode, pixel_bytes * stride_px, 1)
    _crop_resize_write(window, (0, 0, *size), view, out)


def resize_scaled(pixels: Pixels, full: tuple[int, int], view: View, out: Pixels) -> None:
    """Resizes the window of an image that was decoded smaller, from RGBX `pixels` (height, width, 4), into `out`."""
    from PIL import Image

    height, width = pixels.shape[:2]
    scaled = Image.frombytes("RGB", (width, height), pixels, "raw", "RGBX")
    _resize_box(scaled, full, view, out)


def is_rgb(value: object) -> bool:
    """True for a PIL image in RGB that has pixels."""
    from PIL import Image

    return isinstance(value, Image.Image) and value.mode == "RGB" and 0 not in value.size


def apply_view(image: Image, view: View) -> Image:
    """Crops, resizes and flips an opened image."""
    return _crop_flip(_crop_resize(image, view.window_px, view), view)


def as_seen(data: bytes, view: View, pixels: Pixels) -> Image:
    """Returns a decoded, cropped and resized image as Pillow would, with EXIF, colour profile and the rest of `info`.

    Args:
        data: the encoded file.
        view: the view that was decoded.
        pixels: RGB (height, width, 3), of the view's size.
    """
    import PIL.Image

    if view.reaches_out or data[:6] == b"\x93NUMPY":
        return from_pixels(pixels)  # padding makes a new image, without info
    with PIL.Image.open(io.BytesIO(data)) as opened:
        info = dict(opened.info)
    if opened.format not in ("JPEG", "MPO") and (info or any(chunk in data for chunk in _LATE_CHUNKS)):
        # Transparency, animations, chunks behind the pixels: it depends on the mode which of them survive convert().
        seen = apply_view(open_rgb(data), view)
        return seen if type(seen) is PIL.Image.Image else seen.copy()
    image = from_pixels(pixels)
    image.info = info
    return image


def from_pixels(pixels: Pixels) -> Image:
    """Returns a PIL image that owns a copy of RGB pixels (height, width, 3)."""
    from PIL import Image

    return Image.fromarray(pixels)


def _crop_resize_write(image: Image, window: tuple[int, int, int, int], view: View, out: Pixels) -> None:
    out[...] = np.asarray(_crop_flip(_crop_resize(image, window, view), view))


def _crop_resize(image: Image, window: tuple[int, int, int, int], view: View) -> Image:
    if window != (0, 0, *image.size):
        image = image.crop(window)
    image = _flip(image, view.window_flips)
    if image.size == view.resize_px:
        return image
    if view.interpolation.is_tensors:
        return _resize_tensor(image, view)
    return image.resize(view.resize_px, _filter(view))


def _resize_tensor(image: Image, view: View) -> Image:
    """Resizes an RGB image as torchvision's v2, whose filters these are, resizes uint8 tensors."""
    import torch
    from torchvision.transforms.v2 import InterpolationMode, functional

    modes = {
        Interpolation.TENSOR_BILINEAR: InterpolationMode.BILINEAR,
        Interpolation.TENSOR_BICUBIC: InterpolationMode.BICUBIC,
    }
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    size = list(view.resize_px[::-1])
    resized = functional.resize_image(pixels, size, modes[view.interpolation], antialias=True)
    return from_pixels(resized.permute(1, 2, 0).contiguous().numpy())


def _resize_box(scaled: Image, full: tuple[int, int], view: View, out: Pixels) -> None:
    x, y = scaled.size[0] / full[0], scaled.size[1] / full[1]
    left, top, right, bottom = view.window_px
    box = (left * x, top * y, min(right * x, scaled.size[0]), min(bottom * y, scaled.size[1]))
    horizontal, vertical = view.window_flips
    if horizontal:
        box = (scaled.size[0] - box[2], box[1], scaled.size[0] - box[0], box[3])
    if vertical:
        box = (box[0], scaled.size[1] - box[3], box[2], scaled.size[1] - box[1])
    flipped = _flip(scaled, view.window_flips)
    out[...] = np.asarray(_crop_flip(flipped.resize(view.resize_px, _filter(view), box=box), view))


def _crop_flip(image: Image, view: View) -> Image:
    if view.outside != BLACK and view.reaches_out:
        image = _crop_padded(image, view)
    elif view.crop_px != (0, 0, *image.size):
        image = image.crop(view.crop_px)  # black outside
    return _flip(image, (view.flip_horizontal, view.flip_vertical))


def _crop_padded(image: Image, view: View) -> Image:
    """Crops an RGB image that reaches outside, filled by a padding mode of NumPy's pad or a colour."""
    left, top, right, bottom = view.crop_px
    width, height = image.size
    before_after = (max(0, -top), max(0, bottom - height)), (max(0, -left), max(0, right - width)), (0, 0)
    pixels = np.asarray(image)
    if view.outside.padding is Padding.CONSTANT:
        levels = view.outside[1:]
        padded = np.stack(
            [np.pad(pixels[..., i], before_after[:2], constant_values=levels[i]) for i in range(3)], axis=2
        )
    else:
        modes: dict[Padding, Any] = {Padding.EDGE: "edge", Padding.REFLECT: "reflect", Padding.SYMMETRIC: "symmetric"}
        padded = np.pad(pixels, before_after, modes[view.outside.padding])
    top, left = top + before_after[0][0], left + before_after[1][0]
    return from_pixels(np.ascontiguousarray(padded[top : top + view.size[0], left : left + view.size[1]]))


def _flip(image: Image, flips: tuple[bool, bool]) -> Image:
    from PIL.Image import Transpose

    horizontal, vertical = flips
    if horizontal:
        image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
    return image.transpose(Transpose.FLIP_TOP_BOTTOM) if vertical else image


def _filter(view: View) -> Any:
    from PIL import Image

    # For an image that was decoded smaller, identical bits are not promised.
    return Image.Resampling(view.interpolation.value & 15)
