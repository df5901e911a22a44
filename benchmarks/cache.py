"""A cache of unpacked JPEGs: what each epoch takes while it fills, and after.

Setup: RandomResizedCrop(224), flip, float32; batches of 64 (fewer if there are few images), shuffled, 2 threads, files
in the page cache.  Two loaders of the same images take turns, epoch by epoch, one of them with a cache in a new folder;
CPU time is that of the process.  Then the same with a loop that sleeps after each batch as long as a batch without a
cache takes, so that threads are idle half of the time; there the time of the clock counts.
Result: benchmarks/results/cache.json.

    python benchmarks/cache.py FOLDER [FOLDER ...]
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from harness import benchmark

from fastdata import DataLoader, ImageFolder, transforms
from fastdata.measuring.rounds import spread

WORKERS = 2
CROP = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()])


def epoch(loader: DataLoader[Any], sleep_s: float) -> dict[str, float]:
    """CPU time and time of the clock of one epoch, in seconds, and a sum of its pixels."""
    cpu, wall, total = time.process_time(), time.perf_counter(), 0.0
    for images, _ in loader:
        total += float(images[0, 0].sum())
        if sleep_s:
            time.sleep(sleep_s)
    return {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "pixels": total}


def filling(folder: Path, epochs: int, rounds: int, batch: int, sleep_s: float) -> dict[str, Any]:
    """Ratios of each epoch to one without a cache, over the rounds."""
    ratios: list[dict[str, list[float]]] = [{"cpu": [], "wall": []} for _ in range(epochs)]
    bytes_kept = 0
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            options: Any = {"shuffle": True, "num_workers": WORKERS, "seed": 1, "backend": "native"}
            plain, cached = (
                DataLoader(ImageFolder(folder, CROP), batch, **options, **more) for more in ({}, {"cache": cache})
            )
            epoch(plain, 0)  # files into the page cache
            plain = DataLoader(ImageFolder(folder, CROP), batch, **options)
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
        loader = DataLoader(ImageFolder(folder, CROP), batch, num_workers=WORKERS, backend="native")
        epoch(loader, 0)
        each = epoch(loader, 0)["wall"] / len(loader)
        results[folder.name] = {
            "images": images,
            "file_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "as fast as it goes": filling(folder, given.epochs, given.rounds, batch, 0.0),
            "threads idle": filling(folder, given.epochs, given.rounds, batch, each),
        }
        print(folder.name, results[folder.name])
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folders="folders of images by class", rounds=5, epochs=5)
