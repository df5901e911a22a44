"""Training and validation loaders over a folder or shards."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

from fastdata import transforms as T  # noqa: N812 - as torchvision's own examples do
from fastdata.dataloader import DataLoader
from fastdata.datasets import ImageFolder
from fastdata.errors import DatasetError, OptionError
from fastdata.image_work import ON_ERROR
from fastdata.loaders import BACKENDS
from fastdata.samplers import EpochSampler
from fastdata.shards.dataset import ShardDataset
from fastdata.train.options import TrainOptions, flag
from fastdata.train.ranks import Ranks

__all__ = ["DataOptions", "Loaders", "make_loaders", "slow_storage"]

AUGMENTS = ("none", "randaugment", "trivial", "jitter")
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "glusterfs", "fuse.sshfs", "beegfs", "9p"}
_VIRTUAL = ("vd", "xvd", "loop", "dm-", "zram")  # these say they rotate, whatever is below them
_VALIDATION_EVERY = 5  # without a val folder every fifth sample of a class is held out


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where images come from and how they are seen; each field is a flag of `python -m fastdata.train`, too."""

    data_path: str = flag(
        "", "a folder or shards, with train and val inside, or one with classes, of which a fifth is held out"
    )
    data_backend: str = flag("auto", "who decodes", choices=("auto", *BACKENDS))
    workers: str = flag("auto", "decode threads per process, or auto", short="-j")
    train_crop_size: int = flag(224, "side of the random crops, in pixels")
    val_resize_size: int = flag(256, "shorter side before the middle is taken for validation")
    val_crop_size: int = flag(224, "side of the middle that is validated")
    smallest_crop: int = flag(0, "progressive resizing: side in the first epoch, growing to train_crop_size; 0 is off")
    min_scale: float = flag(0.08, "smallest share of the image that a random crop shows")
    auto_augment: str = flag("none", "none, randaugment, trivial, jitter; on the device", choices=AUGMENTS)
    random_erase: float = flag(0.0, "probability of erasing a rectangle")
    on_error: str = flag("raise", "what a damaged image does: raise, skip, replace", choices=ON_ERROR)
    drop_last: bool = flag(False, "leave out the last batch if it is not full")

    def __post_init__(self) -> None:
        if self.workers != "auto" and not self.workers.isdigit():
            raise OptionError(f"workers={self.workers!r}; accepted: a whole number from 0 on, or auto")
        if not 0 < self.min_scale <= 1:
            raise OptionError(f"min_scale={self.min_scale} is not a share between 0 and 1")
        if self.smallest_crop > self.train_crop_size:
            raise OptionError(f"smallest_crop={self.smallest_crop} is above train_crop_size={self.train_crop_size}")
        if self.val_crop_size > self.val_resize_size:
            raise OptionError(f"val_crop_size={self.val_crop_size} is above val_resize_size={self.val_resize_size}")


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """What `fit` needs: a function from an epoch to its training loader, and the validation loader."""

    train: Callable[[int], DataLoader[Any]]
    val: DataLoader[Any]
    classes: list[str]


def make_loaders(data: DataOptions, options: TrainOptions, ranks: Ranks) -> Loaders:
    """Loaders of this process's share of the data.

    Raises:
        DatasetError: there is nothing at data_path.
    """
    if not data.data_path:
        raise OptionError("data_path is not given; it names a folder of images or of shards")
    if ranks.is_main and (problem := slow_storage(data.data_path)) is not None:
        warnings.warn(problem, stacklevel=2)
    train_set, val_set, classes = _datasets(data)
    common: dict[str, Any] = {
        "num_workers": data.workers if data.workers == "auto" else int(data.workers),
        "backend": data.data_backend,
        "device": options.torch_device(),
        "memory_format": torch.channels_last if options.channels_last else torch.contiguous_format,
        "pin_memory": options.torch_device().type == "cuda",
        "seed": options.seed,
        "on_error": data.on_error,
    }
    shares: dict[str, Any] = {"num_replicas": ranks.world_size, "rank": ranks.rank, "uneven": "keep"}
    made: dict[int, DataLoader[Any]] = {}

    def train(epoch: int) -> DataLoader[Any]:
        side = _side(data, epoch, options.epochs)
        if side not in made:
            made.clear()
            dataset = _seen_by(train_set, _train_transform(data, side))
            sampler = EpochSampler(dataset, order="random", seed=options.seed, **shares)
            more: dict[str, Any] = {"sampler": sampler, "drop_last": data.drop_last, "augment_on": "device"}
            made[side] = DataLoader(dataset, options.batch_size, **more, **common)
        return made[side]

    val_dataset = _seen_by(val_set, _val_transform(data))
    val_sampler = EpochSampler(val_dataset, order="sequential", **shares)
    return Loaders(
        train=train, val=DataLoader(val_dataset, options.batch_size, sampler=val_sampler, **common), classes=classes
    )


