"""What every decode backend must do; adding a backend to the table adds it here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torchvision.transforms as v1
from core_alone import view_of
from PIL import Image

from fastdata import DataLoader, ImageFolder
from fastdata.errors import BackendUnavailable, OptionError
from fastdata.loaders import (
    BACKENDS,
    Backend,
    Encoded,
    backend_class,
    create_backend,
    describe_backends,
    fallback,
    mean_tolerance,
    pillow,
)
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.system.files import read_file
from fastdata.testing import CHECKS
from fastdata.testing.pictures import pillows_view
from fastdata.views.view import View

DECODING = [name for name in BACKENDS if name != "synthetic"]


def decode_one(backend: Backend, data: bytes, seen: View) -> np.ndarray:
    out = np.full((1, *seen.size, 3), 77, np.uint8)
    (status,) = decode_each(backend, [inspect(data)], [seen], out)
    if status is not None:
        raise status
    return out[0]


def check_close(got: np.ndarray, expected: np.ndarray, name: str, fidelity: str = "exact") -> None:
    difference = np.abs(got.astype(np.int16) - expected).mean()
    assert difference <= mean_tolerance(name, fidelity)


@pytest.fixture(params=DECODING)
def backend(request: pytest.FixtureRequest) -> Backend:
    return create_backend(request.param)


@pytest.mark.parametrize("check", CHECKS)
def test_it_keeps_the_contract(backend: Backend, check: str) -> None:
    CHECKS[check](backend, mean_tolerance(backend.name))


@pytest.mark.parametrize("name", images.odd_files())
def test_odd_files_equal_pillow(backend: Backend, name: str) -> None:
    data = images.odd_files()[name]
    image = inspect(data)
    seen = view_of((0, 0, image.width, image.height), (50, 30))
    check_close(decode_one(backend, data, seen), pillows_view(data, seen), backend.name)


def test_a_bomb_is_refused_before_decoding(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    data = images.jpeg(100, 100)
    image = inspect(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4999)
    out = np.zeros((1, 8, 8, 3), np.uint8)
    (status,) = decode_each(backend, [image], [view_of((0, 0, 100, 100), (8, 8))], out)
    assert isinstance(status, pillow.bomb_error())
    assert "9998" in str(status)
    assert "MAX_IMAGE_PIXELS" in str(status)


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize("size", [(64, 64), (100, 100), (150, 120)])
def test_fast_fidelity_stays_within_its_tolerance(name: str, size: tuple[int, int]) -> None:
    data = images.jpeg(640, 480, quality=92)
    seen = view_of((40, 30, 620, 460), size)
    check_close(decode_one(create_backend(name, fidelity="fast"), data, seen), pillows_view(data, seen), name, "fast")


def test_every_backend_that_decodes_states_its_difference_from_pillow() -> None:
    assert all(mean_tolerance(name, "fast") is not None for name in DECODING)
    assert mean_tolerance("synthetic") is None
    assert [name for name in DECODING if mean_tolerance(name) == 0] == ["pil", "native", "turbojpeg"]


def test_every_backend_is_described() -> None:
    assert {info.name for info in describe_backends()} == set(BACKENDS)


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_is_available_here(name: str) -> None:
    assert backend_class(name).version()  # else the test is skipped, or fails where all backends are promised


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
    statuses = decode_each(create_backend("synthetic"), [image] * 2, [view_of((0, 0, 1, 1), (16, 16))] * 2, out)
    assert statuses == [None, None]
    assert out.std() > 50


@pytest.mark.parametrize("backend", ["pil", "turbojpeg"])
def test_a_header_is_parsed_once(folder: Path, backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    original = fallback.parse_header
    monkeypatch.setattr(fallback, "parse_header", lambda data: (parsed.append(len(data)), original(data))[1])
    dataset = ImageFolder(folder, v1.Compose([v1.RandomResizedCrop(20), v1.ToTensor()]))
    list(DataLoader(dataset, 4, backend=backend))
    assert len(parsed) == len(dataset)


def test_a_part_of_a_file_is_whole_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert [read_file(path), read_file(path, 3), read_file(path, 2, 4)] == [b"0123456789", b"3456789", b"2345"]
    for place in ((8, 3), (11, -1), (-1, 2)):
        with pytest.raises(OSError, match="outside the file of 10 bytes"):
            read_file(path, *place)
