"""The whole pipeline against torch's DataLoader with torchvision.

Setup: RandomResizedCrop(224) and flip, as float32 after ToTensor and Normalize and as uint8 after PILToTensor; batches
of 64, shuffled; threads and worker processes equal in number; torch with persistent workers; the folder repeated to at
least 1000 images.  All loaders take turns in every round.  Result: benchmarks/results/loader.json.

    python benchmarks/loader.py FOLDER
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import torch.utils.data
from harness import benchmark
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.loaders import available_backends
from fastdata.measuring.rounds import compare

TORCH = "torch + torchvision"
ENDS = {
    "float32": [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
    "uint8": [transforms.PILToTensor()],
}


def repeated(folder: Path, transform: Any, at_least: int = 1000) -> ConcatDataset[Any]:
    """The folder's images, repeated to at least `at_least`."""
    dataset = ImageFolder(folder, transform)
    return ConcatDataset([dataset] * -(-at_least // len(dataset)))


def run(folder: Path, end: str, workers: int, rounds: int) -> dict[str, Any]:
    """Measures every available backend and torch for one kind of output."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *ENDS[end]]
    dataset = repeated(folder, transforms.Compose(steps))
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": workers}
    loaders: dict[str, Any] = {TORCH: torch.utils.data.DataLoader(dataset, persistent_workers=True, **options)}
    for name in available_backends():
        loaders[f"fastdata, {name}"] = DataLoader(dataset, backend=name, **options)
    epochs = {name: partial(iter, loader) for name, loader in loaders.items()}
    return compare(epochs, TORCH, images=len(dataset), rounds=rounds)


def measured(given: Namespace) -> dict[str, Any]:
    """Every loader, for each kind of output."""
    results = {}
    for end in ENDS:
        print(f"{end}\n")
        results[end] = run(given.folder, end, given.workers, given.rounds)
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, folder="one folder of images per class", workers=2, rounds=5)
