"""torch's DataLoader with torchvision's transforms: on Pillow's images, on tensors, on stored pixels; with targets."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL.Image
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_image
from workloads import tensor_transform, transform

from programs import Job, Loader
from programs.annotated import Annotated, as_lists

__all__ = ["StoredPixels", "loader", "loader_class", "opened_by", "prepare"]


class StoredPixels(Dataset[Any]):
    """Images of a mapped uint8 array [N, H, W, 3]."""

    def __init__(self, job: Job) -> None:
        self.data = np.load(job.images / "pixels.npy", mmap_mode="r")
        self.targets = np.load(job.images / "labels.npy").tolist()
        self.transform = transform(job.work)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image = PIL.Image.fromarray(self.data[index])
        return self.transform(image), self.targets[index]


def prepare(job: Job) -> None:
    """It reads what is there."""


def read_tensor(path: str) -> torch.Tensor:
    """A file as uint8 tensor [3, H, W]."""
    return decode_image(path, mode=ImageReadMode.RGB)


def dataset(job: Job) -> Dataset[Any]:
    """The dataset of an option."""
    if job.option == "pixels":
        return StoredPixels(job)
    if job.work.has_targets:
        return Annotated(job)
    if job.option in ("tensor", "torchcodec"):
        read = read_tensor if job.option == "tensor" else importlib.import_module("torchcodec.decoders").decode_image
        return ImageFolder(str(job.images), tensor_transform(job.work), loader=read)
    return ImageFolder(str(job.images), transform(job.work))


def loader_class(job: Job) -> Callable[..., Any]:
    """torch's, or with the option "fastdata" fastdata's, which others do not import."""
    return importlib.import_module("fastdata").DataLoader if job.option == "fastdata" else DataLoader


def opened_by(kind: Callable[..., Any], dataset: Any, job: Job, **options: Any) -> Loader:
    """A loader of torch's kind."""
    if job.work.view == "detection":
        options["collate_fn"] = as_lists
    opened = kind(
        dataset,
        batch_size=job.work.batch,
        shuffle=job.work.is_random,
        num_workers=job.threads,
        **options,
    )
    return Loader(lambda: iter(opened))


def loader(job: Job) -> Loader:
    """With workers that stay, as the documentation recommends."""
    return opened_by(DataLoader, dataset(job), job, persistent_workers=True)
