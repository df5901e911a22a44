"""Trains a small ResNet for one epoch with fastdata.DataLoader and the training loop, with AMP, on GPU or CPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fastdata.dataloader.loader import DataLoader
from fastdata.image_folder import ImageFolder
from fastdata.models import small_resnet
from fastdata.train.loop import train_epoch
from fastdata.train.monitor import Monitor
from fastdata.train.options import TrainOptions
from fastdata.train.training import Training
from fastdata.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ToTensor,
)

__all__ = ["Epoch", "train_one_epoch"]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Results of one epoch, and the time of its parts in seconds."""

    images: int
    loss_first: float
    loss_last: float
    wait_s: float
    forward_s: float
    backward_s: float
    step_s: float

    @property
    def total_s(self) -> float:
        """The time of the whole epoch."""
        return self.wait_s + self.forward_s + self.backward_s + self.step_s

    def share(self, part: str) -> float:
        """A part's share ("wait", "forward", "backward" or "step") of the whole epoch."""
        return float(getattr(self, f"{part}_s")) / self.total_s


def train_one_epoch(folder: Path, *, size: int = 96, batch_size: int = 16) -> Epoch:
    """Trains on FOLDER/CLASS/IMAGE for one epoch and times each part of the step."""
    torch.manual_seed(0)
    # profile="steps" waits for the device after each part, which a real run would not.
    options = TrainOptions(
        batch_size=batch_size, opt="adamw", lr=5e-3, lr_scheduler="constant", amp="bf16", profile="steps"
    )
    crop = RandomResizedCrop(size, scale=(0.5, 1.0))
    dataset = ImageFolder(
        folder, Compose([crop, RandomHorizontalFlip(), ToTensor(), Normalize(IMAGENET_MEAN, IMAGENET_STD)])
    )
    loader: Any = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers="auto",
        drop_last=True,
        device=options.torch_device(),
        memory_format=torch.channels_last,
        seed=0,
    )
    training = Training(small_resnet(len(dataset.classes)), options, batches_per_epoch=len(loader))
    monitor = Monitor(training)
    losses = train_epoch(training, loader, monitor=monitor).losses
    few = max(1, len(losses) // 5)
    return Epoch(
        images=len(losses) * batch_size,
        loss_first=sum(losses[:few]) / few,
        loss_last=sum(losses[-few:]) / few,
        wait_s=monitor.seconds["wait"],
        forward_s=monitor.seconds["forward"],
        backward_s=monitor.seconds["backward"],
        step_s=monitor.seconds["update"] + monitor.seconds["rest"],
    )
