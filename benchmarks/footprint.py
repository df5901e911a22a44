"""What a loader costs besides time: first batch of a long dataset, resident memory, and what stays behind.

Setup: the first batch of 64 from an ImageFolder, and from a dataset of one's own (Image.open and a transform), whose
lists have 1.2 million entries (the folder's files repeated), from construction of the loader on, files warm: torch's
loader, fastdata's with backend="auto" and with backend="native" take turns in every round; resident memory of the
whole process tree in the middle of an epoch with 8 threads or 8 worker processes, as the sum of RSS and of PSS (which
divides shared pages among those that share them); threads, file descriptors and resident memory before and after 1,000
early breaks and 50 epochs.
Result: benchmarks/results/footprint.json.

    python benchmarks/footprint.py FOLDER
"""

from __future__ import annotations

import gc
import threading
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch.utils.data
from harness import benchmark
from PIL import Image
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.measuring.rounds import spread

LOADERS: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "fastdata": DataLoader}
FIRST: dict[str, Any] = {
    "torch": torch.utils.data.DataLoader,
    "fastdata, auto": partial(DataLoader, backend="auto"),
    "fastdata, native": partial(DataLoader, backend="native"),
}
TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


class Table(torch.utils.data.Dataset[Any]):
    """A dataset of one's own: a list of files and labels."""

    def __init__(self, samples: list[tuple[str, int]], transform: Callable[[Any], Any]) -> None:
        self.samples, self.transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


def first_batch_s(folder: Path, entries: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Seconds from construction of the loader to its first batch, by dataset and loader, in turn."""
    files = ImageFolder(folder, TRAIN)
    files.samples = (files.samples * -(-entries // len(files.samples)))[:entries]
    datasets = {"ImageFolder": files, "a dataset of one's own": Table(files.samples, TRAIN)}
    seconds: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in FIRST} for kind in datasets}
    for _ in range(rounds):
        for kind, dataset in datasets.items():
            for name, loader in FIRST.items():
                began = time.perf_counter()
                iterator = iter(loader(dataset, 64, shuffle=True, num_workers=2))
                next(iterator)
                seconds[kind][name].append(time.perf_counter() - began)
                del iterator
    return {kind: {name: spread(values) for name, values in loaders.items()} for kind, loaders in seconds.items()}


def resident_mb(folder: Path, workers: int) -> dict[str, dict[str, float]]:
    """Megabytes added to the process tree by a loader in the middle of an epoch, with its prefetched batches."""
    dataset = ImageFolder(folder, TRAIN)
    before, after = _tree_mb(), {}
    for name in ("fastdata", "torch"):
        iterator = iter(LOADERS[name](dataset, 16, num_workers=workers, prefetch_factor=2))
        next(iterator)
        time.sleep(3)
        now = _tree_mb()
        after[name] = {kind: now[kind] for kind in now} | {f"{kind}_added": now[kind] - before[kind] for kind in now}
        del iterator
        gc.collect()
    return after


def _tree_mb() -> dict[str, float]:
    own = psutil.Process()
    infos = [process.memory_full_info() for process in [own, *own.children(recursive=True)]]
    return {"rss": sum(info.rss for info in infos) / 1e6, "pss": sum(info.pss for info in infos) / 1e6}


def left_behind(folder: Path, breaks: int, epochs: int) -> dict[str, Any]:
    """Threads, descriptors and resident megabytes before and after many breaks and epochs."""
    dataset = Subset(ImageFolder(folder, TRAIN), range(32))
    loader = DataLoader(dataset, 8, num_workers=4, shuffle=True)
    marks = []
    for number in range(breaks + 1):
        for _ in loader:
            break
        if number == 20 or (number > 0 and number % max(1, breaks // 10) == 0):
            marks.append(_mark(f"after {number} breaks"))
    for number in range(1, epochs + 1):
        for _ in loader:
            pass
        if number % max(1, epochs // 5) == 0:
            marks.append(_mark(f"after {number} epochs more"))
    return {"marks": marks}


def _mark(when: str) -> dict[str, Any]:
    gc.collect()
    process = psutil.Process()
    return {
        "when": when,
        "threads": threading.active_count(),
        "descriptors": process.num_fds(),
        "rss_mb": process.memory_info().rss / 1e6,
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Memory, the first batch, and what stays behind."""
    results = {
        "resident_mb": resident_mb(given.folder, 8),
        "first_batch_s": first_batch_s(given.folder, given.entries, given.rounds),
        "left_behind": left_behind(given.folder, given.breaks, given.epochs),
    }
    for name, result in results.items():
        print(name, result)
    return results


if __name__ == "__main__":
    sizes = {"entries": 1_200_000, "rounds": 5, "breaks": 1000, "epochs": 50}
    benchmark(__file__, measured, folder="one folder of images per class", **sizes)
