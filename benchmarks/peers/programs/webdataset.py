"""WebDataset: tars, shuffled shards and a shuffle buffer, batches made in the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import PIL.Image
import webdataset
from torch.utils.data import default_collate
from workloads import transform

from programs import Job, Loader
from programs.tars import write_tars
from programs.torchvision import loader_class

__all__ = ["loader", "prepare"]

TARS = 8


class _OfArray:
    """A transform of PIL images, for arrays."""

    def __init__(self, view: Callable[[Any], Any]) -> None:
        self.view = view

    def __call__(self, array: Any) -> Any:
        return self.view(PIL.Image.fromarray(array))


def prepare(job: Job) -> None:
    """Tars."""
    write_tars(job, TARS)


def loader(job: Job) -> Loader:
    """As its README opens it; or in fastdata's DataLoader instead of WebLoader, which wraps torch's."""
    work = job.work
    urls = [str(path) for path in write_tars(job, TARS)]
    shuffled = TARS if work.is_random else False
    dataset = webdataset.WebDataset(urls, shardshuffle=shuffled)
    if work.is_random:
        dataset = dataset.shuffle(1000)
    dataset = dataset.decode() if work.is_pixels else dataset.decode("pil")
    name = "npy" if work.is_pixels else "jpg;png"
    view = transform(work)
    dataset = (
        dataset.to_tuple(name, "cls")
        .map_tuple(_OfArray(view) if work.is_pixels else view, int)
        .batched(work.batch, collation_fn=default_collate)
    )
    kind = loader_class(job) if job.option == "fastdata" else webdataset.WebLoader
    opened = kind(dataset, batch_size=None, num_workers=job.threads, persistent_workers=True)

    def epoch() -> Iterator[tuple[Any, Any]]:
        return iter(opened)

    return Loader(epoch)
