"""The core's window of a JPEG, resized by its own passes, equals Pillow's to the last bit."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator

import images
import numpy as np
import pytest
from core_alone import decode, decoded, reference, view_of, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from places import GOLDEN

from fastdata import native
from fastdata.tables import Format
from fastdata.views.resampling import Interpolation

KERNELS = ["AVX2", "NEON", "plain"]


@contextlib.contextmanager
def using(kernels: str) -> Iterator[None]:
    """With this instruction set, where this processor has it."""
    library = native.load().library
    best = native.load().kernels.encode()
    library.fd_choose_kernels(kernels.encode())
    try:
        yield
    finally:
        library.fd_choose_kernels(best)


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(images.SAMPLINGS),
    st.integers(1, 150),
    st.integers(1, 150),
    st.integers(20, 98),
    st.sampled_from(KERNELS),
)
def test_any_window_of_any_sampling(
    data: st.DataObject, sampling: str, width: int, height: int, quality: int, kernels: str
) -> None:
    encoded = images.jpeg(width, height, seed=quality, sampling=sampling, quality=quality)
    view = view_of(data.draw(windows(width, height)))
    with using(kernels):
        assert (decode(encoded, view) == reference(encoded, view)).all()


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="libjpeg-turbo's vector code for x86 saturates, others wrap"
)
@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(["4:4:4", "4:2:2", "4:2:0", "grey"]),
    st.integers(0, 2**16),
    st.sampled_from([1, 8, 60, 255]),
)
def test_coefficients_that_no_image_has(data: st.DataObject, sampling: str, seed: int, step: int) -> None:
    """Other quantisation than the image was made with: sums wrap, and are saturated, as in libjpeg's vector code."""
    rng = np.random.default_rng(seed)
    pixels = rng.choice(np.array([0, 255], np.uint8), (50, 60, 3))
    encoded = bytearray(images.encoded(pixels, sampling=sampling, quality=int(rng.integers(60, 101))))
    at = 0
    while (at := encoded.find(b"\xff\xdb", at)) >= 0:
        for place in range(at + 5, at + 69):
            encoded[place] = min(255, max(1, encoded[place] * step)) if rng.integers(4) else 255
        at += 69
    view = view_of(data.draw(windows(60, 50)))
    assert (decode(bytes(encoded), view) == reference(bytes(encoded), view)).all()


