"""One epoch of a small ResNet through the drop-in, with AMP on whatever device there is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastdata.dataloader import DataLoader
from fastdata.datasets import ImageFolder
from fastdata.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor

__all__ = ["Epoch", "train_one_epoch"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What one epoch did and where its time went, in seconds."""

    images: int
    loss_first: float
    loss_last: float
    wait_s: float
    forward_s: float
    backward_s: float
    step_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.wait_s + self.forward_s + self.backward_s + self.step_s


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def small_resnet(classes: int) -> nn.Module:
    """Three residual blocks: 0.3 million parameters."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (_Block(16, 32, 2), _Block(32, 64, 2), _Block(64, 128, 2))
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def train_one_epoch(folder: Path, *, size: int = 96, batch_size: int = 32) -> Epoch:
    """Trains on FOLDER/CLASS/IMAGE for one epoch and times each part of the step."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    crop = RandomResizedCrop(size, scale=(0.5, 1.0))
    dataset = ImageFolder(folder, Compose([crop, RandomHorizontalFlip(), ToTensor(), Normalize(_MEAN, _STD)]))
    loader: Any = DataLoader(
        dataset, batch_size, shuffle=True, num_workers="auto", drop_last=True, device=device, seed=0
    )
    model = small_resnet(len(dataset.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    spent = dict.fromkeys(("wait", "forward", "backward", "step"), 0.0)
    losses = []
    clock = _Clock(device, spent)
    for images, labels in loader:
        clock.book("wait")
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        clock.book("forward")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clock.book("backward")
        optimizer.step()
        losses.append(loss.detach())
        clock.book("step")
    values = torch.stack(losses).float().tolist()
    few = max(1, len(values) // 5)
    return Epoch(
        images=len(losses) * batch_size,
        loss_first=sum(values[:few]) / few,
        loss_last=sum(values[-few:]) / few,
        **{f"{part}_s": seconds for part, seconds in spent.items()},
    )


class _Clock:
    """Books the time since the last call; waits for the device first, which a real training loop would not."""

    def __init__(self, device: torch.device, spent: dict[str, float]) -> None:
        self._device, self._spent, self._at = device, spent, time.perf_counter()

    def book(self, part: str) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        now = time.perf_counter()
        self._spent[part] += now - self._at
        self._at = now
