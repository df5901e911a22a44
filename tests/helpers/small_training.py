"""A training that takes seconds: model, data and options, and the same for the command."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fastdata.train import TrainOptions

CLASSES = 4
SMALL_FLAGS = ["--model", "small", "-b", "8", "--epochs", "1", "--device", "cpu", "--workers", "1"]
SMALL_FLAGS += ["--train-crop-size", "32", "--val-resize-size", "36", "--val-crop-size", "32"]


def plain_model() -> nn.Module:
    """Without batch statistics, so that the gradient of a joint batch is the sum of its parts'."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 7 * 7, CLASSES))


def data(count: int = 40, batch: int = 8, **options: Any) -> DataLoader[Any]:
    """Noise whose brightness says a little about its label."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 16, 16, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    images += 0.5 * labels.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(images, labels), batch, **options)


def options(**more: Any) -> TrainOptions:
    """One epoch at a constant rate on the CPU, unless told otherwise."""
    return TrainOptions(
        **{"batch_size": 8, "epochs": 1, "lr": 0.1, "lr_scheduler": "constant", "device": "cpu", **more}
    )


def close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    """Equal but for rounding."""
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
