"""Sources that offer encoded bytes and targets, without samples: code of the user's runs where torch would run it."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from torch.utils.data import Dataset, Subset, default_collate

from fastdata import DataLoader

TRAIN = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()]


class Source(Dataset[Any]):
    """The files of a folder; see fastdata/sources/protocol.py."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.glob("*/*.jpg")), transform

    def __len__(self) -> int:
        return len(self.files)

    def read_encoded(self, index: int) -> bytes:
        return self.files[index].read_bytes()

    def read_target(self, index: int) -> int:
        return index


class Samples(Source):
    """The same with samples, for torch's loader."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.read_encoded(index))).convert("RGB")
        return self.transform(image), self.read_target(index)


class Noisy:
    """A step of one's own, which draws from all three generators."""

    def __call__(self, image: Image.Image) -> torch.Tensor:
        return v1.functional.to_tensor(image) + torch.rand(()) + random.random()


def seeds(worker: int) -> None:
    """Seeds Python's generator, so that it is not only a seed."""
    random.seed(worker)


def doubled(samples: list[Any]) -> Any:
    images, targets = default_collate(samples)
    return images * 2, targets, torch.rand(())


OPTIONS: dict[str, dict[str, Any]] = {
    "a step of one's own": {},
    "a collate function": {"collate_fn": doubled},
    "a worker_init_fn": {"worker_init_fn": seeds},
    "in order of a sampler": {"sampler": [5, 3, 3, 0, 8]},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_equal_torchs_with_a_class_that_makes_samples(folder: Path, name: str, workers: int) -> None:
    transform = v1.Compose([*TRAIN, Noisy()])
    options = {"batch_size": 4, "num_workers": workers, **OPTIONS[name]}

    def batches(loader: Any) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        return list(loader)

    theirs = batches(torch.utils.data.DataLoader(Samples(folder, transform), **options))
    ours = batches(DataLoader(Source(folder, transform), draws="torch", **options))
    for batch, expected in zip(ours, theirs, strict=True):
        assert all(torch.equal(*each) for each in zip(batch, expected, strict=True))


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_code_of_ones_own_runs_in_worker_processes(folder: Path, how: str) -> None:
    source = Source(folder, v1.Compose([*TRAIN, ProcessNumber()]))
    loader = DataLoader(Subset(source, range(8)), 4, num_workers=2, multiprocessing_context=how)
    assert loader._route().by_torchs_code
    numbers = torch.cat([images for images, _ in loader])
    assert os.getpid() not in numbers.tolist()
    assert len(numbers.unique()) == 2


class ProcessNumber:
    def __call__(self, image: Image.Image) -> int:
        return os.getpid()


def test_known_transforms_are_the_image_pipelines(folder: Path) -> None:
    source = Source(folder, v1.Compose([*TRAIN, v1.ToTensor()]))
    assert DataLoader(source, 4, num_workers=2)._route().is_image_pipeline


def test_everything_can_be_left_to_torch_and_pillow(folder: Path) -> None:
    source = Source(folder, v1.Compose([v1.Resize((24, 24)), v1.ToTensor()]))
    loader = DataLoader(source, 4, defer=False)
    assert not loader._route().is_image_pipeline
    theirs = torch.utils.data.DataLoader(Samples(folder, source.transform), 4)
    assert all(torch.equal(ours[0], images) for ours, (images, _) in zip(loader, theirs, strict=True))


def test_single_samples_can_be_had(folder: Path) -> None:
    source = Source(folder, v1.Compose([v1.Resize((24, 24)), v1.ToTensor()]))
    assert [target for _, target in DataLoader(source, batch_size=None)] == list(range(len(source)))


def test_a_step_that_comes_in_the_middle_of_an_epoch_is_called(folder: Path) -> None:
    source = Source(folder, v1.Compose([v1.Resize((24, 24)), v1.ToTensor()]))
    batches = iter(DataLoader(source, 4))
    first, _ = next(batches)
    source.transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), lambda image: image + 1])
    second, _ = next(batches)
    assert first.max() <= 1 < second.max()


def test_errors_and_verdicts_name_the_users_class(folder: Path) -> None:
    def refuses(image: Image.Image) -> Any:
        raise OSError("no such caption")

    with pytest.raises(OSError, match="no such caption") as told:
        list(DataLoader(Source(folder, refuses), 4))
    assert getattr(told.value, "__notes__", [""])[-1] in ("", "while making sample 0 of Source")
    loader = DataLoader(Source(folder, lambda image: torch.zeros(3) + image.rotate(5).getpixel((0, 0))[0]), 4)
    list(loader)
    assert "_SamplesOf" not in str(loader.verdict()) + loader.explain() + repr(loader)
