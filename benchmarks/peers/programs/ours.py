"""fastdata: files, indexed files, shards, unpacked shards, stored pixels; batches on the host or on the GPU."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import PIL.Image
from torchvision.datasets import ImageFolder
from workloads import transform

from fastdata import DataLoader, ShardDataset
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from programs import Job, Loader
from programs.annotated import Annotated
from programs.torchvision import StoredPixels, opened_by

__all__ = ["loader", "prepare"]


def prepare(job: Job) -> None:
    """An index, or shards."""
    os.environ["FASTDATA_INDEX_DIR"] = str(job.stored / "indexes")
    folder = job.stored / job.option
    if job.option in ("files", "fast", "pixels") or job.option.startswith("gpu") or folder.exists():
        return
    if job.option == "indexed":  # names of its own for the same files, so that only this variant finds the index
        for path in job.images.glob("*/*"):
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            os.link(path, folder / path.parent.name / path.name)
        make_index(folder, images_below(folder))
    elif job.work.is_pixels:
        with tempfile.TemporaryDirectory() as scratch:
            _as_files(job, Path(scratch))
            convert(scratch, folder, ConvertOptions(recoding=Recoding(raw=job.work.stored_side)))
    else:
        convert(str(job.images), folder, ConvertOptions(recoding=Recoding(unpacked=job.option == "unpacked")))


def _as_files(job: Job, to: Path) -> None:
    pixels, labels = (np.load(job.images / name, mmap_mode="r") for name in ("pixels.npy", "labels.npy"))
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        target = to / f"{label:04}" / f"{number:06}.png"
        target.parent.mkdir(exist_ok=True)
        PIL.Image.fromarray(image).save(target, compress_level=1)


def loader(job: Job) -> Loader:
    """With its defaults, the backend named: what a user gets after its first measurement."""
    if job.option == "pixels":
        return opened_by(DataLoader, StoredPixels(job), job)
    if job.option in ("files", "fast", "indexed") or job.option.startswith("gpu"):
        folder = job.stored / job.option if job.option == "indexed" else job.images
        dataset = Annotated(job) if job.work.has_targets else ImageFolder(str(folder), transform(job.work))
        on_gpu = {"device": "cuda", "augment_on": "device"}
        extra = {
            "fast": {"fidelity": "fast"},
            "gpu": {"device": "cuda"},
            "gpu augments": on_gpu,
            "gpu decodes": {**on_gpu, "backend": "dali", "decode_device": "mixed"},
        }.get(job.option, {})
        return opened_by(DataLoader, dataset, job, **{"backend": "native", **extra})
    return opened_by(DataLoader, ShardDataset(job.stored / job.option, transform(job.work)), job, backend="native")
