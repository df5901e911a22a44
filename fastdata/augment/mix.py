"""Mixup and cutmix for whole batches: lam, the share that an image keeps, is drawn for each; labels become soft."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch

from fastdata.augment import ops
from fastdata.augment.base import Printable
from fastdata.errors import OptionError
from fastdata.views.philox import Floats, Key, random_words, uniform
from fastdata.views.streams import Stream

__all__ = ["CutMix", "MixUp"]


class _Mix(Printable, ABC):
    """Mixes each image of a batch with the one before it.

    Args:
        num_classes: length of the soft labels.
        alpha: lam comes from the Beta(alpha, alpha) distribution.
        seed: seed of the draws.
    """

    def __init__(self, num_classes: int, *, alpha: float = 1.0, seed: int = 0) -> None:
        if num_classes < 1:
            raise OptionError(f"num_classes={num_classes}; at least 1 is needed")
        if not alpha > 0 or not math.isfinite(alpha):
            raise OptionError(f"alpha={alpha}; Beta(alpha, alpha) needs a number above 0")
        self.num_classes, self.alpha, self.seed = num_classes, float(alpha), seed

    def __call__(self, images: torch.Tensor, labels: torch.Tensor, *, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A mixed batch.

        Args:
            images: float, (N, C, H, W), on any device.
            labels: int64, (N,).
            step: number of the training step; the same step is mixed alike in every run and on every device.

        Returns:
            Images like those given, and float32 labels (N, num_classes).

        Raises:
            OptionError: images or labels are of another type.
        """
        if not images.is_floating_point() or labels.dtype != torch.int64 or labels.dim() != 1:
            raise OptionError(
                f"images are {images.dtype} and labels {labels.dtype} {tuple(labels.shape)}; mixing needs float images "
                "and one int64 label per image"
            )
        count = len(images)
        rng = np.random.Generator(np.random.Philox(key=(self.seed & (2**64 - 1), (step << 12) | Stream.MIX_LAM)))
        lam = rng.beta(self.alpha, self.alpha, count)
        partners = torch.arange(count).roll(1)
        mixed, lam = self._mix(images, partners, lam, step)
        return mixed, ops.soft_labels(labels, partners, torch.from_numpy(lam), self.num_classes)

    @abstractmethod
    def _mix(self, images: torch.Tensor, partners: torch.Tensor, lam: Floats, step: int) -> tuple[torch.Tensor, Floats]:
        """The mixed images, and which share of each is its own."""


class MixUp(_Mix):
    """Blends each image of a batch with the one before it.

    Args:
        num_classes: length of the soft labels.
        alpha: lam comes from the Beta(alpha, alpha) distribution.
        seed: seed of the draws.

    Example:
        >>> mixup = MixUp(num_classes=1000, alpha=0.2)
        >>> for step, (images, labels) in enumerate(loader):
        ...     images, soft_labels = mixup(images, labels, step=step)
        ...     loss = torch.nn.functional.cross_entropy(model(images), soft_labels)

    Source: Zhang et al., "mixup: Beyond empirical risk minimization", ICLR 2018.
    """

    def _mix(self, images: torch.Tensor, partners: torch.Tensor, lam: Floats, step: int) -> tuple[torch.Tensor, Floats]:
        return ops.mixup(images, partners, torch.from_numpy(lam)), lam


class CutMix(_Mix):
    """Pastes a rectangle of the image before into each image of a batch.

    Args:
        num_classes: length of the soft labels.
        alpha: lam comes from the Beta(alpha, alpha) distribution.
        seed: seed of the draws.

    Source: Yun et al., "CutMix: Regularization strategy to train strong classifiers", ICCV 2019.
    """

    def _mix(self, images: torch.Tensor, partners: torch.Tensor, lam: Floats, step: int) -> tuple[torch.Tensor, Floats]:
        height, width = images.shape[-2:]
        key, numbers = Key(seed=self.seed, epoch=step), np.arange(len(images))
        across, down = (
            uniform(random_words(numbers, stream, key) >> np.uint64(32))
            for stream in (Stream.CUT_ACROSS, Stream.CUT_DOWN)
        )
        half = 0.5 * np.sqrt(1.0 - lam)
        columns, rows = (across * width).astype(np.int64), (down * height).astype(np.int64)
        half_wide, half_tall = (half * width).astype(np.int64), (half * height).astype(np.int64)
        left, right = np.clip(columns - half_wide, 0, width), np.clip(columns + half_wide, 0, width)
        top, bottom = np.clip(rows - half_tall, 0, height), np.clip(rows + half_tall, 0, height)
        boxes = np.stack((left, top, right, bottom), axis=1)
        own = 1.0 - (right - left) * (bottom - top) / (height * width)
        return ops.cutmix(images, partners, torch.from_numpy(boxes)), own
