"""Datasets that decode with OpenCV: what fastdata gains as they are, and what a change gains.

Setup: random crops of 224 pixels, flips and normalising, from files to batches of float32, four ways: "imread" and
albumentations (RandomResizedCrop, HorizontalFlip, Normalize, ToTensorV2), by torch's loader and by fastdata's; the crop
and the flip by torchvision on `fastdata.open_image`, then albumentations for the array (Normalize, ToTensorV2), by
fastdata's; and torchvision for all of it, by fastdata's.  The same for a resize of the shorter side to 256 and a centre
crop, as in validation, and for CoarseDropout with RandomBrightnessContrast behind the crop.  Batches of 64, two worker
processes; CPU time of the whole process tree.

    python benchmarks/opencv.py FOLDER
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import albumentations as A  # noqa: N812 - as everybody calls it
import cv2
import numpy as np
import torch
import torch.utils.data
from albumentations.pytorch import ToTensorV2
from harness import benchmark
from PIL import Image
from torchvision.transforms import v2

import fastdata
from fastdata.measuring.rounds import compare

RESULT = Path(__file__).parent / "results" / "opencv.json"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORKERS, BATCH = 2, 64


class Files(torch.utils.data.Dataset[Any]):
    """Images, each made by a function of its path."""

    def __init__(self, paths: list[str], made: Callable[[str], Any]) -> None:
        self.paths, self.made = paths, made

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.made(self.paths[index]), index


class ByOpenCV:
    """Decoded by OpenCV, augmented by albumentations."""

    def __init__(self, *steps: Any) -> None:
        self.transform = A.Compose([*steps, A.Normalize(MEAN, STD), ToTensorV2()])

    def __call__(self, path: str) -> Any:
        """Returns the float32 tensor of a file."""
        return self.transform(image=cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB))["image"]


class FirstByTorchvision:
    """Opened by fastdata and cropped by torchvision, then augmented by albumentations."""

    def __init__(self, begin: Any, *steps: Any) -> None:
        self.begin = begin
        self.transform = A.Compose([*steps, A.Normalize(MEAN, STD), ToTensorV2()])

    def __call__(self, path: str) -> Any:
        """Returns the float32 tensor of a file."""
        image = self.begin(fastdata.open_image(path).convert("RGB"))
        return self.transform(image=np.array(image))["image"]


class ByTorchvision:
    """Opened by Pillow's function, transformed by torchvision."""

    def __init__(self, begin: Any, *steps: Any) -> None:
        self.transform = v2.Compose(
            [begin, *steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        )

    def __call__(self, path: str) -> Any:
        """Returns the float32 tensor of a file."""
        return self.transform(Image.open(path).convert("RGB"))


def works() -> dict[str, tuple[Any, Any, Any]]:
    """For each kind of work, the three ways to do it."""
    own = [A.RandomResizedCrop((224, 224)), A.HorizontalFlip()]
    crop = v2.Compose([v2.RandomResizedCrop(224), v2.RandomHorizontalFlip()])
    drop = [A.RandomBrightnessContrast(), A.CoarseDropout()]
    jitter = [v2.RandomApply([v2.ColorJitter(0.2, 0.2)], 0.5)]
    centre = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])
    return {
        "training": (ByOpenCV(*own), FirstByTorchvision(crop), ByTorchvision(crop)),
        "with dropout": (ByOpenCV(*own, *drop), FirstByTorchvision(crop, *drop), ByTorchvision(crop, *jitter)),
        "validation": (
            ByOpenCV(A.SmallestMaxSize(256), A.CenterCrop(224, 224)),
            FirstByTorchvision(centre),
            ByTorchvision(centre),
        ),
    }


def measured(given: Namespace) -> dict[str, Any]:
    """The four ways, for each work."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    found = sorted(str(path) for path in given.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    paths = (found * -(-given.images // len(found)))[: given.images]
    results: dict[str, Any] = {}
    for name, (by_opencv, mixed, by_torchvision) in works().items():
        loaders = {
            "OpenCV, torch": torch.utils.data.DataLoader(Files(paths, by_opencv), BATCH, num_workers=WORKERS),
            "OpenCV, fastdata": fastdata.DataLoader(Files(paths, by_opencv), BATCH, num_workers=WORKERS),
            "open_image, fastdata": fastdata.DataLoader(Files(paths, mixed), BATCH, num_workers=WORKERS),
            "torchvision, fastdata": fastdata.DataLoader(Files(paths, by_torchvision), BATCH, num_workers=WORKERS),
        }
        print(f"{name}\n")
        epochs = {kind: partial(iter, loader) for kind, loader in loaders.items()}
        results[name] = compare(epochs, "OpenCV, torch", images=len(paths), rounds=given.rounds)
    return {"versions": {"albumentations": A.__version__, "OpenCV": cv2.__version__}, "works": results}


if __name__ == "__main__":
    benchmark(__file__, measured, folder="folder of images", images=400, rounds=5)
