"""num_workers="auto": as many threads as CPUs, and more where reading waits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset

from fastdata import DataLoader, DecodeError, ImageFolder
from fastdata.pipeline.choose_threads import MOST_PER_CPU
from fastdata.system.cpus import auto_threads
from fastdata.system.waiting import WaitingTime

CROP = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor()])


class Remote(ImageFolder):
    """Files that come slowly."""

    reads = 0

    def read_encoded(self, index: int) -> bytes:
        type(self).reads += 1
        time.sleep(0.1)
        return super().read_encoded(index)


@pytest.fixture
def remote(folder: Path) -> Any:
    Remote.reads = 0
    return Remote(folder, CROP)


def images(loader: Any) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


def test_threads_that_wait_are_more_than_cpus(remote: Any, folder: Path) -> None:
    loader = DataLoader(remote, 8, num_workers="auto", seed=3)
    assert loader.num_workers == auto_threads()
    assert "to be measured" in loader.explain()
    found = images(loader)
    assert loader.num_workers == MOST_PER_CPU * auto_threads()
    assert f"for {auto_threads()} CPUs: reading an image waits " in loader.explain()
    assert torch.equal(found, images(DataLoader(ImageFolder(folder, CROP), 8, seed=3)))


def test_it_is_measured_once(remote: Any) -> None:
    loader = DataLoader(remote, 8, num_workers="auto")
    images(loader)
    in_first, Remote.reads = Remote.reads, 0
    images(loader)
    assert Remote.reads == len(remote) < in_first


def test_local_files_need_hardly_more_threads_than_cpus(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, CROP), 8, num_workers="auto")
    images(loader)
    assert auto_threads() <= loader.num_workers <= MOST_PER_CPU * auto_threads()
    assert "of your samples" in loader.explain()


def test_a_number_that_was_set_stays(remote: Any) -> None:
    loader = DataLoader(remote, 8, num_workers="auto")
    loader.num_workers = 1 + auto_threads()
    images(loader)
    assert loader.num_workers == 1 + auto_threads()
    assert "waits" not in loader.explain()


def test_random_numbers_do_not_depend_on_it(folder: Path) -> None:
    found = []
    for workers in ("auto", 2):
        torch.manual_seed(4)
        loader = DataLoader(ImageFolder(folder, CROP), 8, shuffle=True, num_workers=workers)  # type: ignore[arg-type]
        found.append(images(loader))
    assert torch.equal(*found)


def test_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    for number in range(3):
        (tmp_path / "class" / f"{number}.jpg").write_bytes(b"no image")
    loader = DataLoader(ImageFolder(tmp_path, CROP), 2, num_workers="auto")
    with pytest.raises(DecodeError):
        images(loader)
    assert "no sample tried could be decoded" in loader.explain()
    assert loader.num_workers == auto_threads()


def test_a_single_image(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    Image.new("RGB", (60, 40)).save(tmp_path / "class" / "0.jpg")
    loader = DataLoader(ImageFolder(tmp_path, CROP), 2, num_workers="auto")
    assert images(loader).shape == (1, 3, 24, 24)
    assert "(1 of your samples)" in loader.explain()


class InMemory(Dataset[Any]):
    """Pixels that nobody reads."""

    def __init__(self) -> None:
        self.data = np.zeros((20, 32, 32, 3), np.uint8)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return CROP(Image.fromarray(self.data[index])), 0


def test_pixels_in_memory_are_not_read() -> None:
    loader = DataLoader(InMemory(), 8, num_workers="auto")
    assert len(images(loader)) == 20
    assert loader.num_workers == auto_threads()


def test_time_is_told_from_cpu_time() -> None:
    waiting = WaitingTime()
    assert waiting.typical_s == waiting.total_s == 0
    for seconds in (0.2, 0.0, 0.2):
        with waiting:
            time.sleep(seconds)
    with pytest.raises(ValueError, match="counted as well"), waiting:
        raise ValueError("counted as well")
    assert len(waiting.wall_s) == len(waiting.cpu_s) == 4
    assert waiting.total_s > 0.3
    assert waiting.typical_s < waiting.total_s
