"""The same accuracy through fastdata's loader as through torch's: a small ResNet, several seeds, both loaders.

Setup: drawn images in ten classes (fastdata demo's), 64-pixel random crops, AdamW, one cycle, float32; the same model,
options and seeds; with torch's DataLoader and torchvision, and with fastdata's over the same ImageFolder and the same
transforms.  Crops are drawn from other random numbers, of the same distribution; validation images are the same to the
last bit, so two models of the same weights have the same accuracy.
Result: benchmarks/results/parity.json.

    python benchmarks/parity.py FOLDER        # where the sample dataset is, or is to be drawn
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from harness import benchmark
from torchvision import transforms
from torchvision.datasets import ImageFolder

import fastdata
from fastdata.demo.sample import SampleOptions, make_sample_dataset
from fastdata.models import small_resnet
from fastdata.train import TrainOptions, fit

SIDE, BATCH = 64, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LOADERS = {"torch": torch.utils.data.DataLoader, "fastdata": fastdata.DataLoader}


def accuracy(kind: str, folder: Path, *, seed: int, epochs: int) -> float:
    """Of a model that was trained through one of the loaders, on the validation images, in percent."""
    tensors = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    crop = transforms.RandomResizedCrop(SIDE, scale=(0.5, 1.0))
    training = ImageFolder(
        str(folder / "train"), transforms.Compose([crop, transforms.RandomHorizontalFlip(), *tensors])
    )
    middle = [transforms.Resize(74), transforms.CenterCrop(SIDE)]
    held_out = ImageFolder(str(folder / "val"), transforms.Compose([*middle, *tensors]))
    make: Any = LOADERS[kind]
    torch.manual_seed(seed)
    model = small_resnet(len(training.classes))
    options = TrainOptions(
        epochs=epochs, batch_size=BATCH, opt="adamw", lr=3e-3, weight_decay=0.01, lr_scheduler="onecycle", seed=seed
    )
    loaders = [
        make(training, BATCH, shuffle=True, num_workers=2, drop_last=True),
        make(held_out, BATCH, num_workers=2),
    ]
    return 100 * float(fit(model, *loaders, options).epochs[-1]["val_accuracy"])


def measured(given: Namespace) -> dict[str, Any]:
    """The accuracy with each loader, for every seed."""
    make_sample_dataset(given.folder, SampleOptions(train=given.images, val=1000))
    given.data = f"{given.images} drawn images in ten classes, 1000 more held out"
    found: dict[str, list[float]] = {kind: [] for kind in LOADERS}
    for seed in range(given.seeds):
        for kind, reached in found.items():
            reached.append(accuracy(kind, given.folder, seed=seed, epochs=given.epochs))
            print(f"seed {seed}, {kind}: {reached[-1]:.2f} %", flush=True)
    return {
        kind: {"accuracy_percent": reached, "mean": statistics.mean(reached), "stdev": statistics.stdev(reached)}
        for kind, reached in found.items()
    }


if __name__ == "__main__":
    told = "the sample dataset; drawn if it is not there"
    benchmark(__file__, measured, folder=told, epochs=15, seeds=3, images=4000)
