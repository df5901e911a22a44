"""num_workers="auto": as many threads as CPUs, and more where reading waits."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset

from fastdata import DataLoader, DecodeError, ImageFolder, ShardDataset
from fastdata.dataloader.verdict import asked_workers
from fastdata.diagnosis.loading import changed_loader
from fastdata.pipeline.choose_threads import MOST_PER_CPU
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.system.cpus import auto_threads
from fastdata.system.io_wait import WaitingTime

CROP = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])


class Remote(ImageFolder):
    """Files that come slowly."""

    reads = 0
    wait_s = 0.1

    def read_encoded(self, index: int) -> bytes:
        type(self).reads += 1
        time.sleep(self.wait_s)
        return super().read_encoded(index)


@pytest.fixture
def remote(folder: Path) -> Any:
    Remote.reads = 0
    return Remote(folder, CROP)


def images(loader: Any) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def threads(loader: Any) -> int:
    """The number of threads that the next epoch has, as far as it is known."""
    found = loader._findings.threads
    return int(loader.num_workers if found is None else found.threads)


def why(loader: Any) -> str:
    """The reason for a number that was measured."""
    found = loader._findings.threads
    assert found is not None
    return str(found.reason)


def test_threads_that_wait_are_more_than_cpus(remote: Any, folder: Path) -> None:
    loader = DataLoader(remote, 8, num_workers="auto", seed=3)
    assert threads(loader) == auto_threads()
    assert loader._findings.threads is None
    found = images(loader)
    assert threads(loader) == MOST_PER_CPU * auto_threads()
    assert why(loader).startswith(f"for {auto_threads()} CPUs: reading an image waits ")
    assert loader.num_workers == auto_threads()  # which other routes take for a number of processes
    assert torch.equal(found, images(DataLoader(ImageFolder(folder, CROP), 8, seed=3)))


def test_it_is_measured_once(remote: Any) -> None:
    loader = DataLoader(remote, 8, num_workers="auto")
    images(loader)
    in_first, Remote.reads = Remote.reads, 0
    images(loader)
    assert Remote.reads == len(remote) < in_first


def test_a_number_that_was_set_stays(remote: Any) -> None:
    loader = DataLoader(remote, 8, num_workers="auto")
    loader.num_workers = 1 + auto_threads()
    images(loader)
    assert threads(loader) == 1 + auto_threads()
    assert loader._findings.threads is None  # nothing was measured


class Computes:
    """Takes 50 ms of CPU time."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return image


def test_a_loader_made_from_another_measures_too(remote: Any) -> None:
    loader = DataLoader(remote, 8, num_workers="auto")
    assert asked_workers(loader) == "auto"
    assert asked_workers(changed_loader(loader)) == "auto"
    loader.num_workers = 3 + auto_threads()
    assert asked_workers(loader) == 3 + auto_threads()
    assert asked_workers(DataLoader(remote, 8, num_workers=auto_threads())) == auto_threads()


@pytest.mark.parametrize("made", [list, np.array])
def test_samples_that_a_source_names_itself(remote: Any, made: Any) -> None:
    type(remote).near_indices = lambda self, count: made([0, 1, 2])  # type: ignore[attr-defined]
    try:
        loader = DataLoader(remote, 8, num_workers="auto", sampler=range(8))
        images(loader)
        assert re.search(r"\([1-3] of your samples\)", why(loader))
    finally:
        del type(remote).near_indices  # type: ignore[attr-defined]


def test_unpacked_shards_are_measured_as_they_are_read(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path, ConvertOptions(recoding=Recoding(unpacked=True)))
    loader = DataLoader(ShardDataset(tmp_path, CROP), 8, num_workers="auto")
    images(loader)
    assert "(8 of your samples)" in why(loader)


def test_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(3):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(b"no image")
    loader = DataLoader(ImageFolder(tmp_path, CROP), 2, num_workers="auto")
    with pytest.raises(DecodeError):
        images(loader)
    assert "no sample tried could be made" in why(loader)
    assert threads(loader) == auto_threads()


def test_a_single_image(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    Image.new("RGB", (60, 40)).save(tmp_path / "class" / "0.jpg")
    loader = DataLoader(ImageFolder(tmp_path, CROP), 2, num_workers="auto")
    assert images(loader).shape == (1, 3, 24, 24)
    assert "(1 of your samples)" in why(loader)


class InMemory(Dataset[Any]):
    """Pixels that nobody reads."""

    def __init__(self) -> None:
        self.data = np.zeros((20, 32, 32, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return CROP(Image.fromarray(self.data[index])), 0


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
def test_pixels_in_memory_are_not_read() -> None:
    loader = DataLoader(InMemory(), 8, num_workers="auto")
    assert len(images(loader)) == 20
    assert loader._findings.threads is None  # nothing was measured


def test_time_is_told_from_cpu_time() -> None:
    waiting = WaitingTime()
    assert waiting.typical_s == waiting.total_s == 0
    for seconds in (0.2, 0.0, 0.2):
        with waiting:
            time.sleep(seconds)
    with pytest.raises(ValueError, match="not counted"), waiting:
        raise ValueError("not counted")
    assert len(waiting.wall_s) == len(waiting.cpu_s) == 3
    assert waiting.total_s > 0.2
    assert waiting.typical_s > 0.1 > waiting.typical_cpu_s
