"""Crops and resizes behind augmentations, augmentations of images of many sizes, several resizes: several stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import v2

from fastdata import DataLoader, DecodeError
from fastdata.transforms.compile import compile_transform

BILINEAR, BICUBIC = v1.InterpolationMode.BILINEAR, v1.InterpolationMode.BICUBIC
ALWAYS = {
    "rotation first": [v1.RandomRotation((25, 25), BILINEAR, fill=9), v1.Resize(40), v1.CenterCrop(33)],
    "affine first": [v1.RandomAffine((9, 9), (0, 0), (1.25, 1.25), (5, 5)), v1.Resize((30, 20), BICUBIC)],
    "between": [v1.Resize(50), v1.RandomPosterize(3, 1), v1.ColorJitter((1.5, 1.5)), v1.CenterCrop(33)],
    "every kind": [
        v1.CenterCrop(70),
        v1.RandomInvert(1),
        v1.Resize((45, 60)),
        v1.RandomEqualize(1),
        v1.Pad(5, fill=(1, 2, 3)),
        v1.RandomSolarize(99, 1),
        v1.RandomHorizontalFlip(1),
        v1.RandomResizedCrop(29, (1, 1), (1, 1)),
        v1.GaussianBlur(1),
    ],
    "three resizes": [v1.Resize(90), v1.Resize((31, 77), BICUBIC), v1.Resize((44, 44))],
    "a padded image": [v1.CenterCrop(300), v1.Resize(40)],
    "two paddings": [v1.Pad(3, fill=200), v1.Pad(4, padding_mode="reflect"), v1.Resize((40, 30))],
    "much padding": [v1.Resize((30, 30)), v1.Pad(40, fill=50), v1.CenterCrop(20)],
    "expanding turn": [v1.RandomRotation((25, 25), BICUBIC, expand=True, fill=(9, 80, 200)), v1.Resize((40, 40))],
    "expanding turns": [
        v1.Resize((31, 45)),
        v1.RandomInvert(1),
        v1.RandomRotation((-70, -70), expand=True),
        v1.RandomRotation((90, 90), BILINEAR, expand=True),
        v1.RandomPosterize(3, 1),
        v1.RandomRotation((0, 0), expand=True),
        v1.RandomRotation((180, 180), expand=True),
        v1.CenterCrop(41),
    ],
    "expanding about a point": [v1.RandomRotation((33, 33), BILINEAR, expand=True, center=(10, 3)), v1.Resize(30)],
    "no crop": [v1.RandomInvert(1), v1.RandomHorizontalFlip(1)],
}
RANDOM = [
    v1.RandomRotation(20, expand=True),
    v1.RandomResizedCrop(60, (0.3, 1)),
    v1.RandAugment(),
    v1.RandomCrop(40, padding=3),
    v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
    v1.Resize(32),
    v1.ToTensor(),
    v1.RandomErasing(0.5, value="random"),
]


class Own(torch.utils.data.Dataset[Any]):
    """What people write themselves."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.glob("*/*")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB")), index


def check_fused(steps: Any) -> Any:
    transform = v1.Compose(steps)
    assert compile_transform(transform).reason == "everything is fused"
    return transform


@pytest.mark.parametrize("backend", ["native", "pil", "turbojpeg"])
@pytest.mark.parametrize("name", ALWAYS)
def test_image_folders(folder: Path, name: str, backend: str) -> None:
    dataset = ImageFolder(str(folder), check_fused([*ALWAYS[name], v1.ToTensor()]))
    ours, theirs = DataLoader(dataset, 1, backend=backend), torch.utils.data.DataLoader(dataset, 1)
    for batch, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(batch[0], wanted[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ALWAYS)
def test_datasets_of_ones_own(folder: Path, name: str, workers: int) -> None:
    dataset = Own(folder, check_fused([*ALWAYS[name], v1.ToTensor()]))
    loader = DataLoader(dataset, 1, num_workers=workers)
    for batch, wanted in zip(loader, torch.utils.data.DataLoader(dataset, 1), strict=True):
        assert torch.equal(batch[0], wanted[0])
    assert loader.verdict().kind == "accelerated"


def test_tensors_are_resized_twice(folder: Path) -> None:
    steps = [v2.ToImage(), v2.Resize(90), v2.Resize((31, 77), BICUBIC), v2.ToDtype(torch.float32, scale=True)]
    dataset = ImageFolder(str(folder), check_fused(steps))
    for batch, wanted in zip(DataLoader(dataset, 4), torch.utils.data.DataLoader(dataset, 4), strict=True):
        assert torch.equal(batch[0], wanted[0])


def test_what_is_random_does_not_depend_on_the_way(folder: Path) -> None:
    transform = check_fused(RANDOM)
    dataset, options = ImageFolder(str(folder), transform), {"seed": 4}
    loaders = [DataLoader(dataset, 5, num_workers=workers, **options) for workers in (0, 1, 3)]
    loaders += [DataLoader(dataset, 5, backend=backend, **options) for backend in ("pil", "turbojpeg")]
    loaders += [DataLoader(Own(folder, transform), 5, num_workers=workers, **options) for workers in (0, 2)]
    loaders += [DataLoader(dataset, 5, memory_format=torch.channels_last, **options)]
    first, *others = ([torch.cat([batch[0] for batch in loader]) for _ in range(2)] for loader in loaders)
    assert first[0].shape == (39, 3, 32, 32)
    assert not torch.equal(*first)
    for epochs in others:
        assert all(torch.equal(*pair) for pair in zip(first, epochs, strict=True))


def test_an_epoch_is_continued(folder: Path) -> None:
    dataset = ImageFolder(str(folder), check_fused(RANDOM))
    loader = DataLoader(dataset, 5, shuffle=True, seed=4, num_workers=2)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    other = DataLoader(dataset, 5, shuffle=True, seed=4)
    other.load_state_dict(loader.state_dict())
    assert all(torch.equal(one[0], two[0]) for one, two in zip(batches, other, strict=True))


def test_crops_of_two_stages_are_drawn_apart(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    rows, columns = np.mgrid[:100, :100]
    places = np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8)
    for number in range(200):
        Image.fromarray(places).save(tmp_path / "all" / f"{number}.png")
    steps = [v1.RandomCrop(80), v1.RandomInvert(1), v1.RandomCrop(60), v1.PILToTensor()]
    (images, _), *_ = DataLoader(ImageFolder(str(tmp_path), check_fused(steps)), 200)
    tops = 255 - images[:, 0, 0, 0].long()  # of both crops together
    assert len(set(tops.tolist())) > 25  # 0 to 40; with one draw for both only even numbers
    assert {top % 2 for top in tops.tolist()} == {0, 1}


def test_uint8_in_channels_last(folder: Path) -> None:
    dataset = ImageFolder(str(folder), check_fused([v1.RandomInvert(1), v1.Resize((20, 30)), v1.PILToTensor()]))
    ours = DataLoader(dataset, 13, memory_format=torch.channels_last)
    for batch, wanted in zip(ours, torch.utils.data.DataLoader(dataset, 13), strict=True):
        assert torch.equal(batch[0], wanted[0])
        assert batch[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")  # little is gained
def test_images_in_memory_and_behind_augmentations(tmp_path: Path) -> None:
    dataset = CIFAR10.__new__(CIFAR10)
    rng = np.random.default_rng(0)
    dataset.data, dataset.targets = rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), list(range(20))
    dataset.transform = check_fused([v1.RandomInvert(1), v1.Pad(4), v1.CenterCrop(30), v1.ToTensor()])
    dataset.target_transform, dataset.transforms = None, None
    for batch, wanted in zip(DataLoader(dataset, 7), torch.utils.data.DataLoader(dataset, 7), strict=True):
        assert torch.equal(batch[0], wanted[0])


@pytest.mark.parametrize("own", [False, True])
def test_a_crop_that_is_too_large_is_refused_as_by_torchvision(folder: Path, own: bool) -> None:
    transform = check_fused([v1.Resize(40), v1.RandomInvert(1), v1.RandomCrop(41), v1.ToTensor()])
    dataset = Own(folder, transform) if own else ImageFolder(str(folder), transform)
    with pytest.raises(ValueError if own else DecodeError, match=r"Required crop size \(41, 41\) is larger than input"):
        list(DataLoader(dataset, 5))
