"""Training and validation loaders over an image folder or shards."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import Subset

from fastdata import transforms as T  # noqa: N812 - as torchvision's own examples do
from fastdata.dataloader.loader import DataLoader
from fastdata.errors import DatasetError, OptionError
from fastdata.loaders import BACKENDS
from fastdata.order.epoch_sampler import EpochSampler
from fastdata.pipeline.config import OnError
from fastdata.shards.open_images import open_images, slow_to_read
from fastdata.system.cpus import parse_workers
from fastdata.system.stack_level import users_level
from fastdata.terminal.flags import check, check_flags, flag
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks

__all__ = ["DataOptions", "Loaders", "make_loaders"]

Augment: TypeAlias = Literal["none", "randaugment", "trivial", "jitter", "ra", "ta_wide"]
_VALIDATION_EVERY = 5  # without a val folder every fifth sample of a class is held out


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Options of the data and its transforms; each field is also a flag of `python -m fastdata.train`."""

    data_path: str = flag(
        "", "image folder or shards; without train and val inside, a fifth of the images is held out for validation"
    )
    data_backend: str = flag("auto", "decode backend", choices=("auto", *BACKENDS))
    workers: str | int = flag("auto", "decode threads per process, or auto", short="-j")
    train_crop_size: int = flag(224, "side of the random crops, in pixels", lies_in="[1, inf)")
    val_resize_size: int = flag(
        256, "validation: resize the shorter side to this many pixels before the centre crop", lies_in="[1, inf)"
    )
    val_crop_size: int = flag(224, "validation: side of the centre crop, in pixels", lies_in="[1, inf)")
    smallest_crop: int = flag(
        0, "progressive resizing: side of the crops in the first epoch; 0 turns it off", lies_in="[0, inf)"
    )
    min_scale: float = flag(0.08, "smallest share of the image's area in a random crop", lies_in="(0, 1]")
    auto_augment: Augment = flag(
        "none", "augmentation policy, applied to whole batches on the device; ra and ta_wide are torchvision's names"
    )
    ra_sampler: bool = flag(False, "repeated augmentation: every sample comes ra_reps times, in views of its own")
    ra_reps: int = flag(3, "how often, with ra_sampler", lies_in="[1, inf)")
    random_erase: float = flag(0.0, "probability of RandomErasing", lies_in="[0, 1]")
    on_error: OnError = flag("raise", "what to do with a damaged image")
    drop_last: bool = flag(False, "drop the last training batch if it is not full")

    def __post_init__(self) -> None:
        object.__setattr__(self, "workers", str(self.workers))
        check_flags(self)
        parse_workers(str(self.workers))
        for small, large in (("smallest_crop", "train_crop_size"), ("val_crop_size", "val_resize_size")):
            sides = getattr(self, small), getattr(self, large)
            check(sides[0] <= sides[1], f"{small}={sides[0]} must not exceed {large}={sides[1]}")

    def sides(self, epochs: int) -> dict[str, int]:
        """Sides of the images that the model will get, in pixels, by the option that sets them."""
        first = {"smallest_crop": _side(self, 0, epochs)} if self.smallest_crop else {}
        return {**first, "train_crop_size": self.train_crop_size, "val_crop_size": self.val_crop_size}


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The loaders for `fit`: a function from an epoch to its training loader, and the validation loader."""

    train: Callable[[int], DataLoader[Any]]
    val: DataLoader[Any]
    classes: list[str]


def make_loaders(data: DataOptions, options: TrainOptions, ranks: Ranks) -> Loaders:
    """Makes the loaders for this process's share of the data.

    Raises:
        OptionError: data_path is not given.
        DatasetError: data_path holds neither an image folder nor shards.
    """
    if not data.data_path:
        raise OptionError("data_path is not given; name an image folder or a folder of shards")
    if ranks.is_main and (problem := slow_to_read(data.data_path)) is not None:
        warnings.warn(problem, stacklevel=users_level())
    train_set, val_set, classes = _datasets(data)
    common: dict[str, Any] = {
        "num_workers": "auto" if data.workers == "auto" else parse_workers(str(data.workers)),
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
            repetitions = data.ra_reps if data.ra_sampler else 1
            sampler = EpochSampler(dataset, order="random", seed=options.seed, repetitions=repetitions, **shares)
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
    share = epoch / max(1.0, epochs * 2 / 3)
    if share >= 1:
        return data.train_crop_size
    grown = data.smallest_crop + share * (data.train_crop_size - data.smallest_crop)
    return max(data.smallest_crop, min(data.train_crop_size, round(grown / 16) * 16))


def _train_transform(data: DataOptions, side: int) -> T.Compose:
    augment: dict[str, list[Any]] = {
        "none": [],
        "randaugment": [T.RandAugment()],
        "trivial": [T.TrivialAugmentWide()],
        "jitter": [T.ColorJitter(0.4, 0.4, 0.4)],
        "ra": [T.RandAugment()],
        "ta_wide": [T.TrivialAugmentWide()],
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
    train = open_images(train_path)
    if train is not None:
        val = open_images(_inside(data.data_path, "val"))
        if val is None:
            raise DatasetError(
                f"{data.data_path} has a train folder but no val folder; use data_path={train_path} to hold out a "
                "fifth of it for validation"
            )
        if train.classes != val.classes:
            odd = sorted(set(train.classes or ()) ^ set(val.classes or ()))
            raise DatasetError(f"train and val of {data.data_path} have different classes: {', '.join(odd[:5])}")
        return train, val, max((_classes(each, data.data_path) for each in (train, val)), key=len)
    whole = open_images(data.data_path)
    if whole is None:
        raise DatasetError(f"{data.data_path} is neither an image folder nor a folder of shards")
    seen: dict[int, int] = {}
    held_out: list[int] = []
    rest: list[int] = []
    for index, label in enumerate(whole.targets):
        seen[label] = seen.get(label, 0) + 1
        (held_out if seen[label] % _VALIDATION_EVERY == 0 else rest).append(index)
    if not held_out:
        raise DatasetError(
            f"{data.data_path} has fewer than {_VALIDATION_EVERY} images in every class, too few to hold some out; "
            "make train and val folders"
        )
    return Subset(whole, rest), Subset(whole, held_out), _classes(whole, data.data_path)


def _classes(dataset: Any, path: str) -> list[str]:
    """Names of the classes; of shards that have none, their numbers."""
    if dataset.classes is not None:
        return list(dataset.classes)
    labels = dataset.labels
    if len(labels) == 0 or labels.min() < 0:
        raise DatasetError(
            f"{path} has samples without a label, so it cannot be used for training; convert it again from a labelled "
            "source with fastdata convert"
        )
    return [str(number) for number in range(int(labels.max()) + 1)]


def _inside(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _seen_by(dataset: Any, transform: Any) -> Any:
    """A copy of the dataset with a transform; the list of samples is shared."""
    if isinstance(dataset, Subset):
        return Subset(_seen_by(dataset.dataset, transform), dataset.indices)
    other = copy.copy(dataset)
    other.transform = transform
    return other