def _side(data: DataOptions, epoch: int, epochs: int) -> int:
    """Side of an epoch's crops: grows in steps of 16 pixels until two thirds of the run are over.

    Source: the idea of Howard's fast.ai entry to DAWNBench, 2018.
    """
    if not data.smallest_crop:
        return data.train_crop_size
    share = min(1.0, epoch / max(1.0, epochs * 2 / 3))
    grown = data.smallest_crop + share * (data.train_crop_size - data.smallest_crop)
    return min(data.train_crop_size, round(grown / 16) * 16)


def _train_transform(data: DataOptions, side: int) -> T.Compose:
    augment: dict[str, list[Any]] = {
        "none": [],
        "randaugment": [T.RandAugment()],
        "trivial": [T.TrivialAugmentWide()],
        "jitter": [T.ColorJitter(0.4, 0.4, 0.4)],
    }
    steps: list[Any] = [T.RandomResizedCrop(side, scale=(data.min_scale, 1.0)), T.RandomHorizontalFlip()]
    steps += [*augment[data.auto_augment], T.ToTensor(), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)]
    return T.Compose([*steps, T.RandomErasing(data.random_erase)] if data.random_erase else steps)


def _val_transform(data: DataOptions) -> T.Compose:
    middle: list[Any] = [T.Resize(data.val_resize_size), T.CenterCrop(data.val_crop_size)]
    return T.Compose([*middle, T.ToTensor(), T.Normalize(T.IMAGENET_MEAN, T.IMAGENET_STD)])


def _datasets(data: DataOptions) -> tuple[Any, Any, list[str]]:
    """Training and validation samples without a transform, and the names of the classes."""
    train_path = _inside(data.data_path, "train")
    train = _open(train_path)
    if train is not None:
        val = _open(_inside(data.data_path, "val"))
        if val is None:
            raise DatasetError(
                f"{data.data_path} has a train folder, but none called val; point at {train_path} to hold out a fifth"
            )
        classes = _classes(train, data.data_path)
        if (others := _classes(val, data.data_path)) != classes:
            odd = sorted(set(classes) ^ set(others))
            raise DatasetError(f"train and val of {data.data_path} have different classes: {', '.join(odd[:5])}")
        return train, val, classes
    whole = _open(data.data_path)
    if whole is None:
        raise DatasetError(f"there is neither a folder nor a set of shards at {data.data_path}")
    seen: dict[int, int] = {}
    held_out: list[int] = []
    rest: list[int] = []
    for index, label in enumerate(whole.targets):
        seen[label] = seen.get(label, 0) + 1
        (held_out if seen[label] % _VALIDATION_EVERY == 0 else rest).append(index)
    if not held_out:
        raise DatasetError(f"{data.data_path} has too few images per class to hold any out; make train and val folders")
    return Subset(whole, rest), Subset(whole, held_out), _classes(whole, data.data_path)


def _classes(dataset: Any, path: str) -> list[str]:
    if dataset.classes is None:
        raise DatasetError(f"the samples of {path} have no classes to train on")
    return list(dataset.classes)


def _inside(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _open(path: str) -> Any:
    if "://" in path:
        try:
            return ShardDataset(path)
        except DatasetError:  # there is none at this place
            return None
    if any(Path(path).glob("*.tar")) or (Path(path) / "manifest.json").exists():
        return ShardDataset(path)
    return ImageFolder(path) if Path(path).is_dir() else None


def _seen_by(dataset: Any, transform: Any) -> Any:
    """A copy of the dataset with a transform; the list of samples is shared."""
    if isinstance(dataset, Subset):
        return Subset(_seen_by(dataset.dataset, transform), dataset.indices)
    other = copy.copy(dataset)
    other.transform = transform
    return other


def slow_storage(
    path: str, *, mounts: Path = Path("/proc/self/mounts"), devices: Path = Path("/sys/dev/block")
) -> str | None:
    """Why reading small files at random from a path will be slow, and what helps; None where nothing says so.

    Args:
        path: a folder of images, or of shards, for which there is nothing to say.
        mounts: the kernel's list of file systems.
        devices: its description of block devices, by number.
    """
    if "://" in path or any(any(Path(path).glob(pattern)) for pattern in ("*.tar", "*/*.tar")):
        return None
    try:
        real, number = os.path.realpath(path), os.stat(path).st_dev
        places = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    except OSError:  # not Linux
        return None
    inside = [(place, kind) for place, kind in places if f"{real}/".startswith(f"{place.rstrip('/')}/")]
    kind = max(inside, key=lambda place: len(place[0]), default=("", ""))[1]
    advice = "shards are read in long stretches: fastdata convert FOLDER SHARDS, then EpochSampler(order='windowed')"
    if kind in _NETWORK:
        return f"{path} lies on a network file system ({kind}); {advice}"
    device = (devices / f"{os.major(number)}:{os.minor(number)}").resolve()
    disk = device if (device / "queue").exists() else device.parent  # a partition's disk
    rotates = disk / "queue" / "rotational"
    if disk.name.startswith(_VIRTUAL) or not rotates.exists() or rotates.read_text().strip() != "1":
        return None
    return f"{path} lies on a rotating disk; {advice}"
