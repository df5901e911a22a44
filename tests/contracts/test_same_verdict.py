"""Every backend accepts what Pillow accepts and refuses what Pillow refuses."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator

import images
import numpy as np
import pytest
from core_alone import view_of
from PIL import Image

from fastdata.loaders import BACKENDS as KNOWN
from fastdata.loaders import Encoded, create_backend, mean_tolerance
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.views.view import View

BACKENDS = [name for name in KNOWN if name not in ("pil", "synthetic")]


def whole(image: Encoded, resize: tuple[int, int] | None = None) -> View:
    """All of an image; of a resized one the corner, which nobody could hold whole."""
    window = (0, 0, image.width, image.height)
    if resize is None:
        return view_of(window)
    return view_of(window, resize, crop_px=(0, 0, min(resize[0], 64), min(resize[1], 64)))


def decode(backend: str, data: bytes, resize: tuple[int, int] | None = None) -> np.ndarray | None:
    """The first pixels, or None for a refusal."""
    image = inspect(data)
    view = whole(image, resize)
    out = np.zeros((1, *view.size, 3), np.uint8)
    return out[0] if decode_each(create_backend(backend), [image], [view], list(out)) == [None] else None


def damaged(count: int) -> Iterator[bytes]:
    """JPEGs with bits flipped, bytes inserted or lost, parts exchanged, or their ends cut off."""
    rng = random.Random(5)
    whole_files = [images.jpeg(90, 70, sampling=sampling) for sampling in ("4:4:4", "4:2:0", "grey")]
    whole_files += [images.saved(90, 70, **options) for options in ({"progressive": True}, {"optimize": True})]
    for number in range(count):
        data = bytearray(whole_files[number % len(whole_files)])
        scan = data.index(b"\xff\xda")
        at, other = (rng.randrange(scan, len(data) - 40) for _ in range(2))
        match number // len(whole_files) % 5:
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at:at] = bytes([0xFF, *(rng.randrange(256) for _ in range(rng.choice([1, 5, 40])))])
            case 2:
                del data[at : at + rng.choice([1, 5, 40])]
            case 3:
                data[at : at + 30], data[other : other + 30] = data[other : other + 30], data[at : at + 30]
            case 4:
                data = data[:at] + rng.choice([b"", b"\xff\xd9"])
        yield bytes(data)


@pytest.mark.parametrize("backend", BACKENDS)
def test_damaged_files_get_pillows_verdict(backend: str) -> None:
    others = []
    refused = 0
    for number, data in enumerate(damaged(300)):
        expected = decode("pil", data)
        refused += expected is None
        found = decode(backend, data)
        if (found is None) != (expected is None) or (
            found is not None and mean_tolerance(backend) == 0 and (found != expected).any()
        ):
            others.append(number)
    assert others == []
    assert 30 < refused < 270  # both verdicts come


@pytest.mark.parametrize("backend", ["pil", *BACKENDS])
def test_a_gif_whose_frame_exceeds_its_screen_has_pillows_size(backend: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(images.picture(40, 40)).quantize(16).save(buffer, "GIF")
    data = bytearray(buffer.getvalue())
    data[6:10] = b"\x20\x00\x20\x00"  # the screen is 32 × 32
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert expected.shape == (40, 40, 3)
    np.testing.assert_array_equal(decode(backend, bytes(data)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("width", "height"), [(1, 1000), pytest.param(1000, 1, marks=pytest.mark.slow)])
def test_very_long_images_are_pillows(backend: str, width: int, height: int) -> None:
    data = images.jpeg(width, height)
    resize = (256, 256 * height) if width < height else (256 * width, 256)
    expected = decode("pil", data, resize)
    assert expected is not None
    found = decode(backend, data, resize)
    assert found is not None
    assert np.abs(found.astype(int) - expected).mean() <= mean_tolerance(backend)
