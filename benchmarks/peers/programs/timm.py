"""timm's own loader."""

from __future__ import annotations

import torch
from timm.data import create_dataset, create_loader

from programs import Job, Loader

__all__ = ["loader", "prepare"]


def prepare(job: Job) -> None:
    """It reads folders."""


def loader(job: Job) -> Loader:
    """As its training script opens it, with the workload's views; its prefetcher works on a GPU only."""
    work = job.work
    opened = create_loader(
        create_dataset("", root=str(job.images)),
        input_size=(3, work.size, work.size),
        batch_size=work.batch,
        is_training=work.is_random,
        no_aug=False,
        scale=(0.08, 1.0),
        color_jitter=0.0,
        auto_augment="rand-m9-n2" if work.view == "randaugment" else None,
        interpolation="bilinear",
        crop_pct=None if work.is_random else 7 / 8,
        num_workers=job.threads,
        device=torch.device("cpu"),
        use_prefetcher=False,
        persistent_workers=True,
    )
    return Loader(lambda: iter(opened))
