"""What every decode backend must do; adding a backend to the table adds it here."""

from __future__ import annotations

import threading

import images
import numpy as np
import pytest
from core_alone import view_of
from PIL import Image

from fastdata.errors import BackendUnavailable, OptionError
from fastdata.loaders import BACKENDS, MEAN_TOLERANCE, Backend, Encoded, create_backend, describe_backends, pillow
from fastdata.loaders.per_image import inspect
from fastdata.views.plan import Interpolation
from fastdata.views.view import View

DECODING = [name for name in BACKENDS if name != "synthetic"]


def reference(data: bytes, seen: View) -> np.ndarray:
    """What Pillow makes of it, in the plainest words."""
    import io

    image = Image.open(io.BytesIO(data)).convert("RGB").crop(seen.window_px)
    image = image.resize(seen.resize_px, seen.interpolation.value).crop(seen.crop_px)
    if seen.flip_horizontal:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if seen.flip_vertical:
        image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    return np.asarray(image)


def decode_one(backend: Backend, data: bytes, seen: View) -> np.ndarray:
    out = np.full((1, *seen.size, 3), 77, np.uint8)
    (status,) = backend.decode([inspect(data)], [seen], out)
    if status is not None:
        raise status
    return out[0]


def check_close(got: np.ndarray, expected: np.ndarray, name: str, fidelity: str = "exact") -> None:
    difference = np.abs(got.astype(np.int16) - expected).mean()
    assert difference <= MEAN_TOLERANCE[fidelity][name]


@pytest.fixture(params=DECODING)
def backend(request: pytest.FixtureRequest) -> Backend:
    return create_backend(request.param)


@pytest.mark.parametrize("sampling", images.SAMPLINGS)
@pytest.mark.parametrize("size", [(97, 61), (160, 120), (33, 200), (16, 16), (7, 5)])
def test_windows_of_every_sampling_equal_pillow(backend: Backend, sampling: str, size: tuple[int, int]) -> None:
    data = images.jpeg(*size, sampling=sampling)
    width, height = size
    windows = [(0, 0, width, height), (0, 0, width // 2, height // 2), (width // 3, height // 3, width, height)]
    windows += [(width // 4, height // 4, width // 4 + 1, height // 4 + 1), (1, 1, width - 1, height // 2)]
    for window in windows:
        for flip in (False, True):
            seen = view_of(window, (40, 56), flip_horizontal=flip)
            check_close(decode_one(backend, data, seen), reference(data, seen), backend.name)


@pytest.mark.parametrize("filter_", [each for each in Interpolation if not each.is_tensors])
def test_every_filter_equals_pillow(backend: Backend, filter_: Interpolation) -> None:
    data = images.jpeg(150, 110)
    seen = View(
        window_px=(11, 7, 140, 100),
        resize_px=(64, 48),
        crop_px=(5, 3, 60, 44),
        flip_horizontal=True,
        flip_vertical=True,
        interpolation=filter_,
    )
    check_close(decode_one(backend, data, seen), reference(data, seen), backend.name)


@pytest.mark.parametrize("name", images.odd_files())
def test_odd_files_equal_pillow(backend: Backend, name: str) -> None:
    data = images.odd_files()[name]
    image = inspect(data)
    seen = view_of((0, 0, image.width, image.height), (50, 30))
    check_close(decode_one(backend, data, seen), reference(data, seen), backend.name)


def test_crop_outside_the_image_is_black(backend: Backend) -> None:
    data = images.jpeg(20, 30)
    seen = View(
        window_px=(0, 0, 20, 30),
        resize_px=(20, 30),
        crop_px=(-6, -1, 26, 31),
        flip_horizontal=False,
        flip_vertical=False,
        interpolation=Interpolation.BILINEAR,
    )
    check_close(decode_one(backend, data, seen), reference(data, seen), backend.name)


def test_a_bad_image_leaves_its_neighbours_unharmed(backend: Backend) -> None:
    good = images.jpeg(120, 90)
    cut = good[: len(good) // 2]
    seen = view_of((10, 10, 100, 80), (32, 32))
    out = np.zeros((3, 32, 32, 3), np.uint8)
    statuses = backend.decode([inspect(data) for data in (good, cut, good)], [seen] * 3, out)
    assert [status is None for status in statuses] == [True, False, True]
    for position in (0, 2):
        check_close(out[position], reference(good, seen), backend.name)


def test_truncation_is_noticed_below_the_window(backend: Backend) -> None:
    data = images.jpeg(200, 400)
    cut = data[: len(data) * 3 // 4]
    with pytest.raises(OSError, match="truncated"):
        decode_one(backend, cut, view_of((0, 0, 200, 40), (32, 32)))


@pytest.mark.parametrize("damage", ["zeros", "noise"])
def test_damage_in_the_scan_is_treated_as_pillow_treats_it(backend: Backend, damage: str) -> None:
    data = bytearray(images.jpeg(200, 160))
    middle = len(data) // 2
    data[middle : middle + 60] = bytes(60) if damage == "zeros" else bytes(range(60, 120))
    seen = view_of((20, 20, 180, 140), (64, 64))
    try:
        expected = reference(bytes(data), seen)
    except OSError:
        with pytest.raises(OSError, match=r".+"):
            decode_one(backend, bytes(data), seen)
    else:
        check_close(decode_one(backend, bytes(data), seen), expected, backend.name)


def test_a_bomb_is_refused_before_decoding(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    data = images.jpeg(100, 100)
    image = inspect(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4999)
    out = np.zeros((1, 8, 8, 3), np.uint8)
    (status,) = backend.decode([image], [view_of((0, 0, 100, 100), (8, 8))], out)
    assert isinstance(status, pillow.bomb_error())
    assert "9998" in str(status)
    assert "MAX_IMAGE_PIXELS" in str(status)


def test_threads_share_a_backend(backend: Backend) -> None:
    files = [images.jpeg(80 + 9 * n, 130 - 5 * n, seed=n) for n in range(8)]
    seen = view_of((5, 5, 70, 80), (48, 48))
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            if not np.array_equal(decode_one(backend, files[number], seen), expected[number]):
                wrong.append(number)

    expected = [decode_one(backend, data, seen) for data in files]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize("size", [(64, 64), (100, 100), (150, 120)])
def test_fast_fidelity_stays_within_its_tolerance(name: str, size: tuple[int, int]) -> None:
    data = images.jpeg(640, 480, quality=92)
    seen = view_of((40, 30, 620, 460), size)
    check_close(decode_one(create_backend(name, fidelity="fast"), data, seen), reference(data, seen), name, "fast")


def test_every_backend_has_a_line_in_the_table_of_differences() -> None:
    for table in MEAN_TOLERANCE.values():
        assert set(table) == set(DECODING)


def test_every_backend_is_described() -> None:
    assert {info.name for info in describe_backends()} == set(BACKENDS)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_is_available_here(name: str) -> None:
    assert [info.problem for info in describe_backends() if info.name == name] == [None]


def test_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'pillow'.*known: auto, pil, native, turbojpeg.*did you mean 'pil'"):
        create_backend("pillow")


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(BackendUnavailable, match=r"'opencv' is not available.*pip install"):
        create_backend("opencv")


def test_synthetic_fills_every_image_and_needs_no_bytes() -> None:
    out = np.zeros((2, 16, 16, 3), np.uint8)
    image = Encoded(data=b"", header=None, width=1, height=1)
    statuses = create_backend("synthetic").decode([image] * 2, [view_of((0, 0, 1, 1), (16, 16))] * 2, out)
    assert statuses == [None, None]
    assert out.std() > 50
