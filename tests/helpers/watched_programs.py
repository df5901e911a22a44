"""Small training programs, and how they are watched."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fastdata.diagnosis.examine import examine_watched
from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped
from fastdata.diagnosis.observation import Observation

__all__ = ["dataset", "model", "step", "train", "watched"]


def dataset(count: int = 96, *, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((count, 3, 8, 8), generator=generator, dtype=dtype)
    return TensorDataset(images, torch.arange(count) % 4)


def model(*, bias: bool = False) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )


def step(network: nn.Module, optimiser: Any, images: Any, labels: Any, **zero: Any) -> torch.Tensor:
    loss = nn.functional.cross_entropy(network(images), labels)
    optimiser.zero_grad(**zero)
    loss.backward()
    optimiser.step()
    return loss


def train(network: nn.Module, loader: Any, epochs: int = 1, **zero: Any) -> list[Any]:
    """What the program was given."""
    optimiser, given = torch.optim.SGD(network.parameters(), lr=0.1), []
    for _ in range(epochs):
        for images, labels in loader:
            step(network, optimiser, images, labels, **zero)
            given.append(images.clone())
    return given


def watched(program: Any, **options: Any) -> tuple[LoopMonitor, Observation]:
    watch = LoopMonitor(**{"seconds": 0.3, **options})
    try:
        with watch.watching():
            program()
    except Stopped:
        pass
    return watch, examine_watched(watch, "a program")
