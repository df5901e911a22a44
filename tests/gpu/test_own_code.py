"""Datasets and collate functions of one's own on a CUDA device: torch's values, devices and pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from own_tables import MEAN, STD, TRAIN, VALIDATE, Table, batches, flat, same
from PIL import Image
from torch.utils.data import default_collate
from torchvision.transforms import v2

from fastdata import DataLoader, DevicePrefetcher

pytestmark = pytest.mark.gpu
TO_TENSOR = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])


class Sample(NamedTuple):
    image: torch.Tensor
    label: int


class Form(Table):
    """Rows of a table as a function makes samples of them: of an image and its label."""

    def __init__(self, folder: Path, make: Callable[[Image.Image, int], Any]) -> None:
        super().__init__(folder, lambda image: image)
        self.make = make

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        return self.make(Image.open(self.folder / name).convert("RGB"), int(label))


FORMS: dict[str, Callable[[Image.Image, int], Any]] = {
    "a pair": lambda image, label: (VALIDATE(image), label),
    "random": lambda image, label: (TRAIN(image), label),
    "a dictionary": lambda image, label: {"image": VALIDATE(image), "label": label, "name": str(label)},
    "two views": lambda image, label: [TRAIN(image), TRAIN(image), label],
    "a named tuple": lambda image, label: Sample(VALIDATE(image), label),
    "an image and its mask": lambda image, label: (VALIDATE(image), np.array(image.convert("L").resize((24, 24)))),
    "pixels": lambda image, label: np.array(image.resize((24, 20))),
}


def check(ours: Any, theirs: Any) -> None:
    """The same values, on the same devices, pinned where torch's are."""
    found, expected = batches(ours), batches(theirs)
    assert same(found, expected)
    for a, b in zip(flat(found), flat(expected), strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.device, a.is_pinned(), a.stride()) == (b.device, b.is_pinned(), b.stride())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FORMS)
def test_batches_are_pinned_as_torchs(table: Path, name: str, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 5, "pin_memory": True, "num_workers": workers}
    dataset = Form(table, FORMS[name])
    check(DataLoader(dataset, draws="torch", **options), torch.utils.data.DataLoader(dataset, **options))


ON_THE_DEVICE: dict[str, Callable[[Image.Image], Any]] = {
    "sent": lambda image: VALIDATE(image).cuda(),
    "sent without waiting": lambda image: TO_TENSOR(image).to("cuda", non_blocking=True),
    "sent as half": lambda image: TO_TENSOR(image).to("cuda", torch.float16),
    "flipped there": lambda image: v2.functional.horizontal_flip(TO_TENSOR(image).cuda()),
    "normalised there": lambda image: v2.functional.normalize(TO_TENSOR(image).cuda(), MEAN, STD),
    "resized there": lambda image: v2.functional.resize(TO_TENSOR(image).cuda(), [12, 14]),
    "pinned": lambda image: TO_TENSOR(image).pin_memory(),
    "on the device at once": lambda image: torch.as_tensor(np.array(image.resize((24, 20))), device="cuda"),
    "added to what is there": lambda image: torch.ones(3, 20, 24, device="cuda").add_(TO_TENSOR(image).cuda()),
    "a number from there": lambda image: TO_TENSOR(image) * torch.tensor(2.0, device="cuda").item(),
}


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_samples_that_the_dataset_sends_to_the_device(table: Path, name: str) -> None:
    dataset = Form(table, lambda image, label: (ON_THE_DEVICE[name](image), label))
    check(DataLoader(dataset, 5), torch.utils.data.DataLoader(dataset, 5))


class OwnBatch:
    """A batch that pins itself, as PyTorch's documentation shows it."""

    def __init__(self, samples: list[Any]) -> None:
        self.images, self.labels = (torch.stack(list(each)) for each in zip(*samples, strict=True))

    def pin_memory(self) -> OwnBatch:
        self.images = self.images.pin_memory()
        return self


def opened(batch: Any) -> Any:
    return [batch.images, batch.labels] if isinstance(batch, OwnBatch) else batch


