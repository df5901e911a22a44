"""What every loader is asked to do: the images, the views, and torchvision's way of making them."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from drawn import write_annotated
from torchvision import transforms, tv_tensors
from torchvision.transforms import v2

__all__ = [
    "MEAN",
    "STD",
    "WORKLOADS",
    "Twice",
    "Workload",
    "make_images",
    "target_transform",
    "tensor_transform",
    "transform",
]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One comparison.

    Attributes:
        name: of the workload.
        told: what it is, in words.
        images: where they come from: "imagenet", "camera", "tiny", "png" (folders of files), "masks" (files with drawn
            masks and boxes, see `drawn`), "pixels32" or "pixels256" (uint8 arrays).
        view: "train" (RandomResizedCrop, flip), "val" (Resize, CenterCrop), "randaugment", "simclr", "cifar",
            "segmentation" (RandomResizedCrop, flip; with a mask) or "detection" (flip, Resize; with boxes).
        size: side of the result in pixels; in detection the short side.
        count: images in one pass; a multiple of the batch.
        batch: images in a batch.
        reads: what loaders may read: "files", "shards", or "any" of both, as each is meant to be used.
    """

    name: str
    told: str
    images: str
    view: str = "train"
    size: int = 224
    count: int = 512
    batch: int = 64
    reads: str = "any"

    @property
    def is_pixels(self) -> bool:
        """True for arrays of decoded pixels instead of image files."""
        return self.images.startswith("pixels")

    @property
    def stored_side(self) -> int:
        """Side of the stored pixels."""
        return int(self.images.removeprefix("pixels"))

    @property
    def has_targets(self) -> bool:
        """True where images come with masks or boxes instead of class numbers."""
        return self.images == "masks"

    @property
    def views(self) -> int:
        """Tensors made of each image."""
        return 2 if self.view == "simclr" else 1

    @property
    def is_random(self) -> bool:
        """False where every loader has to give the same pixels."""
        return self.view != "val"


WORKLOADS = {
    workload.name: workload
    for workload in [
        Workload(name="train", told="ImageNet, training, from files", images="imagenet", count=1024,
                 reads="files"),
        Workload(name="shards", told="ImageNet, training, from each one's shards", images="imagenet", count=1024,
                 reads="shards"),
        Workload(name="val", told="ImageNet, validation", images="imagenet", view="val"),
        Workload(name="randaugment", told="ImageNet, RandAugment", images="imagenet", view="randaugment"),
        Workload(name="simclr", told="ImageNet, SimCLR's two views", images="imagenet", view="simclr", count=128),
        Workload(name="camera", told="camera originals, training", images="camera", count=64, batch=16),
        Workload(name="tiny", told="tiny JPEGs, training", images="tiny", size=56, count=4096),
        Workload(name="png", told="PNGs of 256 px, training", images="png"),
        Workload(name="raw", told="stored pixels of 256 px, training", images="pixels256"),
        Workload(name="cifar", told="CIFAR: crop of padded 32 px, flip", images="pixels32", view="cifar", size=32,
                 count=20_480, batch=128),
        Workload(name="segmentation", told="segmentation: images with masks, training", images="masks",
                 view="segmentation", size=480, count=256, batch=16, reads="files"),
        Workload(name="detection", told="detection: images with boxes, training", images="masks",
                 view="detection", size=480, count=256, batch=16, reads="files"),
    ]
}  # fmt: skip


class Twice:
    """Two views of an image."""

    def __init__(self, once: Callable[[Any], Any]) -> None:
        self.once = once

    def __call__(self, image: Any) -> tuple[Any, Any]:
        """Both."""
        return self.once(image), self.once(image)


def transform(work: Workload) -> Any:
    """Torchvision's transform of PIL images."""
    return _made(work, transforms, [transforms.ToTensor(), transforms.Normalize(MEAN, STD)])


