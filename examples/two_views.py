"""Self-supervised: two views of each image, and a loss of one's own (SimCLR's).

    python examples/two_views.py [--data FOLDER]

The dataset is torchvision's ImageFolder with a transform that calls another one twice; the image's file is read once.
Prints per epoch how often a view finds the other one of its image in the batch, and the loader's verdict.
"""

from __future__ import annotations

from typing import Any

import torch
from common import MEAN, STD, data_folder
from torch import nn
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.train import Task, TrainOptions, fit

TEMPERATURE = 0.2


class TwoViews:
    """Two random views of an image."""

    def __init__(self, view: Any) -> None:
        self.view = view

    def __call__(self, image: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Both."""
        return self.view(image), self.view(image)


def similarities(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Similarity of each view with all others, (2N, 2N), and the place of the other view of its image, (2N,)."""
    (first, second), _ = batch
    found = nn.functional.normalize(model(torch.cat([first, second])))
    count = len(first)
    similar = (found @ found.T / TEMPERATURE).masked_fill(torch.eye(2 * count, dtype=torch.bool), -torch.inf)
    return similar, torch.arange(2 * count).roll(count)


def loss(model: Any, batch: Any) -> torch.Tensor:
    """NT-Xent (Chen et al., "A simple framework for contrastive learning", 2020)."""
    return nn.functional.cross_entropy(*similarities(model, batch))


def metrics(model: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Share of the views whose nearest neighbour is the other view, per image."""
    similar, other = similarities(model, batch)
    return {"found": (similar.argmax(1) == other).float().view(2, -1).mean(0)}


def main() -> None:
    """Trains for three epochs."""
    torch.manual_seed(0)  # of the first weights
    colour = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    steps = [transforms.RandomResizedCrop(64, scale=(0.3, 1)), transforms.RandomHorizontalFlip(), colour]
    view = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    loader = DataLoader(ImageFolder(str(data_folder()), TwoViews(view)), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Conv2d(3, 16, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 16))
    options = TrainOptions(epochs=3, batch_size=16, opt="adamw", lr=0.003, device="cpu")
    fit(model, loader, loader, options, task=Task(loss=loss, metrics=metrics))
    print(loader.verdict())  # known once there were batches


if __name__ == "__main__":
    main()
