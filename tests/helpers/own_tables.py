"""A table of JPEGs with labels, read by code as most people write it, and how its batches are compared."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image
from torch.utils.data import Dataset

__all__ = [
    "MEAN",
    "STD",
    "TRAIN",
    "VALIDATE",
    "VALIDATE_V2",
    "Table",
    "TwoViews",
    "batches",
    "flat",
    "make_table",
    "same",
]

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
TRAIN = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
VALIDATE = v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)])
VALIDATE_V2 = v2.Compose([v2.Resize(30), v2.CenterCrop(24), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


class Table(Dataset[Any]):
    """A table of files and labels, as most people write it."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        with (folder / "labels.csv").open() as file:
            self.rows = list(csv.reader(file))
        self.folder, self.transform = folder, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        with Image.open(self.folder / name) as opened:
            image = opened.convert("RGB")
        return self.transform(image), int(label)


class TwoViews(Table):
    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        image = Image.open(self.folder / name).convert("RGB")
        return [self.transform(image), self.transform(image)], label


def make_table(folder: Path) -> Path:
    """Fourteen JPEGs with a table, grey and progressive ones among them; also a folder for ImageFolder."""
    rows = []
    for number in range(14):
        name = f"{number % 2}/{number:02}.jpg"
        (folder / str(number % 2)).mkdir(exist_ok=True)
        options = {"progressive": True} if number == 3 else {}
        data = images.jpeg(60 + number, 50 + 2 * number, seed=number)
        (folder / name).write_bytes(images.saved(70, 60, **options) if options else data)
        rows.append((name, number))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def batches(loader: Any, seed: int = 3) -> list[Any]:
    torch.manual_seed(seed)
    return list(loader)


def flat(value: Any) -> list[Any]:
    """Everything in a batch, in order."""
    if isinstance(value, dict):
        return [each for key in sorted(value) for each in flat(value[key])]
    if isinstance(value, list | tuple):
        return [each for part in value for each in flat(part)]
    return [value]


def same(ours: Any, theirs: Any) -> bool:
    pairs = zip(flat(ours), flat(theirs), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)
