"""Hugging Face's datasets: Parquet files with encoded images, streamed from the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
from workloads import transform

from programs import Job, Loader, samples
from programs.torchvision import loader_class

__all__ = ["loader", "prepare"]

SHARDS = 8


def _paths(job: Job) -> list[Path]:
    return [job.stored / f"train-{number:05}-of-{SHARDS:05}.parquet" for number in range(SHARDS)]


def prepare(job: Job) -> None:
    """Parquet files with an Image column, which holds the files as they are, and a label."""
    if _paths(job)[-1].exists():
        return
    job.stored.mkdir(parents=True, exist_ok=True)
    found = samples(job.images)
    each = -(-len(found) // SHARDS)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    for number, path in enumerate(_paths(job)):
        some = found[number * each : (number + 1) * each]
        images = [{"bytes": Path(file).read_bytes(), "path": None} for file, _ in some]
        rows = datasets.Dataset.from_dict({"image": images, "label": [label for _, label in some]}, features=features)
        rows.to_parquet(path)


class _Prepare:
    """A decoded row -> the view, for `map`."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        self.view = view

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"pixel_values": self.view(row["image"].convert("RGB")), "label": row["label"]}


def loader(job: Job) -> Loader:
    """As its documentation opens it, with nothing asked for on the network."""
    datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # or each pass would end with a pause of 5 s
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(job.stored / "cache")}
    work = job.work
    rows = datasets.load_dataset(
        "parquet",
        data_files=[str(path) for path in _paths(job)],
        split="train",
        streaming=True,
        cache_dir=str(job.stored / "cache"),
    )
    if work.is_random:
        rows = rows.shuffle(buffer_size=1000)
    rows = rows.map(_Prepare(transform(work)), remove_columns=["image"])
    opened = loader_class(job)(rows, batch_size=work.batch, num_workers=job.threads, persistent_workers=True)
    passes = iter(range(1_000_000))

    def epoch() -> Iterator[tuple[Any, Any]]:
        rows.set_epoch(next(passes))
        for batch in opened:
            yield batch["pixel_values"], batch["label"]

    return Loader(epoch)
