"""TurboLoader's array path, on a tar."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import turboloader

from programs import Job, Loader, samples

__all__ = ["loader", "prepare"]


def _archive(job: Job) -> Path:
    return job.stored / "images.tar"


def prepare(job: Job) -> None:
    """A tar of the files; labels lie beside it, as it gives indices only."""
    if _archive(job).exists():
        return
    job.stored.mkdir(parents=True, exist_ok=True)
    with tarfile.open(_archive(job), "w") as tar:
        for number, (path, _) in enumerate(samples(job.images)):
            tar.add(path, f"{number:06}{Path(path).suffix}")


def loader(job: Job) -> Loader:
    """With the crop inside its decoder."""
    labels = torch.tensor([label for _, label in samples(job.images)])
    opened = turboloader.DataLoader(
        str(_archive(job)),
        batch_size=job.work.batch,
        num_workers=job.threads,
        shuffle=True,
        image_size=job.work.size,
        output_format="pytorch",
        transform=turboloader.ImageNetNormalize(),
        antialias=True,
        train_aug=True,
    )
    passes = iter(range(1_000_000))

    def epoch() -> Iterator[tuple[Any, Any]]:
        opened.set_epoch(next(passes))
        for images, meta in opened:
            yield torch.from_numpy(images), labels[torch.as_tensor(meta["indices"])]

    return Loader(epoch)
