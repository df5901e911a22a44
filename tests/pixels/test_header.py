"""Sizes from the first bytes agree with Pillow, and no bytes make the parser fail."""

from __future__ import annotations

import io

import images
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata.views import header as header_module
from fastdata.views.header import has_whole_scans, parse_header

FILES = {**images.odd_files(), "gif.gif": images.saved(mode="P", kind="GIF")}
UNKNOWN = {"tiff.tif", "greymap.pgm", "gif.gif"}


@pytest.mark.parametrize("name", FILES)
def test_size_and_kind_agree_with_pillow(name: str) -> None:
    header = parse_header(FILES[name])
    if name in UNKNOWN:
        assert header is None
        return
    with Image.open(io.BytesIO(FILES[name])) as image:
        kind = "jpeg" if image.format == "MPO" else str(image.format).lower()
        assert header is not None
        assert (header.kind, header.width, header.height) == (kind, *image.size)


@pytest.mark.parametrize("sampling", images.SAMPLINGS)
def test_jpeg_details(sampling: str) -> None:
    header = parse_header(images.jpeg(61, 47, sampling=sampling))
    assert header is not None
    jpeg = header.jpeg
    assert jpeg is not None
    assert (jpeg.sequential, jpeg.single_scan, jpeg.precision_bits) == (True, True, 8)
    assert jpeg.components == (1 if sampling == "grey" else 3)
    assert jpeg.mcu_height_px == (16 if sampling in ("4:2:0", "4:4:0") else 8)


def test_progressive_files_are_told_apart() -> None:
    header = parse_header(FILES["progressive.jpg"])
    assert header is not None
    assert header.jpeg is not None
    assert not header.jpeg.sequential


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(sorted(FILES)), cut=st.integers(0, 4000), flips=st.lists(st.integers(0, 4000), max_size=4))
def test_no_damage_makes_the_parser_fail(name: str, cut: int, flips: list[int]) -> None:
    data = bytearray(FILES[name][:cut])
    for at in flips:
        if at < len(data):
            data[at] ^= 0xFF
    header = parse_header(bytes(data))
    assert header is None or (header.width > 0 and header.height > 0)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=64), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"RIFF"]))
def test_random_bytes_are_survived(tail: bytes, start: bytes) -> None:
    header = parse_header(start + tail)
    assert header is None or (header.width > 0 and header.height > 0)


@settings(max_examples=500, deadline=None)
@given(
    name=st.sampled_from(sorted(name for name, data in FILES.items() if data[:2] == b"\xff\xd8")),
    cut=st.integers(0, 300),
    changes=st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0x00, 0xC4, 0xD0, 0xD9, 0xDA, 0xE0, 0xFE, 0xFF]))),
    as_part=st.booleans(),
)
def test_the_core_and_python_agree_on_whole_scans(
    name: str, cut: int, changes: list[tuple[float, int]], as_part: bool
) -> None:
    data = bytearray(FILES[name])
    header = parse_header(bytes(data))
    assert header is not None
    assert header.jpeg is not None
    for place, byte in changes:
        data[header.jpeg.scan_at + int(place * (len(data) - header.jpeg.scan_at - 1))] = byte
    given = bytes(data[: len(data) - cut])
    expected = header_module._has_whole_scans(given, header.jpeg)
    assert has_whole_scans(memoryview(b"\xff\xd9" + given)[2:] if as_part else given, header.jpeg) is expected


def test_whole_files_have_whole_scans() -> None:
    found = {}
    for name, data in FILES.items():
        header = parse_header(data)
        if header is not None and header.jpeg is not None:
            found[name] = has_whole_scans(data, header.jpeg), has_whole_scans(data[:-3], header.jpeg)
    assert all(whole for whole, _ in found.values())
    assert not found["progressive.jpg"][1]
