"""FFCV: its own file of JPEGs encoded anew, or of raw pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import (
    CenterCropRGBImageDecoder,
    RandomResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
)
from ffcv.loader import Loader as FfcvLoader
from ffcv.loader import OrderOption
from ffcv.transforms import (
    NormalizeImage,
    RandomHorizontalFlip,
    RandomTranslate,
    Squeeze,
    ToTensor,
    ToTorchImage,
)
from ffcv.writer import DatasetWriter
from workloads import MEAN, STD

from programs import Job, Loader, samples

__all__ = ["loader", "prepare"]


class _Images:
    """What DatasetWriter reads."""

    def __init__(self, job: Job) -> None:
        self.pixels = np.load(job.images / "pixels.npy", mmap_mode="r") if job.work.is_pixels else None
        self.labels = np.load(job.images / "labels.npy").tolist() if job.work.is_pixels else None
        self.samples = [] if job.work.is_pixels else samples(job.images)

    def __len__(self) -> int:
        return len(self.samples) if self.pixels is None else len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.pixels is not None and self.labels is not None:
            return np.ascontiguousarray(self.pixels[index]), self.labels[index]
        path, label = self.samples[index]
        with PIL.Image.open(path) as image:
            return image.convert("RGB"), label


def _records(job: Job) -> str:
    return str(job.stored / f"{job.option}.beton")


def prepare(job: Job) -> None:
    """Writes its file."""
    if (job.stored / "written").exists():
        return
    job.stored.mkdir(parents=True, exist_ok=True)
    fields = {"image": RGBImageField(write_mode=job.option, jpeg_quality=90), "label": IntField()}
    DatasetWriter(_records(job), fields, num_workers=2).from_indexed_dataset(_Images(job))
    (job.stored / "written").touch()


def loader(job: Job) -> Loader:
    """With os_cache, which it recommends for datasets that fit into memory."""
    work = job.work
    mean, std = (255 * np.array(values) for values in (MEAN, STD))
    if work.view == "val":
        views: list[Any] = [CenterCropRGBImageDecoder((work.size, work.size), ratio=7 / 8)]
    elif work.view == "cifar":
        views = [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(padding=4)]
    else:
        views = [RandomResizedCropRGBImageDecoder((work.size, work.size)), RandomHorizontalFlip()]
    opened = FfcvLoader(
        _records(job),
        batch_size=work.batch,
        num_workers=job.threads,
        order=OrderOption.RANDOM if work.is_random else OrderOption.SEQUENTIAL,
        os_cache=True,
        pipelines={
            "image": [
                *views,
                NormalizeImage(mean, std, np.float32),
                ToTensor(),
                ToTorchImage(convert_back_int16=False),
            ],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    return Loader(lambda: iter(opened))
