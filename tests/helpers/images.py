"""Encoded images made on the spot: photo-like noise in every format and sampling the tests need."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

# libjpeg-turbo's numbers (TJSAMP_444, ...).
_SAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2, "4:4:0": 4, "4:1:1": 5, "grey": 3}
SAMPLINGS = tuple(_SAMPLINGS)


def picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Smooth shapes with some noise: uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + rng.normal(0, 6, smooth.shape), 0, 255).astype(np.uint8)


def encoded(pixels: np.ndarray, *, sampling: str = "4:2:0", quality: int = 88) -> bytes:
    """Pixels as a baseline JPEG by libjpeg-turbo; without PyTurboJPEG by Pillow, which knows the usual samplings."""
    try:
        import turbojpeg
    except ImportError:
        if sampling not in ("4:4:4", "4:2:2", "4:2:0", "grey"):
            pytest.skip(f"{sampling} needs PyTurboJPEG, which is not installed", allow_module_level=True)
        grey = sampling == "grey"
        shown = Image.fromarray(np.ascontiguousarray(pixels[..., 0]) if grey else pixels)
        return _by_pillow(shown, {} if grey else {"subsampling": sampling}, quality)
    encoder, kind = turbojpeg.TurboJPEG(), _SAMPLINGS[sampling]
    if sampling == "grey":
        pixels = np.ascontiguousarray(pixels[..., :1])
        return encoder.encode(pixels, quality, turbojpeg.TJPF_GRAY, kind)
    return encoder.encode(pixels, quality, turbojpeg.TJPF_RGB, kind)


def _by_pillow(image: Image.Image, options: dict[str, Any], quality: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality, **options)
    return file.getvalue()


def jpeg(width: int, height: int, *, seed: int = 0, sampling: str = "4:2:0", quality: int = 88) -> bytes:
    """A baseline JPEG by libjpeg-turbo."""
    return encoded(picture(width, height, seed), sampling=sampling, quality=quality)


def saved(width: int = 120, height: int = 90, *, mode: str = "RGB", kind: str = "JPEG", **options: Any) -> bytes:
    """An image file written by Pillow."""
    image = Image.fromarray(picture(width, height)).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _sixteen_bit_png() -> bytes:
    values = np.linspace(0, 65535, 100 * 80).reshape(80, 100).astype(np.uint16)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def _mpo() -> bytes:
    buffer = io.BytesIO()
    first, second = (Image.fromarray(picture(90, 70, seed)) for seed in (1, 2))
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    return buffer.getvalue()


def without_segments(data: bytes, marker: int, *, which: int | None = None) -> bytes:
    """A JPEG without its segments of a kind (0xC4: Huffman, 0xDB: quantisation tables), or without one of them."""
    kept, at, number = bytearray(data[:2]), 2, 0
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == marker:
            number += 1
        if data[at + 1] != marker or (which is not None and number - 1 != which):
            kept += data[at:end]
        at = end
    return bytes(kept + data[at:])


def odd_files() -> dict[str, bytes]:
    """Difficult but valid files by name."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "bitmap.bmp": saved(kind="BMP"),
        "cmyk.jpg": saved(mode="CMYK"),
        "exif6.jpg": saved(exif=exif),
        "grey.jpg": saved(mode="L"),
        "grey.png": saved(mode="L", kind="PNG"),
        "mpo.jpg": _mpo(),
        "one-pixel.jpg": saved(1, 1),
        "optimised.jpg": saved(optimize=True),
        "palette.png": saved(mode="P", kind="PNG"),
        "png-named.jpg": saved(kind="PNG"),
        "progressive.jpg": saved(progressive=True),
        "restart.jpg": saved(restart_marker_blocks=3),
        "rgb-colourspace.jpg": saved(keep_rgb=True),
        "rgba.png": saved(mode="RGBA", kind="PNG"),
        "sixteen-bit.png": _sixteen_bit_png(),
        "thumbnail-like.webp": saved(kind="WEBP", quality=80),
        "lossless.webp": saved(kind="WEBP", lossless=True),
        "tiff.tif": saved(kind="TIFF"),
        "with-alpha.webp": saved(mode="RGBA", kind="WEBP"),
        "greymap.pgm": saved(mode="L", kind="PPM"),
    }


def no_whole_jpegs() -> dict[str, bytes]:
    """What has no index and cannot be unpacked."""
    whole = jpeg(100, 80)
    return {
        "png": saved(kind="PNG"),
        "cut": whole[:-200],
        "no image": b"\xff\xd8\xff" + bytes(200),
        "empty": b"",
        "four colours": saved(mode="CMYK"),
        "a damaged scan": whole[:-200] + b"\xff" * 198 + b"\xff\xd9",
    }
