"""Detection: images with boxes from shards, in batches of lists, with transforms of torchvision's v2 and an own loss.

    python examples/detection.py

Draws squares, writes them to shards with their boxes, and trains a network that says where the square is.  Prints the
mean overlap per epoch, and the loader's verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import SCRATCH, as_jpeg
from torch import nn
from torchvision import tv_tensors
from torchvision.ops import box_iou
from torchvision.transforms import v2

from fastdata import DataLoader, ShardDataset, ShardWriter
from fastdata.train import Task, TrainOptions, fit

SIDE = 96


def write_shards(folder: Path) -> Path:
    """Grey noise, each image with a bright square, and its box."""
    rng = np.random.default_rng(0)
    with ShardWriter(folder) as writer:
        for number in range(64):
            left, top, side = (int(rng.integers(*ends)) for ends in ((0, 48), (0, 48), (24, 48)))
            pixels = rng.integers(0, 100, (SIDE, SIDE, 3), np.uint8)
            pixels[top : top + side, left : left + side] += 150
            boxes = {"boxes": [[left, top, left + side, top + side]]}
            writer.write({"__key__": f"{number:03}", "jpg": as_jpeg(pixels), "json": boxes})
    return folder


class Joint:
    """Flips image and boxes together."""

    def __init__(self) -> None:
        self.steps = v2.Compose([v2.ToImage(), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])

    def __call__(self, image: Any, annotations: Any) -> Any:
        """Both, as tensors."""
        boxes = tv_tensors.BoundingBoxes(annotations["boxes"], format="XYXY", canvas_size=(image.height, image.width))
        return self.steps(image, {"boxes": boxes})


def as_lists(samples: list[Any]) -> Any:
    """A batch as torchvision's detection models take it: images, targets."""
    return tuple(zip(*samples, strict=True))


def predicted(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Boxes that the model predicts, and those that there are, as shares of the side: (N, 4) each."""
    return model(torch.stack(batch[0])), torch.cat([target["boxes"].data for target in batch[1]]) / SIDE


def loss(model: Any, batch: Any) -> torch.Tensor:
    """Mean distance of the corners."""
    return nn.functional.smooth_l1_loss(*predicted(model, batch), beta=0.1)


def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Overlap of each box with the right one."""
    return {"iou": box_iou(*predicted(model, batch)).diagonal()}


def main() -> None:
    """Trains for eight epochs."""
    torch.manual_seed(0)  # of the first weights
    shards = write_shards(Path(SCRATCH.name) / "shards")
    dataset = ShardDataset(shards, fields=("image", "json"), transforms=Joint())
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, collate_fn=as_lists)
    layers = [nn.AvgPool2d(8), nn.Flatten(), nn.Linear(432, 64), nn.ReLU(), nn.Linear(64, 4), nn.Sigmoid()]
    options = TrainOptions(epochs=8, batch_size=8, opt="adamw", lr=0.005, best_metric="val_iou", device="cpu")
    fit(nn.Sequential(*layers), loader, loader, options, task=Task(loss=loss, metrics=metrics))
    print(loader.verdict())  # known once there were batches


if __name__ == "__main__":
    main()
