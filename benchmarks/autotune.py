"""What autotune=True finds, against every fixed number of threads: from too few, and from too many.

Setup: RandomResizedCrop(224) and flip of the folder's images, repeated, batches of 64, native backend.  "waits": a loop
that does nothing, from one thread.  "computes": a loop that computes on all CPUs for some milliseconds per batch, from
four times as many threads as there are CPUs.  Each runs for some seconds, the second half counts, as a tuner needs a
while; all take turns in every round.  "of the best" is the ratio to the best fixed number within a round.
Result: benchmarks/results/autotune.json.

    python benchmarks/autotune.py FOLDER
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import benchmark
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.measuring.rounds import spread
from fastdata.system.cpus import usable_cpus

BATCH, SIDE, IMAGES = 64, 224, 20_000
VIEW = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


def nothing() -> None:
    """A loop that only takes batches."""


def computing() -> Callable[[], None]:
    """A step of about 20 ms on one CPU."""
    matrix = torch.rand(768, 768)

    def step() -> None:
        for _ in range(4):
            torch.mm(matrix, matrix)

    return step


def images_per_s(folder: Path, step: Callable[[], None], seconds: float, **given: Any) -> tuple[float, str]:
    """Images per second in the second half of the time, and the setting at the end."""
    once = ImageFolder(folder, VIEW)
    dataset = ConcatDataset([once] * -(-IMAGES // len(once)))
    loader = DataLoader(dataset, BATCH, shuffle=True, backend="native", **given)
    began = time.perf_counter()
    half, images = 0.0, 0
    while True:
        for batch, _ in loader:
            step()
            now = time.perf_counter() - began
            if half:
                images += len(batch)
            elif now > seconds / 2:
                half = now
            if now > seconds:
                return images / (now - half), f"{loader.num_workers} threads, {loader.prefetch_factor} ahead"


def measured(given: Namespace) -> dict[str, Any]:
    """Images per second of every way, for a loop that waits and for one that computes."""
    cpus, results = usable_cpus(), {}
    for name, step, begin in (("waits", nothing, 1), ("computes", computing(), 4 * cpus)):
        ways: dict[str, dict[str, Any]] = {f"{count} threads": {"num_workers": count} for count in (1, cpus, 4 * cpus)}
        ways[f"autotune from {begin}"] = {"num_workers": begin, "autotune": True}
        rates: dict[str, list[float]] = {way: [] for way in ways}
        ended = []
        for _ in range(given.rounds):
            for way, options in ways.items():
                rate, setting = images_per_s(given.folder, step, given.seconds, **options)
                rates[way].append(rate)
                if "autotune" in options:
                    ended.append(setting)
        best = [max(values[:-1]) for values in zip(*rates.values(), strict=True)]
        results[name] = {
            "images_per_s": {way: spread(values) for way, values in rates.items()},
            "of_the_best": {
                way: spread([a / b for a, b in zip(values, best, strict=True)]) for way, values in rates.items()
            },
            "ended_with": ended,
        }
        print(name, ended)
        for way, ratio in results[name]["of_the_best"].items():
            print(f"  {way}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}) of the best")
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="one folder of images per class", seconds=12.0, rounds=3)
