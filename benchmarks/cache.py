"""A cache of unpacked JPEGs: what each epoch takes while it fills, and after.

Setup: RandomResizedCrop(224), flip, float32; batches of 64 (fewer if there are few images), shuffled, 2 threads, files
in the page cache.  Two loaders of the same images take turns, epoch by epoch, one of them with a cache in a new folder;
CPU time is that of the process tree.  Then the same with a loop that sleeps after each batch as long as a batch without
a cache takes, so that threads are idle half of the time; there the time of the clock counts.  "own code" is a dataset
class that opens the files by Pillow, with torchvision's transforms and 2 worker processes.
Result: benchmarks/results/cache.json.

    python benchmarks/cache.py FOLDER [FOLDER ...]
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision.transforms as tv
from harness import benchmark
from PIL import Image

from fastdata import DataLoader, ImageFolder, transforms
from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.measuring.rounds import spread

WORKERS = 2
CROP = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


OWN_CROP = tv.Compose([tv.RandomResizedCrop(224), tv.RandomHorizontalFlip(), tv.ToTensor()])


class Own(torch.utils.data.Dataset[Any]):
    """What people write: paths, Image.open, a transform."""

    def __init__(self, folder: Path) -> None:
        self.paths = [path for path, _ in ImageFolder(folder, CROP).samples]
        self.transform = OWN_CROP

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), index


def in_pipeline(folder: Path, batch: int, **more: Any) -> DataLoader[Any]:
    """A loader of an image folder."""
    options: Any = {"shuffle": True, "num_workers": WORKERS, "seed": 1, "backend": "native"}
    return DataLoader(ImageFolder(folder, CROP), batch, **options, **more)


def by_own_code(folder: Path, batch: int, **more: Any) -> DataLoader[Any]:
    """A loader of a dataset of one's own."""
    options: Any = {"shuffle": True, "num_workers": WORKERS, "seed": 1, "persistent_workers": True}
    return DataLoader(Own(folder), batch, **options, **more)


def epoch(loader: DataLoader[Any], sleep_s: float) -> dict[str, float]:
    """CPU time and time of the clock of one epoch, in seconds, and a sum of its pixels."""
    cpu, wall, total = tree_cpu_s(), time.perf_counter(), 0.0
    for images, _ in loader:
        total += float(images[0, 0].sum())
        if sleep_s:
            time.sleep(sleep_s)
    return {"cpu": tree_cpu_s() - cpu, "wall": time.perf_counter() - wall, "pixels": total}


def filling(
    folder: Path, epochs: int, rounds: int, batch: int, sleep_s: float, make: Callable[..., DataLoader[Any]]
) -> dict[str, Any]:
    """Ratios of each epoch to one without a cache, over the rounds."""
    ratios: list[dict[str, list[float]]] = [{"cpu": [], "wall": []} for _ in range(epochs)]
    bytes_kept = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            epoch(make(folder, batch), 0)  # files into the page cache
            plain, cached = make(folder, batch), make(folder, batch, cache=cache)
            for found in ratios:
                of_files, of_cache = epoch(plain, sleep_s), epoch(cached, sleep_s)
                assert of_files["pixels"] == of_cache["pixels"], "other pixels"
                for what, values in found.items():
                    values.append(of_cache[what] / of_files[what])
            bytes_kept = sum(each.stat().st_blocks * 512 for each in Path(cache).iterdir())
    return {
        "epochs": [{what: spread(values) for what, values in found.items()} for found in ratios],
        "bytes": bytes_kept,
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Every folder, as fast as it goes and with a loop that leaves threads idle."""
    torch.set_num_threads(1)
    results = {}
    for folder in given.folders:
        images = len(ImageFolder(folder, CROP))
        batch = min(64, max(1, images // 4))
        loader = in_pipeline(folder, batch)
        epoch(loader, 0)
        each = epoch(loader, 0)["wall"] / len(loader)
        results[folder.name] = {
            "images": images,
            "file_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "as fast as it goes": filling(folder, given.epochs, given.rounds, batch, 0.0, in_pipeline),
            "threads idle": filling(folder, given.epochs, given.rounds, batch, each, in_pipeline),
            "own code": filling(folder, given.epochs, given.rounds, batch, 0.0, by_own_code),
        }
        print(folder.name, results[folder.name])
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folders="folders of images by class", rounds=5, epochs=5)
