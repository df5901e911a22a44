"""Compares torch's DataLoader with torchvision and every fastdata backend on one folder."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch.utils.data

from fastdata.dataloader.loader import DataLoader
from fastdata.image_folder import ImageFolder, leave_out
from fastdata.loaders import available_backends
from fastdata.measuring.rounds import Contender, Measurement, measure
from fastdata.system.optional import need
from fastdata.transforms import IMAGENET_MEAN, IMAGENET_STD

__all__ = ["TORCH", "compare_loaders"]

TORCH = "torch + torchvision"


def compare_loaders(
    folder: Path,
    *,
    workers: int,
    batch_size: int = 64,
    rounds: int = 3,
    left_out: Collection[str] = (),
    say: Callable[[str], None] = print,
) -> list[Measurement]:
    """Measures the whole pipeline: RandomResizedCrop(224), flip, ToTensor, Normalize.

    Args:
        folder: one folder of images per class.
        workers: number of threads, and of torch's worker processes.
        batch_size: images per batch.
        rounds: measured passes of each loader.
        left_out: paths of images that are not read.
        say: called with progress messages.

    Returns:
        The measurement of torch's DataLoader with torchvision, then those of every available backend.
    """
    transforms = need("torchvision.transforms", "comparing with torch's DataLoader")
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    dataset = _torchvision_folder(folder, transform)
    leave_out(dataset, left_out)
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "num_workers": workers}
    theirs = torch.utils.data.DataLoader(dataset, persistent_workers=workers > 0, **options)
    loaders: dict[str, Any] = {}
    for name in available_backends():
        loaders[f"fastdata, {name}"] = DataLoader(dataset, backend=name, **options)
    loaders[TORCH] = theirs  # last, so that a damaged image is met by loaders that name it
    contenders = [
        Contender(name=name, epoch=partial(_same, loader), images=len(dataset)) for name, loader in loaders.items()
    ]
    *ours, torchs = measure(contenders, rounds=rounds, say=say)
    return [torchs, *ours]


def _torchvision_folder(folder: Path, transform: Any) -> Any:
    """Torchvision's ImageFolder, after fastdata's own has checked the folder with clearer words."""
    ImageFolder(folder)
    return need("torchvision.datasets", "comparing with torch's DataLoader").ImageFolder(folder, transform)


def _same(loader: Any) -> Any:
    return loader
