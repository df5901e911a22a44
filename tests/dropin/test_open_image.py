"""fastdata.open_image: Pillow's images, which stay encoded until somebody needs pixels, without a replaced function."""

from __future__ import annotations

import contextlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import PIL.Image
import pytest
import torch
import torchvision.transforms as v1
from torch.utils.data import Dataset

import fastdata
from fastdata import DataLoader
from fastdata.lazy.encoded_image import EncodedImage
from fastdata.lazy.opening import opening_encoded
from fastdata.testing import synthetic_dataset


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = synthetic_dataset(tmp_path_factory.mktemp("open"), classes=1, images_per_class=9, size_px=(90, 70))
    return next(folder.rglob("*.jpg"))


def given(path: Path, kind: str) -> Any:
    if kind == "bytes":
        return path.read_bytes()
    if kind == "file":
        return io.BytesIO(path.read_bytes())
    return str(path) if kind == "str" else path


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "file"])
def test_an_image_stays_encoded_and_has_pillows_pixels(photo: Path, kind: str) -> None:
    opens = PIL.Image.open
    image, expected = fastdata.open_image(given(photo, kind)), PIL.Image.open(photo)
    assert isinstance(image, EncodedImage)
    assert PIL.Image.open is opens
    assert (image.size, image.mode, image.format) == (expected.size, expected.mode, expected.format)
    ours, theirs = (each.crop((5, 4, 65, 64)).resize((32, 32)) for each in (image, expected))
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    assert np.array_equal(np.asarray(image), np.asarray(expected))
    assert np.array_equal(np.asarray(pickle.loads(pickle.dumps(image))), np.asarray(expected))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_may_be_closed_once_it_is_opened(photo: Path, replaced: bool) -> None:
    with opening_encoded() if replaced else contextlib.nullcontext(), photo.open("rb") as file:
        image = fastdata.open_image(file)
    assert isinstance(image, EncodedImage)
    assert np.array_equal(np.asarray(image), np.asarray(PIL.Image.open(photo)))


def test_a_file_may_be_deleted_once_it_is_opened(photo: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jpg"
    copy.write_bytes(photo.read_bytes())
    image = fastdata.open_image(copy)
    copy.unlink()
    assert np.array_equal(np.asarray(image), np.asarray(PIL.Image.open(photo)))


def test_other_formats_and_bad_files_are_pillows(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fastdata.open_image(photo).save(tmp_path / "photo.bmp")
    with fastdata.open_image(tmp_path / "photo.bmp") as image:
        assert image.format == "BMP"
    with pytest.raises(FileNotFoundError):
        fastdata.open_image(tmp_path / "missing.jpg")
    with pytest.raises(PIL.UnidentifiedImageError):
        fastdata.open_image(b"no image")
    (tmp_path / "short.jpg").write_bytes(photo.read_bytes()[:600])
    with pytest.raises(OSError, match=r"(?i)truncated"):
        fastdata.open_image(tmp_path / "short.jpg").load()
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(PIL.Image.DecompressionBombError):
        fastdata.open_image(photo)


class Own(Dataset[Any]):
    def __init__(self, photo: Path) -> None:
        self.paths = sorted(photo.parent.glob("*.jpg"))
        self.transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
        self.open: Any = fastdata.open_image

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        tensor: torch.Tensor = self.transform(self.open(self.paths[index]))
        return tensor


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_datasets_that_call_it_are_torchs(photo: Path, workers: int) -> None:
    theirs = Own(photo)
    theirs.open = PIL.Image.open
    expected = list(torch.utils.data.DataLoader(theirs, 4))
    loader = DataLoader(Own(photo), 4, num_workers=workers)
    assert all(map(torch.equal, loader, expected))
    assert loader.verdict().kind == "accelerated"
    assert all(map(torch.equal, torch.utils.data.DataLoader(Own(photo), 4, num_workers=workers), expected))
