"""What fidelity="fast" changes: pixels of photographs, and the accuracy of one trained model.

Pixels: random windows of every image (RandomResizedCrop at several sizes), exact against fast, by the native backend:
mean absolute difference in grey levels of 255, and PSNR of all pixels together.
Accuracy: a small ResNet is trained on the sample dataset (tools/make_sample_dataset.py) through exact batches, and
evaluated on its validation part through exact and through fast batches.
Result: benchmarks/results/fidelity.json.

    python benchmarks/fidelity.py FOLDER SAMPLE
"""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from harness import benchmark
from torch import nn

from fastdata import DataLoader, ImageFolder
from fastdata.models import small_resnet
from fastdata.transforms import CenterCrop, Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop, Resize

SIZES = (224, 128, 96, 64)
FIDELITIES = ("exact", "fast")


def loader(folder: Path, steps: list[Any], fidelity: str, **options: Any) -> DataLoader[Any]:
    """Batches of 32 by the native backend."""
    dataset = ImageFolder(folder, Compose([*steps, PILToTensor()]))
    return DataLoader(dataset, 32, num_workers=2, backend="native", fidelity=fidelity, seed=0, **options)


def difference(folder: Path, size: int) -> dict[str, float]:
    """Exact against fast over one window of every image."""
    pairs = zip(*(loader(folder, [RandomResizedCrop(size)], fidelity) for fidelity in FIDELITIES), strict=True)
    absolute, squared, count = 0.0, 0.0, 0
    for (exact, _), (fast, _) in pairs:
        error = exact.double() - fast.double()
        absolute += error.abs().sum().item()
        squared += error.square().sum().item()
        count += error.numel()
    mean_squared = squared / count
    psnr_db = 10 * math.log10(255**2 / mean_squared) if mean_squared else math.inf
    return {"mean_absolute": round(absolute / count, 4), "psnr_db": round(psnr_db, 2)}


def train(folder: Path, size: int, epochs: int) -> nn.Module:
    """A small ResNet after 1cycle training with AdamW."""
    torch.manual_seed(0)
    steps = [RandomResizedCrop(size, scale=(0.35, 1.0)), RandomHorizontalFlip()]
    batches = loader(folder, steps, "exact", shuffle=True, drop_last=True)
    model = small_resnet(10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * len(batches))
    for _ in range(epochs):
        for images, labels in batches:
            loss = nn.functional.cross_entropy(model(prepared(images)), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def prepared(images: torch.Tensor) -> torch.Tensor:
    """Floats around zero."""
    return images.float().sub_(116).div_(58)


@torch.inference_mode()
def accuracy(model: nn.Module, folder: Path, fidelity: str, size: int) -> float:
    """Share of validation images classified correctly."""
    right = total = 0
    for images, labels in loader(folder, [Resize(size * 8 // 7), CenterCrop(size)], fidelity):
        right += int((model(prepared(images)).argmax(1) == labels).sum())
        total += len(labels)
    return right / total


def measured(given: Namespace) -> dict[str, Any]:
    """Differences of pixels, and the accuracy of a model on either."""
    photographs, sample = given.folders
    results: dict[str, Any] = {"pixels": {str(size): difference(photographs, size) for size in SIZES}}
    print(results)
    model = train(sample / "train", given.size, given.epochs)
    results["accuracy"] = {seen: accuracy(model, sample / "val", seen, given.size) for seen in FIDELITIES}
    print(results["accuracy"])
    return results


if __name__ == "__main__":
    told = "photographs, one folder per class; the sample dataset, with train/ and val/"
    benchmark(__file__, measured, folders=told, count=2, epochs=20, size=96)
