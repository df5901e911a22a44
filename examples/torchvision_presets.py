"""Transforms inside of a preset class, as in torchvision's reference training scripts.

    python examples/torchvision_presets.py [--data FOLDER]

A preset is a class with a Compose inside, which is given to ImageFolder as its transform.  Prints the verdict of
both loaders, then the loss and the accuracy.
"""

from __future__ import annotations

from typing import Any

import torch
from common import MEAN, STD, accuracy, data_folder, small_model, train_model
from torchvision import datasets, transforms

from fastdata import DataLoader


class TrainPreset:
    """Random crops and flips."""

    def __init__(self, *, crop_size: int, hflip_prob: float = 0.5) -> None:
        steps: list[Any] = [transforms.RandomResizedCrop(crop_size, antialias=True)]
        if hflip_prob > 0:
            steps.append(transforms.RandomHorizontalFlip(hflip_prob))
        steps += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float), transforms.Normalize(MEAN, STD)]
        self.transforms = transforms.Compose(steps)

    def __call__(self, image: Any) -> Any:
        """The transformed image."""
        return self.transforms(image)


class EvalPreset:
    """The middle of each image."""

    def __init__(self, *, crop_size: int, resize_size: int) -> None:
        steps = [transforms.Resize(resize_size, antialias=True), transforms.CenterCrop(crop_size)]
        to_float = [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float)]
        self.transforms = transforms.Compose([*steps, *to_float, transforms.Normalize(MEAN, STD)])

    def __call__(self, image: Any) -> Any:
        """The transformed image."""
        return self.transforms(image)


def main() -> None:
    """Trains for two epochs, then evaluates."""
    folder = data_folder()
    train_set = datasets.ImageFolder(folder, TrainPreset(crop_size=64))
    val_set = datasets.ImageFolder(folder, EvalPreset(crop_size=64, resize_size=72))
    train = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=2)
    val = DataLoader(val_set, batch_size=8, num_workers=2)
    model = small_model(len(train_set.classes))
    train_model(model, train, epochs=2)
    print(f"accuracy {accuracy(model, val):.2f}")
    print("train:", train.verdict())  # known once there were batches
    print("val:", val.verdict())


if __name__ == "__main__":
    main()
