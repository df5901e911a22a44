"""Programs on which deferred decoding gains little: small images, used one by one, or already in memory."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sources import HALVES, Made, bare_package, load, normalized, pipeline, stub
from torchvision import transforms
from torchvision.datasets import CIFAR10

SIDE, CLASSES = 32, 10


def _thumbnails(photographs: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Photographs as CIFAR's arrays are, (N, 32, 32, 3), four places of each, with labels."""
    squares = []
    for path in sorted(path for path in photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")):
        with Image.open(path) as image:
            small = image.convert("RGB").resize((2 * SIDE, 2 * SIDE))
        squares += [small.crop((x, y, x + SIDE, y + SIDE)) for x in (0, SIDE) for y in (0, SIDE)]
    return np.stack([np.asarray(square) for square in squares]), [at % CLASSES for at in range(len(squares))]


@pipeline("AshwinRJ/Federated-Learning-PyTorch", "src/update.py")
def federated(sources: Path, data: Path, photographs: Path) -> Made:
    """Federated learning: a client's part of CIFAR-10, whose samples are copied once more; batches of ten."""
    stub("tensorboardX")
    update = load(sources, "AshwinRJ/Federated-Learning-PyTorch", "update", "src")
    cifar = object.__new__(CIFAR10)
    cifar.data, cifar.targets = _thumbnails(photographs)
    cifar.transform, cifar.target_transform = transforms.Compose(normalized(HALVES, HALVES)), None
    return update.DatasetSplit(cifar, range(len(cifar.data))), {"batch_size": 10}


@pipeline("HobbitLong/RepDistiller", "dataset/cifar100.py")
def contrastive_distillation(sources: Path, data: Path, photographs: Path) -> Made:
    """Distillation by contrast: CIFAR with the indices of 4,096 negatives for each sample."""
    cifar100 = load(sources, "HobbitLong/RepDistiller", "dataset.cifar100")
    dataset = object.__new__(cifar100.CIFAR100InstanceSample)  # its constructor is for torchvision of 2018
    dataset.train_data, dataset.train_labels = _thumbnails(photographs)
    dataset.train, dataset.k, dataset.mode, dataset.is_sample = True, 4096, "exact", True
    labels = np.array(dataset.train_labels)
    dataset.cls_negative = [np.flatnonzero(labels != label) for label in range(CLASSES)]
    dataset.data = dataset.train_data
    steps = [transforms.RandomCrop(SIDE, padding=4), transforms.RandomHorizontalFlip(), *normalized()]
    dataset.transform, dataset.target_transform = transforms.Compose(steps), None
    return dataset, {"batch_size": 64}


@pipeline("baudm/parseq", "strhub/data/module.py")
def parseq(sources: Path, data: Path, photographs: Path) -> Made:
    """Text lines from an LMDB: timm's RandAugment with operations of its own, then a resize to 32 × 128."""
    stub("imgaug", "imgaug.augmenters")
    repository = "baudm/parseq"
    bare_package(sources, repository, "strhub", "strhub.data")
    augment = load(sources, repository, "strhub.data.augment")
    augment._RAND_TRANSFORMS.remove("PoissonNoise")  # imgaug's, which does not work with NumPy 2
    module = load(sources, repository, "strhub.data.module")
    transform = module.SceneTextDataModule.get_transform((32, 128), augment=True)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return module.LmdbDataset(str(data / "text-lines"), letters, 25, transform=transform), {"batch_size": 64}


@pipeline("JDAI-CV/fast-reid", "fastreid/data/build.py")
def fast_reid(sources: Path, data: Path, photographs: Path) -> Made:
    """Persons of Market-1501: turned as their EXIF says, made into arrays and back, resized, padded, cropped."""
    stub("yacs", "yacs.config", "iopath", "iopath.common", "iopath.common.file_io")
    repository = "JDAI-CV/fast-reid"
    bare_package(sources, repository, "fastreid", "fastreid.data", "fastreid.utils")
    stub("fastreid.utils.file_io")
    load(sources, repository, "fastreid.utils.file_io").PathManager = Namespace(open=open)
    build = load(sources, repository, "fastreid.data.transforms.build")
    common = load(sources, repository, "fastreid.data.common")
    on, off = {"ENABLED": True, "PROB": 0.5}, {"ENABLED": False, "PROB": 0.0}
    jitter = {"BRIGHTNESS": 0.15, "CONTRAST": 0.15, "SATURATION": 0.1, "HUE": 0.1}
    options = Namespace(
        SIZE_TRAIN=[256, 128],
        CROP=Namespace(**off, SIZE=[224], SCALE=[0.16, 1], RATIO=[0.75, 1.33]),
        PADDING=Namespace(**on, SIZE=10, MODE="constant"),
        REA=Namespace(**on, VALUE=[123.675, 116.28, 103.53]),
        CJ=Namespace(**off, **jitter),
        **{name: Namespace(**off) for name in ("AUGMIX", "AUTOAUG", "AFFINE", "RPT")},
        FLIP=Namespace(**on),
    )
    files = sorted((data / "market1501/bounding_box_train").iterdir())
    items = [(str(file), file.name[:4], file.name[5:7]) for file in files]
    return common.CommDataset(items, build.build_transforms(Namespace(INPUT=options))), {"batch_size": 64}


@pipeline("NVlabs/edm", "training/dataset.py")
def edm(sources: Path, data: Path, photographs: Path) -> Made:
    """Diffusion models: PNGs of 64 × 64, as arrays, without any transform."""
    stub("requests")
    dataset = load(sources, "NVlabs/edm", "training.dataset")
    return dataset.ImageFolderDataset(str(data / "png-64"), use_pyspng=False), {"batch_size": 64}


@pipeline("tjddus9597/Proxy-Anchor-CVPR2020", "code/train.py")
def proxy_anchor(sources: Path, data: Path, photographs: Path) -> Made:
    """Metric learning: asks each photograph for its number of channels by splitting it, then crops it."""
    stub("scipy", "scipy.io")
    base = load(sources, "tjddus9597/Proxy-Anchor-CVPR2020", "dataset.base", "code")
    utils = load(sources, "tjddus9597/Proxy-Anchor-CVPR2020", "dataset.utils", "code")
    dataset = base.BaseDataset(str(data), "train", utils.make_transform())
    dataset.im_paths = [str(path) for path in sorted((data / "imagenet/train").rglob("*.*"))]
    dataset.ys = [at % CLASSES for at in range(len(dataset.im_paths))]
    return dataset, {"batch_size": 64, "drop_last": True}
