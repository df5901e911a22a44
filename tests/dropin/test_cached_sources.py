"""A cache of unpacked JPEGs for images that a dataset's own code opens: the same batches, whatever becomes of it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import flip
from images import jpeg, saved
from PIL import Image
from torchvision import transforms as tv

from fastdata import DataLoader
from fastdata.dataloader import map_style
from fastdata.errors import SamplesSkipped

CROP = tv.Compose([tv.RandomResizedCrop(24), tv.RandomHorizontalFlip(), tv.ToTensor()])
COUNT = 30


class Own(torch.utils.data.Dataset[Any]):
    """A dataset's own code; with `views` several crops of each image."""

    def __init__(self, paths: list[Path], views: int = 1) -> None:
        self.paths, self.views, self.transform = paths, views, CROP

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            whole = image.convert("RGB")
        crops = tuple(self.transform(whole) for _ in range(self.views))
        return (*crops, index)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = []
    for number in range(COUNT):
        path = tmp_path / f"{number}.jpg"
        path.write_bytes(jpeg(90 + number, 70, seed=number))
        age(path)
        found.append(path)
    return found


def age(path: Path) -> None:
    """Makes a file that was not written just now."""
    before = path.stat().st_mtime_ns - 10**9
    os.utime(path, ns=(before, before))


@pytest.fixture(params=["bytes", "paths"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Images stay encoded as bytes in memory, or, where files are older than the program, as paths."""
    if request.param == "paths":
        monkeypatch.setattr(map_style, "program_began", lambda: time.time() + 60)
    return str(request.param)


@pytest.fixture(params=["ram", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "ram" if request.param == "ram" else str(tmp_path / "cache")


def loader(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, **{"batch_size": 8, "shuffle": True, "seed": 5, **options})


def check_same(ours: DataLoader[Any], plain: DataLoader[Any]) -> int:
    """One epoch of each gives the same batches; returns how many images came from the cache."""
    before = ours.stats()["cached"]
    for found, expected in zip(ours, plain, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    return ours.stats()["cached"] - before


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("views", [1, 2])
def test_batches_are_the_same_and_come_from_the_cache(
    paths: list[Path], place: str, kept: str, workers: int, views: int
) -> None:
    dataset = Own(paths, views)
    ours, plain = loader(dataset, num_workers=workers, cache=place), loader(dataset, num_workers=workers)
    counts = [check_same(ours, plain) for _ in range(5)]
    assert counts[0] == 0
    assert counts[0] < counts[1] < counts[2] < counts[3] == counts[4] == views * COUNT, ours.explain()
    told = str(ours.explain())
    assert f"{COUNT} images so far" in told
    assert "of JPEGs that the dataset opens in files" in told


def test_a_folder_is_shared_with_the_next_run(paths: list[Path], tmp_path: Path, kept: str) -> None:
    first = loader(Own(paths), cache=tmp_path / "cache")
    for _ in range(3):
        list(first)
    assert check_same(loader(Own(paths), cache=tmp_path / "cache"), loader(Own(paths))) == COUNT


def test_a_damaged_record_changes_no_pixel(paths: list[Path], tmp_path: Path, kept: str) -> None:
    first = loader(Own(paths, 2), cache=tmp_path / "cache")
    for _ in range(3):
        list(first)
    (records,) = (path for path in (tmp_path / "cache").glob("*.records") if path.stat().st_size)
    for at in range(2000, 60_000, 700):
        flip(records, at)
    ours, plain = loader(Own(paths, 2), cache=tmp_path / "cache"), loader(Own(paths, 2))
    assert 0 < check_same(ours, plain) < 2 * COUNT
    for _ in range(3):
        check_same(ours, plain)
    assert check_same(ours, plain) == 2 * COUNT  # healed


def test_records_that_are_gone_are_kept_anew(paths: list[Path], tmp_path: Path, kept: str) -> None:
    ours, plain = loader(Own(paths), cache=tmp_path / "cache"), loader(Own(paths))
    for _ in range(3):
        check_same(ours, plain)
    for path in (tmp_path / "cache").glob("*.records"):
        os.truncate(path, 0)
    for _ in range(4):
        check_same(ours, plain)
    assert check_same(ours, plain) == COUNT


def test_a_changed_file_gives_its_new_pixels(paths: list[Path], place: str, kept: str) -> None:
    ours, plain = loader(Own(paths), cache=place), loader(Own(paths))
    for _ in range(4):
        check_same(ours, plain)
    paths[3].write_bytes(jpeg(93, 70, seed=77))
    age(paths[3])
    assert check_same(ours, plain) == COUNT - 1


def test_other_formats_and_damaged_images_are_as_without(paths: list[Path], place: str, kept: str) -> None:
    paths[4].write_bytes(saved(50, 60, kind="PNG"))
    paths[5].write_bytes(paths[5].read_bytes()[:-300])
    for path in paths[4:6]:
        age(path)
    ours, plain = (loader(Own(paths), on_error="skip", **options) for options in ({"cache": place}, {}))
    with pytest.warns(SamplesSkipped):
        counts = [check_same(ours, plain) for _ in range(9)]
    assert counts[8] >= COUNT - 9, counts  # the batch with the damaged image is made without it, sample by sample
    assert ours.stats()["failures"] == plain.stats()["failures"]
