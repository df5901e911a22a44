"""The workload as tar files in WebDataset's naming, for those who read such files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

from programs import Job, samples

__all__ = ["write_tars"]


def write_tars(job: Job, count: int) -> list[Path]:
    """Writes `count` tars of equal size: NNNNNN.jpg (.png, or .npy for stored pixels) and NNNNNN.cls; returns them."""
    paths = [job.stored / f"{number:03}-of-{count}.tar" for number in range(count)]
    if paths[-1].exists():
        return paths
    job.stored.mkdir(parents=True, exist_ok=True)
    if job.work.is_pixels:
        pixels = np.load(job.images / "pixels.npy", mmap_mode="r")
        labels = np.load(job.images / "labels.npy").tolist()
        entries = [(number, ".npy", label) for number, label in enumerate(labels)]
    else:
        found = samples(job.images)
        suffixes = [Path(path).suffix.replace("jpeg", "jpg") for path, _ in found]
        entries = [(number, suffixes[number], label) for number, (_, label) in enumerate(found)]
    each = -(-len(entries) // count)
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as tar:
            for index, suffix, label in entries[number * each : (number + 1) * each]:
                data = _npy(pixels[index]) if job.work.is_pixels else Path(found[index][0]).read_bytes()
                _add(tar, f"{index:06}{suffix}", data)
                _add(tar, f"{index:06}.cls", str(label).encode())
    return paths


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    tar.addfile(entry, io.BytesIO(data))
