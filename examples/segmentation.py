"""Segmentation: images and masks from shards, joint transforms of torchvision, a loss and a metric of one's own.

    python examples/segmentation.py

Draws discs, writes them to shards with their masks, and trains a small network.  The transforms get image and mask as
torchvision's v2 wants them; the image stays encoded through them.  Prints mIoU per epoch, and the loader's verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SCRATCH, as_jpeg
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastdata import DataLoader, ShardDataset, ShardWriter
from fastdata.train import Task, TrainOptions, fit


def write_shards(folder: Path, count: int = 64) -> Path:
    """Photographs of noise, each with a red disc, and a mask of it."""
    rng = np.random.default_rng(0)
    rows, columns = np.mgrid[:96, :128]
    with ShardWriter(folder) as writer:
        for number in range(count):
            disc = (rows - rng.integers(30, 66)) ** 2 + (columns - rng.integers(30, 98)) ** 2 < rng.integers(
                15, 30
            ) ** 2
            pixels = rng.integers(0, 128, (96, 128, 3), np.uint8)
            pixels[disc, 0] += 120
            writer.write({"__key__": f"{number:03}", "jpg": as_jpeg(pixels), "mask.png": disc.astype(np.uint8)})
    return folder


class Joint:
    """Crops and flips image and mask together."""

    def __init__(self) -> None:
        kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
        crop = [v2.RandomResizedCrop(64, scale=(0.5, 1)), v2.RandomHorizontalFlip()]
        self.steps = v2.Compose(
            [v2.ToImage(), *crop, v2.ToDtype(kinds, scale=True), v2.Normalize([0.4] * 3, [0.2] * 3)]
        )

    def __call__(self, image: Any, mask: Any) -> Any:
        """Both, as tensors."""
        return self.steps(image, tv_tensors.Mask(v2.functional.pil_to_tensor(mask)[0]))


def loss(model: Any, batch: Any) -> torch.Tensor:
    """Mean cross entropy over all pixels."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Intersection over union of the discs, per image."""
    found, wanted = model(batch[0]).argmax(1).bool(), batch[1].bool()
    return {"iou": (found & wanted).sum((1, 2)) / (found | wanted).sum((1, 2)).clamp(min=1)}


def main() -> None:
    """Trains for four epochs."""
    torch.manual_seed(0)  # of the first weights
    shards = write_shards(Path(SCRATCH.name) / "shards")
    dataset = ShardDataset(shards, fields=("image", "mask.png"), transforms=Joint())
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Conv2d(3, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 2, 5, padding=2))
    options = TrainOptions(epochs=4, batch_size=8, opt="adamw", lr=0.01, best_metric="val_iou", device="cpu")
    fit(model, loader, loader, options, task=Task(loss=loss, metrics=metrics))
    print(loader.verdict())  # known once there were batches


if __name__ == "__main__":
    main()
