"""Row of gpu_check.py that trains on datasets of one's own, with torch's loader and with fastdata's."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_row import CLASSES, Row
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from fastdata import DataLoader
from fastdata.system.cpus import usable_cpus

__all__ = ["own_code"]

ROUNDS, MEASURED_S, BATCH = 2, 3.0, 64  # for each loader; small batches, which workers end soon when a loop is left
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def own_code(row: Row) -> dict[str, Any]:
    """Images per second of training in bfloat16 by each loader, and with one batch again and again."""
    if importlib.util.find_spec("torchvision") is None:
        return {"outcome": "skipped", "why": "it needs torchvision"}
    torch.backends.cudnn.benchmark = True
    return {name: _compared(row, form(row)) for name, form in _FORMS.items()}


class _Form:
    """A dataset, and what is learnt from a batch of it.

    Args:
        samples: the dataset.
        learn: the loss of a batch on the device.
        model: what learns.
        images: images of a sample.
    """

    def __init__(
        self, samples: Dataset[Any], learn: Callable[[Any], torch.Tensor], model: nn.Module, images: int = 1
    ) -> None:
        self.samples, self.learn, self.model, self.images = samples, learn, model, images


class _Files(Dataset[Any]):
    """Photographs again and again, opened by Pillow: what `make` makes of each."""

    def __init__(self, row: Row, make: Callable[[Image.Image, Path, int], Any]) -> None:
        folders = sorted(path for path in row.images().iterdir() if path.is_dir())
        self.files = [(path, label % CLASSES) for label, each in enumerate(folders) for path in sorted(each.iterdir())]
        self.count, self.make = 64 if row.dry else 1_000_000, make

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        path, label = self.files[index % len(self.files)]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.make(image, path, label)


def _classes(row: Row) -> _Form:
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(_size(row)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    transform = transforms.Compose([*steps, transforms.Normalize(_MEAN, _STD)])
    model = _resnet(row)
    return _Form(
        _Files(row, lambda image, path, label: (transform(image), label)),
        lambda batch: nn.functional.cross_entropy(model(_last(batch[0])), batch[1]),
        model,
    )


def _two_views(row: Row) -> _Form:
    """SimCLR's augmentations."""
    from torchvision import transforms

    color = transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    steps = [transforms.RandomResizedCrop(_size(row)), transforms.RandomHorizontalFlip(), color]
    steps += [transforms.RandomGrayscale(0.2), transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)]
    transform = transforms.Compose(steps)
    model = _resnet(row)

    def learn(batch: Any) -> torch.Tensor:
        first, second = (nn.functional.normalize(model(_last(view))) for view in batch)
        return nn.functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(first), device=first.device))

    return _Form(_Files(row, lambda image, path, label: (transform(image), transform(image))), learn, model, images=2)


def _masks(row: Row) -> _Form:
    """Segmentation: an image and a mask of classes, cropped, flipped and resized together."""
    from torchvision import tv_tensors
    from torchvision.models.segmentation import fcn_resnet50
    from torchvision.transforms import v2

    masks = Path(row._scratch.name) / "masks"
    for path in sorted(row.images().rglob("*.*")):
        if path.is_file() and not (mask := masks / f"{path.parent.name}-{path.stem}.png").exists():
            masks.mkdir(exist_ok=True)
            levels = np.asarray(Image.open(path).convert("L"))
            Image.fromarray((levels // 32).astype(np.uint8)).save(mask)
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(_size(row), antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
            v2.Normalize(_MEAN, _STD),
        ]
    )
    model = fcn_resnet50(weights_backbone=None, num_classes=CLASSES).to(row.device, memory_format=torch.channels_last)

    def make(image: Image.Image, path: Path, label: int) -> Any:
        mask = Image.open(masks / f"{path.parent.name}-{path.stem}.png")
        return transform(image, tv_tensors.Mask(mask))

    def learn(batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(_last(batch[0]))["out"], batch[1].squeeze(1))

    return _Form(_Files(row, make), learn, model)


_FORMS: dict[str, Callable[[Row], _Form]] = {
    "classes": _classes,
    "two views": _two_views,
    "image and mask": _masks,
}


def _compared(row: Row, form: _Form) -> dict[str, Any]:
    """Rates of each loader, round by round and by turns."""
    workers = 2 if row.dry else min(16, usable_cpus())
    common: dict[str, Any] = {"batch_size": _batch(row), "num_workers": workers, "shuffle": True, "drop_last": True}
    kinds: dict[str, Any] = {"torch": torch.utils.data.DataLoader, "fastdata": DataLoader}
    optimizer = torch.optim.SGD(form.model.parameters(), lr=0.01)
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    batch: Any = None
    for _ in range(1 if row.dry else ROUNDS):
        for name, kind in kinds.items():
            loader = kind(form.samples, pin_memory=not row.dry, **common)
            rate, batch = _rate(row, form, optimizer, loader, 0 if row.dry else 2 * workers)
            rates[name].append(rate)
            print(name, round(rate), flush=True)  # into the row's log
    alone, _ = _rate(row, form, optimizer, [batch] * (4 if row.dry else 1_000), 2)
    return {**{name: [round(each) for each in found] for name, found in rates.items()}, "no loading": round(alone)}


def _rate(row: Row, form: _Form, optimizer: Any, loader: Any, skipped: int) -> tuple[float, Any]:
    """Images per second after the first `skipped` batches, which workers have ready; and the last batch."""
    counted, began, batch = 0, time.perf_counter(), None
    for number, batch in enumerate(loader):
        if number == skipped:
            row.wait()
            began = time.perf_counter()
        here = [each.to(row.device, non_blocking=True) for each in batch]
        with torch.autocast(row.device.type, torch.bfloat16):
            loss = form.learn(here)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        counted += number >= skipped
        if number > skipped and time.perf_counter() - began > MEASURED_S:
            break
    row.wait()
    return form.images * _batch(row) * counted / (time.perf_counter() - began), batch


def _resnet(row: Row) -> nn.Module:
    from torchvision.models import resnet18, resnet50

    made: Any = (resnet18 if row.dry else resnet50)(num_classes=CLASSES)
    model: nn.Module = made.to(row.device, memory_format=torch.channels_last)
    return model


def _last(images: torch.Tensor) -> torch.Tensor:
    return images.to(memory_format=torch.channels_last)


def _size(row: Row) -> int:
    return 32 if row.dry else 224


def _batch(row: Row) -> int:
    return 8 if row.dry else BATCH
