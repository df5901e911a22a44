"""OpenCV with albumentations: a dataset of one's own in torch's DataLoader."""

from __future__ import annotations

from typing import Any

import albumentations as A  # noqa: N812 - its documentation's name
import cv2
import numpy as np
import PIL.Image
import torch
from albumentations.pytorch import ToTensorV2
from drawn import annotations
from torch.utils.data import DataLoader, Dataset
from workloads import MEAN, STD, Twice, Workload

from programs import Job, Loader, samples
from programs.torchvision import opened_by

__all__ = ["loader", "prepare"]


def prepare(job: Job) -> None:
    """It reads what is there."""


def _view(work: Workload) -> A.Compose:
    """The views that are torchvision's, by its transforms of the same names."""
    size = (work.size, work.size)
    boxes = None
    if work.view == "val":
        steps = [A.SmallestMaxSize(work.size * 8 // 7, area_for_downscale="image"), A.CenterCrop(*size)]
    elif work.view == "detection":
        steps = [A.HorizontalFlip(), A.SmallestMaxSize(work.size, area_for_downscale="image")]
        boxes = A.BboxParams(format="pascal_voc", label_fields=["labels"])
    else:
        steps = [A.RandomResizedCrop(size, area_for_downscale="image"), A.HorizontalFlip()]
    if work.view == "simclr":
        side = work.size // 20 * 2 + 1
        steps += [
            A.ColorJitter(0.8, 0.8, 0.8, 0.2, p=0.8),
            A.ToGray(p=0.2),
            A.GaussianBlur(blur_limit=(side, side), sigma_limit=(0.1, 2.0), p=1.0),
        ]
    return A.Compose([*steps, A.Normalize(MEAN, STD), ToTensorV2()], bbox_params=boxes)


def _read(path: str) -> np.ndarray:
    """A file as uint8 RGB [H, W, 3]."""
    return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)


class Images(Dataset[Any]):
    """(view, label) of the files in a folder per class."""

    def __init__(self, job: Job) -> None:
        self.found = samples(job.images)
        view = _view(job.work)
        once = _Once(view)
        self.view = Twice(once) if job.work.views == 2 else once

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.found[index]
        return self.view(_read(path)), label


class _Once:
    """An array -> the view, by name as albumentations is called."""

    def __init__(self, view: A.Compose) -> None:
        self.view = view

    def __call__(self, image: np.ndarray) -> Any:
        return self.view(image=image)["image"]


class Annotated(Dataset[Any]):
    """(view, mask) or (view, {"boxes", "labels"}) of each photograph."""

    def __init__(self, job: Job) -> None:
        self.found = annotations(job.images)
        self.has_masks = job.work.view == "segmentation"
        self.view = _view(job.work)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        one = self.found[index]
        image = _read(one.image)
        if self.has_masks:
            mask = np.array(PIL.Image.open(one.mask))  # imread would give the colours of its palette
            seen = self.view(image=image, mask=mask)
            return seen["image"], seen["mask"].long()
        seen = self.view(image=image, bboxes=one.boxes, labels=one.labels)
        boxes = torch.as_tensor(np.asarray(seen["bboxes"], np.float32))
        return seen["image"], {"boxes": boxes, "labels": torch.as_tensor(seen["labels"]).long()}


def _begin_worker(_: int) -> None:
    """Workers are the parallelism."""
    cv2.setNumThreads(0)
    cv2.ocl.setUseOpenCL(False)


def loader(job: Job) -> Loader:
    """torch's, with workers that stay."""
    dataset = Annotated(job) if job.work.has_targets else Images(job)
    return opened_by(DataLoader, dataset, job, persistent_workers=True, worker_init_fn=_begin_worker)
