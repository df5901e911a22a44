"""What the examples share: a small folder of images, drawn if none is given with --data, a small model and a loop."""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

CLASSES = ("blue", "green", "red")
SCRATCH = tempfile.TemporaryDirectory(prefix="fastdata-example-")  # removed when the program ends
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def data_folder() -> Path:
    """The folder given with --data, which has one folder of images per class, or one drawn now."""
    parser = argparse.ArgumentParser(description="An example of fastdata; its docstring says what it shows.")
    parser.add_argument("--data", type=Path, help="a folder with one folder of images per class")
    return parser.parse_args().data or draw_images(Path(SCRATCH.name) / "images")


def draw_images(folder: Path, per_class: int = 16) -> Path:
    """JPEGs of 160x120 pixels, in each class mostly of its colour."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for image in range(per_class):
            pixels = rng.integers(0, 120, (120, 160, 3), np.uint8)
            pixels[..., 2 - number] += 100
            Image.fromarray(pixels).save(folder / name / f"{image:02}.jpg")
    return folder


def as_jpeg(pixels: np.ndarray) -> bytes:
    """Pixels, uint8 (height, width, 3), as the bytes of a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def small_model(classes: int) -> nn.Module:
    """A model that computes in milliseconds."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 8, kernel_size=7, stride=8)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, classes))


def train_model(model: nn.Module, loader: DataLoader[Any], *, epochs: int) -> None:
    """Ordinary PyTorch, for any loader; prints a loss per epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.3f}")


def accuracy(model: nn.Module, loader: DataLoader[Any]) -> float:
    """The share of the loader's images whose class the model names."""
    with torch.inference_mode():
        right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)
