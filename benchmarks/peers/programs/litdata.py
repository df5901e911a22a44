"""LitData: chunks of JPEG bytes or arrays, tensors decoded by torchvision, v2 transforms."""

from __future__ import annotations

from typing import Any

import litdata
import numpy as np
import PIL.Image
from workloads import tensor_transform, transform

from programs import Job, Loader, samples
from programs.torchvision import opened_by

__all__ = ["loader", "prepare"]


class _Write:
    """Sample number -> what optimize() stores: the bytes of a file as they are, or an array."""

    def __init__(self, job: Job) -> None:
        self.samples = [] if job.work.is_pixels else samples(job.images)
        self.pixels = np.load(job.images / "pixels.npy", mmap_mode="r") if job.work.is_pixels else None
        self.labels = np.load(job.images / "labels.npy").tolist() if job.work.is_pixels else []

    def __call__(self, index: int) -> dict[str, Any]:
        if self.pixels is not None:
            return {"image": np.ascontiguousarray(self.pixels[index]), "label": self.labels[index]}
        path, label = self.samples[index]
        return {"image": litdata.Image(path=path), "label": label}


class _View:
    """A stored sample -> (view, label)."""

    def __init__(self, job: Job) -> None:
        self.is_array = job.work.is_pixels
        self.view = transform(job.work) if self.is_array else tensor_transform(job.work)

    def __call__(self, sample: dict[str, Any]) -> tuple[Any, int]:
        image = sample["image"]
        if self.is_array:
            image = PIL.Image.fromarray(np.asarray(image))
        return self.view(image), sample["label"]


def prepare(job: Job) -> None:
    """Writes its chunks."""
    if not (job.stored / "written").exists():
        litdata.optimize(
            fn=_Write(job),
            inputs=list(range(job.work.count)),
            output_dir=str(job.stored / "chunks"),
            chunk_bytes="64MB",
            num_workers=1,
            mode="overwrite",
            keep_data_ordered=True,
            reorder_files=False,
        )
        (job.stored / "written").touch()


def loader(job: Job) -> Loader:
    """From the local disk."""
    dataset = litdata.StreamingDataset(
        str(job.stored / "chunks"), shuffle=job.work.is_random, transform=_View(job), max_cache_size="50GB"
    )
    return opened_by(litdata.StreamingDataLoader, dataset, job, persistent_workers=True)