@settings(max_examples=80, deadline=None)
@given(
    st.data(),
    st.sampled_from(
        [{"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 1}]
    ),
    st.sampled_from([0, 1, 2]),
    st.integers(17, 150),
    st.integers(17, 150),
)
def test_any_window_of_any_coding(
    data: st.DataObject, coding: dict[str, bool | int], subsampling: int, width: int, height: int
) -> None:
    encoded = images.saved(width, height, subsampling=subsampling, quality=70, **coding)
    view = view_of(data.draw(windows(width, height)))
    assert (decode(encoded, view) == reference(encoded, view)).all()


@pytest.mark.parametrize("name", ["arithmetic", "arithmetic-progressive", "multi-scan"])
@pytest.mark.parametrize("window", [(0, 0, 101, 77), (37, 20, 64, 51), (90, 66, 101, 77), (0, 70, 10, 77)])
def test_rare_codings(name: str, window: tuple[int, int, int, int]) -> None:
    encoded = (GOLDEN / f"{name}.jpg").read_bytes()
    view = view_of(window)
    assert (decode(encoded, view) == reference(encoded, view)).all()


def test_components_of_three_widths() -> None:
    """Luma four times as wide as one component and twice as wide as the other."""
    encoded = (GOLDEN / "mixed-sampling.jpg").read_bytes()
    whole = reference(encoded, view_of((0, 0, 101, 77)))
    for left in range(101):
        for right in range(left + 1, min(left + 20, 101) + 1):
            view = view_of((left, 30, right, 34))
            assert (decode(encoded, view) == whole[30:34, left:right]).all(), (left, right)


@pytest.mark.parametrize("factors", [0x11, 0x12, 0x21, 0x22, 0x41, 0x44])
@pytest.mark.parametrize("window", [(0, 0, 101, 77), (60, 20, 101, 60), (90, 66, 101, 77), (40, 0, 64, 51)])
def test_grey_images_with_sampling_factors(factors: int, window: tuple[int, int, int, int]) -> None:
    """A scan of one component has MCUs of one block, whatever the factors say."""
    encoded = bytearray(images.jpeg(101, 77, sampling="grey"))
    frame = encoded.index(b"\xff\xc0")
    encoded[frame + 11] = factors
    view = view_of(window)
    assert (decode(bytes(encoded), view) == reference(bytes(encoded), view)).all()


def test_progressive_files_that_leave_coefficients_out_are_handed_back() -> None:
    """libjpeg smooths them, each version in its own way."""
    encoded = images.saved(96, 80, progressive=True)
    second_scan = encoded.index(b"\xff\xda", encoded.index(b"\xff\xda") + 2)
    dc_only = encoded[:second_scan] + b"\xff\xd9"
    with pytest.raises(AssertionError, match="unsupported"):
        decode(dc_only, view_of((0, 0, 96, 80)))


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.sampled_from(list(Interpolation)),
    st.integers(1, 120),
    st.integers(1, 120),
    st.booleans(),
    st.booleans(),
    st.sampled_from(KERNELS),
)
def test_any_resize_by_every_instruction_set(
    data: st.DataObject,
    filter_: Interpolation,
    out_width: int,
    out_height: int,
    horizontal: bool,
    vertical: bool,
    kernels: str,
) -> None:
    encoded = images.jpeg(130, 110, seed=3)
    resize = (out_width, out_height)
    left, top = data.draw(st.integers(-5, out_width - 1)), data.draw(st.integers(-5, out_height - 1))
    crop = (left, top, left + data.draw(st.integers(1, 90)), top + data.draw(st.integers(1, 90)))
    view = view_of(
        data.draw(windows(130, 110)),
        resize,
        crop_px=crop,
        flip_horizontal=horizontal,
        flip_vertical=vertical,
        interpolation=filter_,
    )
    with using(kernels):
        assert (decode(encoded, view) == reference(encoded, view)).all()


@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("dtype", [None, np.float32, np.float16])
@pytest.mark.parametrize("width", [1, 7, 40, 101])
def test_every_output_format(channels_first: bool, dtype: type | None, width: int) -> None:
    table = None if dtype is None else np.random.default_rng(0).normal(size=(3, 256)).astype(dtype)
    encoded = images.jpeg(130, 110, seed=3)
    view = view_of((3, 5, 100, 90), (width, 33), flip_horizontal=width == 40)
    expected = reference(encoded, view)
    if table is not None:
        expected = np.stack([table[c][expected[..., c]] for c in range(3)], axis=-1)
    out = decode(encoded, view, Format(channels_first=channels_first, table=table))
    assert (out == (expected.transpose(2, 0, 1) if channels_first else expected)).all()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("channels_first", [True, False])
@pytest.mark.parametrize("dtype", [None, np.float32, np.float16])
@pytest.mark.parametrize("width", [1, 7, 40, 101])
def test_rows_and_planes_apart_leave_what_lies_between(
    channels_first: bool, dtype: type | None, width: int, kernels: str
) -> None:
    table = None if dtype is None else np.random.default_rng(0).normal(size=(3, 256)).astype(dtype)
    pixels = np.random.default_rng(width).integers(0, 256, (9, width, 3), np.uint8)
    values = pixels if table is None else np.stack([table[c][pixels[..., c]] for c in range(3)], axis=-1)
    expected = np.full((4, 12, width + 5, 4), 77, values.dtype)  # planes, rows, columns, channels side by side
    place = expected.copy()
    if channels_first:
        expected[:3, :9, :width, 0] = values.transpose(2, 0, 1)
        expected, place = (np.ascontiguousarray(each[..., 0]) for each in (expected, place))
        strides = width + 5, 12 * (width + 5)
    else:
        expected, place = (np.ascontiguousarray(each[0, :, :, :3]) for each in (expected, place))
        expected[:9, :width] = values
        strides = 3 * (width + 5), 0
    with using(kernels):
        native.load().convert(
            pixels, place.ctypes.data, Format(channels_first=channels_first, table=table, strides=strides)
        )
    assert (place == expected).all()


def test_strides_below_zero_are_refused() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    with pytest.raises(ValueError, match="convert"):
        native.load().convert(pixels, pixels.ctypes.data, Format(strides=(-6, 0)))


@pytest.mark.parametrize("coding", [{}, {"restart_marker_rows": 1}], ids=["one segment", "rows restart"])
@pytest.mark.parametrize("window", [(0, 0, 60, 50), (0, 49, 5, 50)], ids=["whole", "last row"])
def test_markers_behind_the_scan(coding: dict[str, int], window: tuple[int, int, int, int]) -> None:
    """Pillow refuses most of them; what it accepts has the same pixels."""
    whole, view, shown = images.saved(60, 50, **coding), view_of(window), set()
    for value in range(256):
        damaged = whole[:-2] + bytes((0xFF, value)) + whole[-2:]
        pixels = decoded(damaged, view)
        try:
            expected = reference(damaged, view)
        except OSError:
            assert pixels is None, f"FF {value:02X} is shown, though Pillow refuses it"
            continue
        if pixels is not None:
            assert (pixels == expected).all()
            shown.add(value)
    assert shown == {0x00, 0x01, *range(0xD0, 0xD8), 0xD9, 0xFF}


def test_a_marker_to_the_right_of_a_window_is_noticed() -> None:
    whole = images.saved(200, 8, restart_marker_rows=1)
    damaged = whole[:-40] + b"\xff\x7e" + whole[-38:]
    assert decoded(whole, view_of((0, 0, 8, 8))) is not None
    assert decoded(damaged, view_of((0, 0, 8, 8))) is None
