"""Datasets of one's own that give uint8 tensors to a transform: torchvision's pixels, by the native core."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastdata
from fastdata import DataLoader

COUNT = 20


class Tensors(torch.utils.data.Dataset[Any]):
    """Images of any kind in memory, of sizes of their own."""

    def __init__(self, transform: Any, make: Any = None) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = [(30 + 3 * n, 60 - 2 * n) for n in range(COUNT)]
        images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8, generator=generator) for size in sizes]
        self.images = [image if make is None else make(image) for image in images]
        self.transform = transform

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index]), index

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        assert image.is_contiguous()
        return torch.cat([image, image + torch.rand(1)])


TO_FLOAT = [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4])]
WITHOUT_CHANCE: dict[str, list[Any]] = {
    "crop": [v2.CenterCrop(24)],
    "padded crop": [v2.CenterCrop(70), *TO_FLOAT],
    "resize": [v2.Resize((40, 30)), v2.RandomHorizontalFlip(1.0), *TO_FLOAT],
    "colours": [v2.Resize((40, 30)), v2.ColorJitter(contrast=(1.2, 1.2)), v2.RandomSolarize(99, 1.0), *TO_FLOAT],
    "colours first": [v2.RandomAutocontrast(1.0), v2.Grayscale(3), v2.Resize((40, 30)), v2.CenterCrop(20)],
    "an image of torchvision's": [v2.ToImage(), v2.RandomVerticalFlip(1.0), v2.CenterCrop(20)],
    "v1": [v1.CenterCrop(24), v1.RandomHorizontalFlip(1.0), v1.ConvertImageDtype(torch.float32)],
    "v1's resize": [v1.CenterCrop(24), v1.Resize((9, 7), antialias=True)],
}


def batches(loader: Any) -> list[torch.Tensor]:
    return [images for images, _ in loader]


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(type(a) is type(b) and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", WITHOUT_CHANCE)
def test_pixels_are_torchvisions(name: str, workers: int) -> None:
    package = v1 if name.startswith("v1") else v2
    dataset = Tensors(package.Compose(WITHOUT_CHANCE[name]))
    ours, theirs = DataLoader(dataset, 6, num_workers=workers), torch.utils.data.DataLoader(dataset, 6)
    assert same(batches(ours), batches(theirs))


def test_it_is_done_by_the_core() -> None:
    loader = DataLoader(Tensors(v2.Compose([v2.RandomResizedCrop(24, antialias=True), *TO_FLOAT])), 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fastdata.NotAccelerated)
        batches(loader)
    assert loader.verdict().kind == "partly accelerated"
    assert loader._findings.happened.fused > 0


RANDOM: dict[str, list[Any]] = {
    "fused": [
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        *TO_FLOAT,
        v2.RandomErasing(0.5),
    ],
    "a crop": [v2.RandomCrop(32, padding=8, pad_if_needed=True), v2.RandomHorizontalFlip()],
}


@pytest.mark.parametrize("name", RANDOM)
def test_draws_depend_on_the_sample_alone(name: str) -> None:
    dataset = Tensors(v2.Compose(RANDOM[name]))

    def drawn(**options: Any) -> list[torch.Tensor]:
        return batches(DataLoader(dataset, seed=3, **options))

    expected = torch.cat(drawn(batch_size=5))
    assert torch.equal(torch.cat(drawn(batch_size=5, num_workers=2)), expected)
    assert torch.equal(torch.cat(drawn(batch_size=20, num_workers=1)), expected)


OTHERS: dict[str, Any] = {
    "grey": lambda image: image[:1].clone(),
    "floats": lambda image: image / 255,
    "four channels": lambda image: image.repeat(2, 1, 1)[:4],
    "a batch": lambda image: image[None],
}


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
@pytest.mark.parametrize("name", OTHERS)
def test_other_tensors_are_torchvisions_own(name: str) -> None:
    dataset = Tensors(v2.Compose([v2.CenterCrop(24), v2.RandomHorizontalFlip(1.0)]), OTHERS[name])
    assert same(batches(DataLoader(dataset, 6)), batches(torch.utils.data.DataLoader(dataset, 6)))


@pytest.mark.parametrize("steps", [[v2.CenterCrop(24)], [v2.Resize((9, 8)), v2.RandomInvert(1.0), *TO_FLOAT]])
def test_images_of_torchvisions_class_stay_that(steps: list[Any]) -> None:
    dataset = Tensors(v2.Compose(steps), tv_tensors.Image)
    (ours,) = DataLoader(dataset, COUNT, collate_fn=list)
    for index, (image, _) in enumerate(ours):
        wanted = dataset[index][0]
        assert type(image) is type(wanted)
        assert torch.equal(image, wanted)


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
def test_steps_of_v1_make_plain_tensors_of_such_images() -> None:
    dataset = Tensors(v1.Compose([v1.CenterCrop(24), v1.RandomHorizontalFlip(1.0)]), tv_tensors.Image)
    (ours,) = DataLoader(dataset, COUNT, collate_fn=list)
    for index, (image, _) in enumerate(ours):
        assert type(image) is type(dataset[index][0])
        assert torch.equal(image, dataset[index][0])


def test_an_image_smaller_than_a_crop_is_refused_as_by_torchvision() -> None:
    dataset = Tensors(v2.Compose([v2.RandomCrop(200)]))
    with pytest.raises(ValueError, match="larger than"):
        batches(torch.utils.data.DataLoader(dataset, 6))
    with pytest.raises(ValueError, match="larger than"):
        batches(DataLoader(dataset, 6))
