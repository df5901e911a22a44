"""PNGs in the core: Pillow's pixels where it decodes, Pillow's word where it does not."""

from __future__ import annotations

import io
import struct
import zlib

import images
import numpy as np
import pytest
from core_alone import decode, reference, view_of, windows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from fastdata import native
from fastdata.loaders import create_backend, pillow
from fastdata.loaders.backend import Encoded
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.views.view import View

WIDTH, HEIGHT = 61, 43
WHOLE = view_of((0, 0, WIDTH, HEIGHT))


def png(mode: str = "RGB", **options: object) -> bytes:
    return images.saved(WIDTH, HEIGHT, mode=mode, kind="PNG", **options)


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at < len(data):
        length = struct.unpack_from(">I", data, at)[0]
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    whole = [
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


def filtered(kind: int, mode: str = "RGB") -> bytes:
    """A PNG all of whose rows use one filter: random filtered bytes are some image under any of them."""
    parts = chunks(png(mode))
    row_bytes = WIDTH * len(mode)
    rows = np.random.default_rng(kind).integers(0, 256, (HEIGHT, row_bytes + 1), np.uint8)
    rows[:, 0] = kind
    return joined([parts[0], (b"IDAT", zlib.compress(rows.tobytes())), parts[-1]])


def few_bits(depth: int, colour: int) -> bytes:
    """Grey (0) or a palette (3) of 1, 2 or 4 bits."""
    row_bytes = (WIDTH * depth + 7) // 8
    rows = np.random.default_rng(depth).integers(0, 256, (HEIGHT, row_bytes + 1), np.uint8)
    rows[:, 0] = 0
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, depth, colour, 0, 0, 0)
    palette = [(b"PLTE", bytes(range(3 * (1 << depth))))] if colour == 3 else []
    return joined([(b"IHDR", header), *palette, (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")])


def several_parts() -> bytes:
    parts = chunks(png())
    body = next(body for kind, body in parts if kind == b"IDAT")
    split = [(b"IDAT", body[:9]), (b"IDAT", b""), (b"IDAT", body[9:])]
    return joined([parts[0], *split, parts[-1]])


def interlaced() -> bytes:
    """The header says so; what follows is nobody's concern once it is handed back."""
    parts = chunks(png())
    parts[0] = (b"IHDR", parts[0][1][:12] + b"\x01")
    return joined(parts)


def with_profile() -> bytes:
    return png(icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())


DECODED = {
    **{mode: png(mode) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")},
    **{f"filter {kind} {mode}": filtered(kind, mode) for kind in range(5) for mode in ("L", "LA", "RGB", "RGBA")},
    **{f"{depth} bits, colour {colour}": few_bits(depth, colour) for depth in (1, 2, 4) for colour in (0, 3)},
    "several parts": several_parts(),
    "transparent colour": png(transparency=(1, 2, 3)),
    "colour profile": with_profile(),
    "text": joined([*chunks(png())[:1], (b"tEXt", b"Comment\0hello"), *chunks(png())[1:]]),
    "junk behind": png() + b"junk",
}


@pytest.mark.parametrize("name", DECODED)
def test_the_core_gives_pillows_pixels(name: str) -> None:
    for view in (WHOLE, view_of((5, 7, 50, 41), (20, 30)), view_of((0, 40, 61, 43), (30, 2), flip_vertical=True)):
        np.testing.assert_array_equal(decode(DECODED[name], view), reference(DECODED[name], view))


@settings(max_examples=60, deadline=None)
@given(windows(WIDTH, HEIGHT), st.sampled_from(["RGB", "RGBA", "L", "P"]))
def test_any_window(window: tuple[int, int, int, int], mode: str) -> None:
    view = view_of(window, (24, 18))
    np.testing.assert_array_equal(decode(png(mode), view), reference(png(mode), view))


def sixteen_bits() -> bytes:
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    rows = np.random.default_rng(0).integers(0, 256, (HEIGHT, 6 * WIDTH + 1), np.uint8)
    rows[:, 0] = 0
    return joined([(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")])


def animated() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.fromarray(images.picture(WIDTH, HEIGHT, seed)) for seed in (1, 2)]
    frames[0].save(buffer, "PNG", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


HANDED_BACK = {
    "16 bits": sixteen_bits(),
    "interlaced": interlaced(),
    "animated": animated(),
    "compressed text": joined([*chunks(png())[:1], (b"zTXt", b"a\0\0" + zlib.compress(b"x" * 9)), *chunks(png())[1:]]),
    "cut short": png()[:-40],
    "no end": png()[:-12],
    "wrong checksum": png().replace(b"IHDR", b"IHDR", 1)[:29] + b"\0\0\0\0" + png()[33:],
    "empty": b"\x89PNG\r\n\x1a\n",
    "too many colours": joined(
        [(kind, body[:9] if kind == b"PLTE" else body) for kind, body in chunks(png("P")) if kind != b"tRNS"]
    ),
}


def verdict(backend: str, data: bytes, view: View) -> tuple[bool, np.ndarray]:
    """Whether a backend decodes, and what."""
    out = np.zeros((*view.size, 3), np.uint8)
    image = Encoded(data=data, header=None, width=WIDTH, height=HEIGHT)
    if backend == "native":
        image = inspect(data)
    (status,) = decode_each(create_backend(backend, fidelity="exact"), [image], [view], [out])
    return status is None, out


@pytest.mark.parametrize("name", HANDED_BACK)
def test_what_the_core_leaves_is_pillows_to_judge(name: str) -> None:
    with pytest.raises(AssertionError):
        decode(HANDED_BACK[name], WHOLE)
    if name != "empty":  # without a header no image gets as far as a backend
        expected, pixels = verdict("pil", HANDED_BACK[name], WHOLE)
        decoded, ours = verdict("native", HANDED_BACK[name], WHOLE)
        assert decoded == expected
        if expected:
            np.testing.assert_array_equal(ours, pixels)


@settings(max_examples=300, deadline=None)
@given(st.integers(33, len(png()) - 1), st.integers(1, 255), st.booleans())
@example(len(png()) - 20, 1, False)
def test_damage_is_judged_as_pillow_judges_it(at: int, change: int, cut: bool) -> None:
    data = bytearray(png())
    data[at] ^= change
    if cut:
        del data[at + 1 :]
    expected, pixels = verdict("pil", bytes(data), WHOLE)
    decoded, ours = verdict("native", bytes(data), WHOLE)
    assert decoded == expected
    if expected:
        np.testing.assert_array_equal(ours, pixels)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    header = struct.pack(">IIBBBBB", 1 << 19, 1 << 19, 8, 2, 0, 0, 0)
    bomb = joined([(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")])
    with pytest.raises(AssertionError, match="limit"):
        decode(bomb, view_of((0, 0, 8, 8)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(AssertionError, match="corrupt"):  # so little data cannot hold so many pixels
        decode(bomb, view_of((0, 0, 8, 8)))
    assert pillow.most_pixels() is None


def test_the_core_was_built_with_pngs() -> None:
    """Without libdeflate every test above would fail; this one says why."""
    assert native.load().reads_pngs
