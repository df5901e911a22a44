"""Repacking JPEGs: other bytes, the same pixels; and the windows of files whose rows can be found by markers."""

from __future__ import annotations

import io

import images
import numpy as np
import pytest
from core_alone import decode, reference, view_of, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from places import GOLDEN

from fastdata.loaders import resample

WIDTH, HEIGHT = 83, 117
SOURCES = {
    **{sampling: images.jpeg(WIDTH, HEIGHT, sampling=sampling) for sampling in images.SAMPLINGS},
    "progressive": images.saved(WIDTH, HEIGHT, progressive=True),
    "restarts": images.saved(WIDTH, HEIGHT, restart_marker_blocks=3),
    "RGB": images.saved(WIDTH, HEIGHT, keep_rgb=True),
    **{path.stem: path.read_bytes() for path in GOLDEN.glob("*.jpg")},
}


def repack(data: bytes, restart_rows: int = 1) -> bytes | None:
    core, order = resample.exact_core()
    options = resample.options_for(order, "exact")
    return core.repack(data, restart_rows=restart_rows, options=options)


def pixels(data: bytes) -> np.ndarray:
    width, height = Image.open(io.BytesIO(data)).size
    return reference(data, view_of((0, 0, width, height)))


@pytest.mark.parametrize("restart_rows", [0, 1, 3])
@pytest.mark.parametrize("name", SOURCES)
def test_pixels_stay(name: str, restart_rows: int) -> None:
    repacked = repack(SOURCES[name], restart_rows)
    assert repacked is not None
    np.testing.assert_array_equal(pixels(repacked), pixels(SOURCES[name]))
    assert b"\xff\xc0" in repacked  # baseline
    assert repack(repacked, restart_rows) == repacked


def test_metadata_goes() -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description"
    data = images.saved(WIDTH, HEIGHT, exif=exif, comment=b"hello", icc_profile=b"profile" * 100)
    repacked = repack(data)
    assert repacked is not None
    assert len(repacked) < len(data) - 700
    assert b"description" not in repacked
    assert b"hello" not in repacked


@pytest.mark.parametrize("kind", ["cmyk", "png", "cut short", "damaged", "empty", "bomb"])
def test_what_cannot_be_repacked_is_left_alone(kind: str) -> None:
    data = {
        "cmyk": images.saved(mode="CMYK"),
        "png": images.saved(kind="PNG"),
        "cut short": images.saved()[:-200],
        "damaged": images.saved(WIDTH, HEIGHT).replace(b"\xff\xda", b"\xff\xdb", 1),
        "empty": b"",
        "bomb": images.saved(8, 8).replace(b"\x00\x08\x00\x08\x03", b"\xff\xff\xff\xff\x03"),
    }[kind]
    assert repack(data) is None


REPACKED = {name: repack(data) or b"" for name, data in SOURCES.items()}


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(images.SAMPLINGS), windows(WIDTH, HEIGHT))
def test_any_window_of_rows_found_by_markers(sampling: str, window: tuple[int, int, int, int]) -> None:
    view = view_of(window, (24, 18))
    np.testing.assert_array_equal(decode(REPACKED[sampling], view), reference(SOURCES[sampling], view))


def test_rows_whose_markers_are_out_of_order_are_refused() -> None:
    data = bytearray(REPACKED["4:2:0"])
    at = data.index(b"\xff\xd2")
    data[at + 1] = 0xD5
    with pytest.raises(AssertionError, match="corrupt"):
        decode(bytes(data), view_of((0, 100, WIDTH, HEIGHT)))
