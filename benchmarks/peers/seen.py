"""What a pass of a loader looks like: shapes, labels, moments of the pixels, and what masks or boxes cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from workloads import MEAN, STD, Workload

__all__ = ["Seen"]

COMPARED = 128  # images whose pixels are kept


class Seen:
    """The sums over the batches of a pass."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.shapes: Counter[str] = Counter()
        self.labels: Counter[int] = Counter()
        self.sums, self.squares = np.zeros(3), np.zeros(3)
        self.images = 0
        self.covered = 0.0
        self.kept: list[np.ndarray] = []

    def add(self, images: Any, targets: Any) -> None:
        """A batch, as `programs.Loader` gives it."""
        for view in images if isinstance(images, (list, tuple)) else [images]:
            self._add_images(view if view.ndim == 4 else view[None])
        if self.work.view == "segmentation":
            self._count("mask", targets)
            self.covered += float((targets > 0).float().mean((1, 2)).sum())
        elif self.work.view == "detection":
            for image, target in zip(images, targets, strict=True):
                self._add_boxes(image, target)
        else:
            self._add_labels(torch.as_tensor(targets).flatten())

    def _add_images(self, view: torch.Tensor) -> None:
        """Images [N, 3, H, W]; where their sizes differ, the corner that all have is kept."""
        self._count("", view)
        pixels = _levels(view)
        self.sums += pixels.mean((2, 3)).sum(0)
        self.squares += (pixels.astype(np.float64) ** 2).mean((2, 3)).sum(0)
        self.images += len(pixels)
        if sum(map(len, self.kept)) < COMPARED:
            corner = pixels[:, :, : self.work.size, : self.work.size]
            self.kept.append(np.rint(corner).clip(0, 255).astype(np.uint8))

    def _add_boxes(self, image: torch.Tensor, target: dict[str, torch.Tensor]) -> None:
        boxes = target["boxes"]
        self._count("box", boxes)
        self._add_labels(target["labels"])
        sizes = (boxes[:, 2:] - boxes[:, :2]).float()
        self.covered += float(sizes.prod(1).sum()) / (image.shape[-1] * image.shape[-2])

    def _add_labels(self, numbers: Iterable[Any]) -> None:
        self.labels.update(int(number) for number in numbers)

    def _count(self, what: str, values: torch.Tensor) -> None:
        """Of images in detection the short side only: the other one is rounded, one way or another."""
        sides: Sequence[int] = values.shape[1:]
        if self.work.view == "detection" and values.ndim == 4:
            sides = [values.shape[1], min(values.shape[2:])]
        told = f"{what} {values.dtype} {list(sides)}".replace("torch.", "").strip()
        self.shapes[told] += len(values)

    def save_pixels(self, to: str) -> None:
        """Of its first images, as uint8 [N, 3, H, W]."""
        np.save(to, np.concatenate(self.kept)[:COMPARED])

    def to_dict(self) -> dict[str, Any]:
        """What `checks.problem` compares."""
        mean = self.sums / self.images
        deviation = np.sqrt(self.squares / self.images - mean**2)
        told = {"shapes": self.shapes, "labels": self.labels, "mean": mean.tolist(), "std": deviation.tolist()}
        return {**told, "covered": self.covered / self.images}


def _levels(view: torch.Tensor) -> np.ndarray:
    """Normalised values as levels from 0 to 255, [N, 3, H, W]."""
    mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (MEAN, STD))
    levels: np.ndarray = (view.float().cpu().numpy() * std + mean) * 255
    return levels