def tensor_transform(work: Workload) -> Any:
    """Torchvision's transform of uint8 tensors, [3, H, W]: the way its v2 transforms are meant to be used."""
    return _made(work, v2, [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


def target_transform(work: Workload, *, on_tensors: bool) -> Any:
    """Torchvision's v2 transform of an image with its mask or boxes, in the order of its references.

    Args:
        work: the workload.
        on_tensors: True for images that are tensors from the start, False for Pillow's.
    """
    steps = [v2.RandomResizedCrop(work.size, antialias=True), v2.RandomHorizontalFlip()]
    if work.view == "detection":
        steps = [v2.RandomHorizontalFlip(), v2.Resize(work.size, antialias=True)]
    kinds = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    tail = [v2.ToDtype(kinds, scale=True), v2.Normalize(MEAN, STD)]
    if work.view == "detection":
        tail.append(v2.SanitizeBoundingBoxes())
    return v2.Compose([*steps, *([] if on_tensors else [v2.ToImage()]), *tail, v2.ToPureTensor()])


def _made(work: Workload, library: Any, tail: list[Any]) -> Any:
    """The views of a workload by one of torchvision's two libraries, which have the same names."""
    if work.view == "val":
        return library.Compose([library.Resize(work.size * 8 // 7), library.CenterCrop(work.size), *tail])
    crop = library.RandomResizedCrop(work.size)
    if work.view == "cifar":
        crop = library.RandomCrop(work.size, padding=4)
    steps = [crop, library.RandomHorizontalFlip()]
    if work.view == "randaugment":
        steps.append(library.RandAugment())
    if work.view == "simclr":
        steps += [
            library.RandomApply([library.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            library.RandomGrayscale(0.2),
            library.GaussianBlur(work.size // 20 * 2 + 1),
        ]
    whole = library.Compose([*steps, *tail])
    return Twice(whole) if work.views == 2 else whole


def make_images(work: Workload, source: Path, to: Path) -> None:
    """Writes a workload's images: a folder per class, or pixels.npy and labels.npy; images repeat, files do not.

    Args:
        work: the workload.
        source: one folder of images per class.
        to: the folder to write; nothing happens where it exists.
    """
    if to.exists():
        return
    files = sorted(path for path in source.glob("*/*") if path.is_file())
    if len(files) > work.count:
        files = [files[number * len(files) // work.count] for number in range(work.count)]
    classes = sorted({path.parent.name for path in files})
    unfinished = to.with_name(to.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if work.is_pixels:
        _write_pixels(work, files, classes, unfinished)
    elif work.has_targets:
        write_annotated([files[number % len(files)] for number in range(work.count)], unfinished)
    else:
        for name in classes:
            (unfinished / name).mkdir()
        for number in range(work.count):
            path = files[number % len(files)]
            kind = {"tiny": ".jpg", "png": ".png"}.get(work.images, path.suffix.lower())
            target = unfinished / path.parent.name / f"{number:06}{kind}"
            if work.images in ("tiny", "png"):
                target.write_bytes(_resized(path, 64 if work.images == "tiny" else 256, kind))
            else:
                shutil.copyfile(path, target)  # a copy of its own, so that a pass reads as many bytes as files
    unfinished.rename(to)


def _write_pixels(work: Workload, files: list[Path], classes: list[str], to: Path) -> None:
    side = work.stored_side
    once = []
    for path in files:
        with PIL.Image.open(path) as image:
            once.append(np.asarray(_square(image.convert("RGB"), side)))
    chosen = np.arange(work.count) % len(files)
    np.save(to / "pixels.npy", np.stack(once)[chosen])
    np.save(to / "labels.npy", np.array([classes.index(path.parent.name) for path in files], np.int64)[chosen])


def _square(image: PIL.Image.Image, side: int) -> PIL.Image.Image:
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    return image.resize((side, side), PIL.Image.Resampling.BICUBIC, (left, top, left + short, top + short))


def _resized(path: Path, short: int, kind: str) -> bytes:
    with PIL.Image.open(path) as image:
        scale = short / min(image.size)
        small = image.convert("RGB").resize((round(image.width * scale), round(image.height * scale)))
    buffer = io.BytesIO()
    small.save(buffer, "PNG" if kind == ".png" else "JPEG", quality=90)
    return buffer.getvalue()
