"""timm's transforms, as its `create_transform` puts them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.transforms.compile import compile_transform

timm_data = pytest.importorskip("timm.data")
timm_transforms = pytest.importorskip("timm.data.transforms")

SEEDED = {"batch_size": 6, "seed": 5}


@pytest.mark.parametrize("options", [{}, {"use_prefetcher": True}, {"crop_pct": 1.0, "interpolation": "bicubic"}])
def test_evaluation_is_decoded_whole(folder: Path, options: dict[str, Any]) -> None:
    dataset = ImageFolder(str(folder), timm_data.create_transform(48, **options))
    ours, theirs = DataLoader(dataset, 6), torch.utils.data.DataLoader(dataset, 6)
    assert ours.explain().startswith("accelerated: images are decoded by the image pipeline")
    for batch, wanted in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, batch, wanted))
        assert batch[0].dtype is wanted[0].dtype


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_random_crops_are_torchvisions(folder: Path, interpolation: str) -> None:
    """The same distribution in timm, so the same views for a seed."""
    theirs = timm_data.create_transform(40, is_training=True, color_jitter=None, interpolation=interpolation)
    kind = transforms.InterpolationMode(interpolation)
    crop = [transforms.RandomResizedCrop(40, interpolation=kind), transforms.RandomHorizontalFlip()]
    normalise = transforms.Normalize(timm_data.IMAGENET_DEFAULT_MEAN, timm_data.IMAGENET_DEFAULT_STD)
    known = transforms.Compose([*crop, transforms.ToTensor(), normalise])
    loaders = [DataLoader(ImageFolder(str(folder), each), **SEEDED) for each in (theirs, known)]
    assert all(loader.explain().startswith("accelerated: images are decoded by") for loader in loaders)
    for one, other in zip(*loaders, strict=True):
        assert torch.equal(one[0], other[0])


def test_a_random_filter_is_left_to_timm() -> None:
    result = compile_transform(timm_data.create_transform(40, is_training=True, interpolation="random"))
    assert result.plan is None
    assert "RandomResizedCropAndInterpolation is called per sample: its interpolation is random" in result.reason


def test_names_that_mean_something_else_in_timm(folder: Path) -> None:
    steps = [transforms.Resize((20, 20)), timm_transforms.ToTensor()]
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    ours, theirs = next(iter(DataLoader(dataset, 6))), next(iter(torch.utils.data.DataLoader(dataset, 6)))
    assert torch.equal(ours[0], theirs[0])
    assert ours[0].max() > 1
    plan = compile_transform(dataset.transform).plan
    assert plan is not None
    assert not plan.tail
