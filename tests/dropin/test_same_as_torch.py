"""Batches equal to torch's DataLoader with torchvision: values, types, order, labels."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms._presets import ImageClassification

import fastdata
from fastdata import DataLoader
from fastdata import transforms as ft

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BACKENDS = ("pil", "native", "turbojpeg", "opencv")

# Transforms without randomness, whose batches must be torch's to the last bit.
FIXED = {
    "validation": v1.Compose([v1.Resize(72), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "validation v2": v2.Compose(
        [
            v2.Resize(72, antialias=True),
            v2.CenterCrop(64),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "uint8": v1.Compose([v1.Resize((50, 70)), v1.PILToTensor()]),
    "to float after": v1.Compose([v1.Resize((50, 70)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    "v2 dtype without scale": v2.Compose([v2.Resize((50, 70)), v2.PILToTensor(), v2.ToDtype(torch.float32)]),
    "v2 deprecated names": v2.Compose([v2.Resize([40, 40]), v2.PILToTensor(), v2.ConvertImageDtype()]),
    "v2 half": v2.Compose(
        [v2.Resize((50, 70)), v2.ToImage(), v2.ToDtype(torch.float16, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "v2 bfloat16": v2.Compose(
        [v2.Resize((50, 70)), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)]
    ),
    "a model's preset": ImageClassification(crop_size=64, resize_size=72),
    "padding": v1.Compose([v1.CenterCrop(300), v1.ToTensor()]),
    "crop of a tensor": v2.Compose([v2.Resize(60), v2.ToImage(), v2.CenterCrop((30, 44))]),
    "bicubic": v1.Compose(
        [v1.Resize((33, 47), interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    ),
    "shorter and longest": v1.Compose([v1.Resize(100, max_size=130), v1.CenterCrop(60), v1.PILToTensor()]),
    "always flipped": v1.Compose(
        [v1.Resize((40, 40)), v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), v1.ToTensor()]
    ),
    "tail on PIL": v1.Compose([v1.Resize((40, 40)), v1.Grayscale(3), v1.ToTensor()]),
    "tail on tensor": v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.Lambda(lambda x: x * 2)]),
    "tail on tv_tensor": v2.Compose([v2.Resize((40, 40)), v2.ToImage(), v2.Grayscale(3), v2.ToDtype(torch.float32)]),
    "second resize": v1.Compose([v1.Resize((80, 90)), v1.Resize((30, 20)), v1.ToTensor()]),
    "resize of a tensor": v2.Compose([v2.CenterCrop(50), v2.ToImage(), v2.Resize((31, 32), antialias=True)]),
}


def check_equal(ours: Any, torchs: Any) -> None:
    """Same structure, types, dtypes, shapes and values."""
    assert type(ours) is type(torchs)
    if isinstance(torchs, torch.Tensor):
        assert ours.dtype == torchs.dtype
        assert ours.shape == torchs.shape
        assert torch.equal(ours, torchs)
    elif isinstance(torchs, dict):
        assert list(ours) == list(torchs)
        for key in torchs:
            check_equal(ours[key], torchs[key])
    elif isinstance(torchs, list | tuple):
        assert len(ours) == len(torchs)
        for our, their in zip(ours, torchs, strict=True):
            check_equal(our, their)
    else:
        assert ours == torchs


def check_same_batches(dataset: Any, *, backend: str = "auto", **options: Any) -> None:
    torch.manual_seed(5)
    torchs = list(torch.utils.data.DataLoader(dataset, **options))
    torch.manual_seed(5)
    loader = DataLoader(dataset, backend=backend, **options)
    check_equal(list(loader), torchs)
    assert len(loader) == len(torchs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FIXED)
def test_batches_equal_torchvisions(folder: Path, name: str, backend: str) -> None:
    check_same_batches(ImageFolder(folder, FIXED[name]), backend=backend, batch_size=5)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_do_not_depend_on_threads(folder: Path, workers: int) -> None:
    loader = DataLoader(ImageFolder(folder, FIXED["validation"]), 4, num_workers=workers)
    check_equal(list(loader), list(torch.utils.data.DataLoader(loader.dataset, 4)))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "shuffle": True, "drop_last": True},
        {"batch_size": 7, "sampler": [3, 1, 20, 3, 3]},
        {"batch_sampler": [[1, 2], [30], [4, 5, 6]]},
        {"batch_size": 100},
        {},
    ],
    ids=str,
)
def test_order_and_labels_equal_torchs(folder: Path, options: dict[str, Any]) -> None:
    check_same_batches(ImageFolder(folder, FIXED["validation"]), **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda data: torch.utils.data.RandomSampler(data, replacement=True, num_samples=17),
        lambda data: torch.utils.data.RandomSampler(data, num_samples=90),
        lambda data: torch.utils.data.SubsetRandomSampler([1, 5, 9, 13]),
        lambda data: torch.utils.data.WeightedRandomSampler([1.0] * 39, 20),
        lambda data: torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(3)),
    ],
)
def test_samplers_draw_as_in_torch(folder: Path, make: Any) -> None:
    dataset = ImageFolder(folder, FIXED["validation"])
    torch.manual_seed(5)
    torchs = [batch[1].tolist() for batch in torch.utils.data.DataLoader(dataset, 4, sampler=make(dataset))]
    torch.manual_seed(5)
    assert [batch[1].tolist() for batch in DataLoader(dataset, 4, sampler=make(dataset))] == torchs


def test_generator_argument_decides_the_order(folder: Path) -> None:
    dataset = ImageFolder(folder, FIXED["validation"])
    labels = [
        [b[1].tolist() for b in loader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(11))]
        for loader in (DataLoader, torch.utils.data.DataLoader)
    ]
    assert labels[0] == labels[1]


def test_subsets_and_concatenations(folder: Path) -> None:
    dataset = ImageFolder(folder, FIXED["validation"])
    parts = ConcatDataset([Subset(dataset, [5, 2, 38]), dataset, Subset(Subset(dataset, range(20)), [19, 0])])
    check_same_batches(parts, batch_size=4)
    assert DataLoader(parts)._route().is_image_pipeline


def test_target_transform_and_live_attributes(folder: Path) -> None:
    dataset = ImageFolder(folder, FIXED["uint8"], target_transform=lambda label: {"class": label, "half": label / 2})
    loader = DataLoader(dataset, 6)
    check_equal(list(loader), list(torch.utils.data.DataLoader(dataset, 6)))
    dataset.transform = FIXED["validation"]
    check_equal(list(loader), list(torch.utils.data.DataLoader(dataset, 6)))


def test_own_image_folder_equals_torchvisions(folder: Path) -> None:
    ours, theirs = fastdata.ImageFolder(folder, FIXED["validation"]), ImageFolder(folder, FIXED["validation"])
    for name in ("classes", "class_to_idx", "samples", "imgs", "targets", "root", "extensions"):
        assert getattr(ours, name) == getattr(theirs, name), name
    check_equal(list(DataLoader(ours, 5)), list(torch.utils.data.DataLoader(theirs, 5)))
    check_equal(ours[3], theirs[3])
    check_equal(list(torch.utils.data.DataLoader(ours, 5)), list(torch.utils.data.DataLoader(theirs, 5)))


def test_own_transforms_equal_torchvisions(folder: Path) -> None:
    own = ft.Compose([ft.Resize(72), ft.CenterCrop(64), ft.ToTensor(), ft.Normalize(MEAN, STD)])
    theirs = ImageFolder(folder, FIXED["validation"])
    check_equal(list(DataLoader(fastdata.ImageFolder(folder, own), 5)), list(torch.utils.data.DataLoader(theirs, 5)))
    check_equal(fastdata.ImageFolder(folder, own)[7], theirs[7])
    assert type(ImageFolder(folder, own)[7][0]) is torch.Tensor


def test_collate_fn_sees_torchs_samples(folder: Path) -> None:
    seen: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        seen.append(samples)
        return torch.utils.data.default_collate(samples)

    dataset = ImageFolder(folder, FIXED["validation"])
    torchs = list(torch.utils.data.DataLoader(dataset, 4, collate_fn=collate))
    check_equal(list(DataLoader(dataset, 4, collate_fn=collate, defer=False)), torchs)
    half = len(seen) // 2
    check_equal(seen[half:], seen[:half])


def test_tail_receives_tv_tensors(folder: Path) -> None:
    kinds = []
    keep = v2.Compose([v2.Resize((8, 8)), v2.ToImage(), lambda image: kinds.append(type(image)) or image])
    next(iter(DataLoader(ImageFolder(folder, keep), defer=False)))
    assert kinds == [tv_tensors.Image]
    keep.transforms[-1] = lambda image: kinds.append(isinstance(image, tv_tensors.Image)) or image
    next(iter(DataLoader(ImageFolder(folder, keep))))
    assert kinds[1:] == [True]


def test_default_batches_are_contiguous_and_channels_last_on_request(folder: Path) -> None:
    for name in ("uint8", "validation"):
        dataset = ImageFolder(folder, FIXED[name])
        plain, last = (
            next(iter(DataLoader(dataset, 4, memory_format=layout)))[0]
            for layout in (torch.contiguous_format, torch.channels_last)
        )
        assert plain.is_contiguous()
        assert last.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(plain, last)


# Datasets that are not image folders behave as with torch's class.

Point = namedtuple("Point", ["x", "y"])


class Squares(Dataset[Any]):
    def __init__(self, make: Any) -> None:
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def as_dict(index: int) -> Any:
    return {"a": torch.tensor(index), "b": [index, str(index)]}


def as_point(index: int) -> Any:
    return Point(index, torch.ones(2) * index)


class Counting(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(11))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [as_dict, as_point, float])
def test_other_datasets_as_in_torch(make: Any, workers: int) -> None:
    check_same_batches(Squares(make), batch_size=3, shuffle=True, num_workers=workers)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_unbatched_and_iterable_as_in_torch(batch_size: int | None) -> None:
    check_same_batches(TensorDataset(torch.arange(10)), batch_size=batch_size)
    torchs = list(torch.utils.data.DataLoader(Counting(), batch_size=batch_size))
    check_equal(list(DataLoader(Counting(), batch_size=batch_size)), torchs)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_workers": -1}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"prefetch_factor": 2}, ValueError),
        ({"persistent_workers": True}, ValueError),
        ({"shuffle": True, "sampler": [1]}, ValueError),
        ({"batch_sampler": [[1]], "batch_size": 3}, ValueError),
        ({"batch_size": None, "drop_last": True}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"multiprocessing_context": "fork"}, ValueError),
        ({"multiprocessing_context": "nonsense", "num_workers": 1}, ValueError),
    ],
    ids=str,
)
def test_bad_arguments_raise_torchs_errors(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error) as torchs:
        torch.utils.data.DataLoader([1, 2], **options)
    with pytest.raises(error) as ours:
        DataLoader([1, 2], **options)
    assert str(ours.value) == str(torchs.value)


def test_attributes_cannot_be_set_as_in_torch() -> None:
    with pytest.raises(ValueError, match="should not be set"):
        DataLoader([1, 2]).batch_size = 4