def filled(samples: list[Any], write: bool, **where: Any) -> Any:
    """The images of samples, each copied to its place."""
    images = torch.zeros(len(samples), 3, 20, 24, **where)
    for number, (image, _) in enumerate(samples):
        if write:
            images[number] = image
        else:
            images[number].copy_(image, non_blocking=True)
    return images


COLLATES: dict[str, Callable[[list[Any]], Any]] = {
    "lists": lambda samples: tuple(zip(*samples, strict=True)),
    "its own class": OwnBatch,
    "copied to the device": lambda samples: filled(samples, False, device="cuda"),
    "written to the device": lambda samples: filled(samples, True, device="cuda"),
    "copied to pinned memory": lambda samples: filled(samples, False, pin_memory=True),
    "written to pinned memory": lambda samples: filled(samples, True, pin_memory=True),
    "moved": lambda samples: [each.to("cuda", non_blocking=True) for each in default_collate(samples)],
    "stacked there": lambda samples: torch.stack([image.cuda() for image, _ in samples]),
    "stacked into pinned memory": lambda samples: torch.stack(
        [image for image, _ in samples], out=torch.empty(len(samples), 3, 20, 24, pin_memory=True)
    ),
}


@pytest.mark.parametrize("name", COLLATES)
def test_collate_functions_that_use_the_device(table: Path, name: str) -> None:
    dataset = Form(table, lambda image, label: (TO_TENSOR(image), torch.tensor(label)))
    pin = name in ("lists", "its own class")
    options: dict[str, Any] = {"batch_size": 5, "collate_fn": COLLATES[name], "pin_memory": pin}
    for workers in (0, 2) if pin else (0,):
        ours, theirs = (
            kind(dataset, num_workers=workers, **options) for kind in (DataLoader, torch.utils.data.DataLoader)
        )
        check(map(opened, ours), map(opened, theirs))


def test_where_tensors_are_made_on_the_device_by_default(table: Path) -> None:
    """In this process: a forked one cannot use the device, with torch's class, either."""
    dataset = Form(table, FORMS["a pair"])
    generator = torch.Generator("cuda")
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True}
    torch.set_default_device("cuda")
    try:
        loaders = [kind(dataset, generator=generator, **options) for kind in (DataLoader, torch.utils.data.DataLoader)]
        found = []
        for loader in loaders:
            generator.manual_seed(4)
            found.append(batches(loader))
    finally:
        torch.set_default_device(None)
    assert same(*found)
    devices = [[each.device for each in flat(one)] for one in found]
    assert devices[0] == devices[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FORMS)
def test_delivered_to_the_device(table: Path, name: str, workers: int) -> None:
    dataset = Form(table, FORMS[name])
    options: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "draws": "torch"}
    expected = batches(DataLoader(dataset, **options))
    for loader in (
        DataLoader(dataset, device="cuda", **options),
        DevicePrefetcher(DataLoader(dataset, **options), "cuda"),
    ):
        found = batches(loader)
        assert all(each.is_cuda for each in flat(found) if isinstance(each, torch.Tensor))
        on_host = [each.cpu() if isinstance(each, torch.Tensor) else each for each in flat(found)]
        assert same(on_host, flat(expected))


def test_memory_stays_that_of_a_few_batches(table: Path) -> None:
    """Pinned memory and the device's, over many epochs of a dataset whose images wait for their batch."""
    loader = DataLoader(Form(table, FORMS["two views"]), 5, pin_memory=True, num_workers=2, persistent_workers=True)

    def epochs(count: int) -> tuple[int, int]:
        for _ in range(count):
            for first, second, _ in loader:
                (first.to("cuda", non_blocking=True) + second.to("cuda", non_blocking=True)).sum()
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved(), torch.cuda.memory.host_memory_stats()["allocated_bytes.current"]

    for before, after in zip(epochs(5), epochs(40), strict=True):
        assert after < before + 2e6  # the batches of 35 epochs have 7 MB
