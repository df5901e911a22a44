"""MosaicML Streaming: MDS shards of JPEG bytes or arrays, StreamingDataset in torch's DataLoader."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import PIL.Image
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader
from workloads import Workload, transform

from programs import Job, Loader, samples

__all__ = ["loader", "prepare"]


class _Images(StreamingDataset):
    """Stored samples -> (view, label)."""

    def __init__(self, work: Workload, **options: Any) -> None:
        super().__init__(**options)
        self.is_array = work.is_pixels
        self.view = transform(work)

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        image = PIL.Image.fromarray(sample["image"]) if self.is_array else sample["image"].convert("RGB")
        return self.view(image), sample["label"]


def prepare(job: Job) -> None:
    """Writes its shards; JPEG files keep their bytes."""
    folder = job.stored / "mds"
    if (job.stored / "written").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    kind = "ndarray:uint8" if job.work.is_pixels else "png" if job.work.images == "png" else "jpeg"
    with MDSWriter(out=str(folder), columns={"image": kind, "label": "int"}) as writer:
        if job.work.is_pixels:
            pixels = np.load(job.images / "pixels.npy", mmap_mode="r")
            for image, label in zip(pixels, np.load(job.images / "labels.npy").tolist(), strict=True):
                writer.write({"image": np.ascontiguousarray(image), "label": label})
        else:
            for path, label in samples(job.images):
                with PIL.Image.open(path) as image:
                    writer.write({"image": image, "label": label})
    (job.stored / "written").touch()


def loader(job: Job) -> Loader:
    """From the local disk, on one node."""
    clean_stale_shared_memory()
    work = job.work
    dataset = _Images(
        work,
        local=str(job.stored / "mds"),
        shuffle=work.is_random,
        batch_size=work.batch,
        num_canonical_nodes=1,
    )
    opened = DataLoader(dataset, batch_size=work.batch, num_workers=job.threads, persistent_workers=True)
    return Loader(lambda: iter(opened))
