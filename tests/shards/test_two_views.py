"""Transforms that cannot be fused as a whole, like SimCLR's two views, cost as little from shards as from files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.datasets
import torchvision.transforms as v1
from folders import SHARD_BYTES, flip
from PIL import Image

from fastdata import DataLoader, ImageFolder, ShardDataset, ShardError
from fastdata.loaders import unpacked
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding

VALIDATE = v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.ToTensor()])
TRAIN = v1.Compose([v1.RandomResizedCrop(24), v1.RandomGrayscale(0.5), v1.ColorJitter(0.4, 0.4), v1.ToTensor()])


class Twice:
    """Gives two views of an image."""

    def __init__(self, once: Callable[[Any], torch.Tensor]) -> None:
        self.once = once

    def __call__(self, image: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return self.once(image), self.once(image)


@pytest.fixture(scope="module")
def stored(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder's images as shards of files, and of unpacked JPEGs."""
    place = tmp_path_factory.mktemp("stored")
    for name, is_unpacked in (("shards", False), ("unpacked", True)):
        options = ConvertOptions(shard_bytes=SHARD_BYTES, recoding=Recoding(unpacked=is_unpacked))
        convert(str(folder), place / name, options)
    return place


def dataset(kind: str, folder: Path, stored: Path, transform: Any) -> Any:
    if kind == "torchvision":
        return torchvision.datasets.ImageFolder(folder, transform)
    return ImageFolder(folder, transform) if kind == "files" else ShardDataset(stored / kind, transform)


def views(loader: Any) -> list[torch.Tensor]:
    """Both views of all images."""
    both = [images for images, _ in loader]
    return [torch.cat(each) for each in zip(*both, strict=True)]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


OURS = ["files", "shards", "unpacked"]


@pytest.mark.parametrize("kind", OURS)
def test_views_are_those_of_torchvisions_dataset(kind: str, folder: Path, stored: Path) -> None:
    reference = views(DataLoader(dataset("torchvision", folder, stored, Twice(TRAIN)), 8, num_workers=2, seed=3))
    loader = DataLoader(dataset(kind, folder, stored, Twice(TRAIN)), 8, num_workers=2, seed=3)
    assert len(loader._route().fused) == 1
    assert not torch.equal(*reference)
    assert equal(views(loader), reference)


@pytest.mark.parametrize("kind", OURS)
def test_views_do_not_depend_on_the_batch(kind: str, folder: Path, stored: Path) -> None:
    own = dataset(kind, folder, stored, Twice(TRAIN))
    assert equal(*[views(DataLoader(own, size, seed=3)) for size in (3, 8)])
    assert equal(views(DataLoader(own, 5, num_workers=2, seed=3)), views(DataLoader(own, 8, seed=3)))


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("backend", ["native", "turbojpeg", "pil"])
def test_pixels_are_torchvisions(kind: str, backend: Any, folder: Path, stored: Path) -> None:
    reference = torch.utils.data.DataLoader(dataset("torchvision", folder, stored, Twice(VALIDATE)), 8)
    ours = DataLoader(dataset(kind, folder, stored, Twice(VALIDATE)), 8, num_workers=2, backend=backend)
    assert equal(views(ours), views(reference))


def test_records_are_not_made_files_again(folder: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(data: bytes) -> bytes:
        raise AssertionError("restored")

    for module in ("fastdata.shards.dataset", "fastdata.lazy.encoded_source"):
        monkeypatch.setattr(f"{module}.as_file", never)
    loader = DataLoader(dataset("unpacked", folder, stored, Twice(TRAIN)), 8, num_workers=2, backend="native")
    assert len(views(loader)[0]) == len(loader.dataset)  # type: ignore[arg-type]


class HoldsNothing:
    """A step of the user's."""

    def __call__(self, image: Any) -> Any:
        return image.rotate(5)


def test_records_are_made_files_once_where_each_view_is_decoded(
    folder: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored: list[int] = []

    def counted(data: bytes) -> bytes:
        restored.extend([len(data)] * unpacked.is_unpacked(data))
        return unpacked.as_file(data)

    for module in ("fastdata.shards.dataset", "fastdata.lazy.encoded_source"):
        monkeypatch.setattr(f"{module}.as_file", counted)
    steps = v1.Compose([v1.RandomResizedCrop(24), HoldsNothing(), v1.ToTensor()])
    results = []
    for kind in ("shards", "unpacked"):
        own = dataset(kind, folder, stored, Twice(steps))
        results.append(views(DataLoader(own, 8, seed=3)))
    assert equal(*results)
    assert len(restored) == len(own)


class Looks:
    """Uses what only Pillow knows of an image, then pixels."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        again = pickle.loads(pickle.dumps(image))
        assert again.tobytes() == image.tobytes()
        return v1.functional.to_tensor(image.rotate(10).resize((20, 20)))


@pytest.mark.parametrize("kind", OURS)
def test_whoever_looks_gets_pillows_pixels(kind: str, folder: Path, stored: Path) -> None:
    reference = torch.utils.data.DataLoader(dataset("torchvision", folder, stored, Looks()), 8)
    ours = DataLoader(dataset(kind, folder, stored, Looks()), 8, num_workers=2)
    for (found, _), (expected, _) in zip(ours, reference, strict=True):
        assert torch.equal(found, expected)


def test_large_images_warn_as_pillow_does(folder: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30_000)
    for kind in OURS:
        with pytest.warns(Image.DecompressionBombWarning):
            list(DataLoader(dataset(kind, folder, stored, Twice(TRAIN)), 8))


def test_a_damaged_record_is_named(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "set", ConvertOptions(recoding=Recoding(unpacked=True)))
    own = ShardDataset(tmp_path / "set", Twice(TRAIN))
    path, offset, length, _ = own.file_range(4)
    flip(Path(path), offset + length // 2)
    for workers in (0, 2):
        with pytest.raises(ShardError, match="damaged image"):
            list(DataLoader(own, 8, num_workers=workers))


def test_a_record_that_was_made_wrong_is_an_error(folder: Path, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = dataset("unpacked", folder, stored, Twice(TRAIN))
    genuine = type(own)._read_whole

    def cut(self: Any, index: int) -> bytes:
        data: bytes = genuine(self, index)
        assert unpacked.is_unpacked(data)
        return data[:-50] if index == 4 else data

    monkeypatch.setattr(type(own), "_read_whole", cut)
    for workers in (0, 2):
        with pytest.raises(OSError, match="damaged record of an unpacked JPEG"):
            list(DataLoader(own, 8, num_workers=workers))
    kept = DataLoader(own, 8, num_workers=2, on_error="skip")
    assert len(views(kept)[0]) == len(own) - 1
    assert [index for index, *_ in kept.stats()["quarantine"]] == [4]
