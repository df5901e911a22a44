"""The page that `explain()` gives: a fact a line, under its name, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from own_tables import Table
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision.datasets import CIFAR10, ImageFolder

from fastdata import DataLoader

SMALL = v1.Compose([v1.Resize((8, 8)), v1.ToTensor()])
ELASTIC = v1.Compose([v1.RandomResizedCrop(32), v1.ElasticTransform(), v1.ToTensor()])
AUGMENTED = v1.Compose([v1.RandomResizedCrop(24), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing()])


class Numbers(Dataset[int]):
    """Code that nobody knows."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def in_memory() -> CIFAR10:
    dataset = object.__new__(CIFAR10)
    dataset.data, dataset.targets = np.zeros((9, 32, 32, 3), np.uint8), [0] * 9
    dataset.transform, dataset.target_transform = SMALL, None
    return dataset


def line(loader: DataLoader[Any], name: str) -> list[str]:
    """What the lines of a name say."""
    return [text.partition(":")[2].strip() for text in loader.explain().splitlines() if text.startswith(f"{name}:")]


LINES: dict[str, tuple[Callable[[Path], DataLoader[Any]], dict[str, str]]] = {
    "the image pipeline": (
        lambda folder: DataLoader(ImageFolder(folder, SMALL), 4, num_workers=2),
        {
            "path": "fastdata's image pipeline",
            "source": "ImageFolder, 39 samples",
            "fused": "decode → Resize → ToTensor",
            "on batches": "nothing",
            "threads": "2 threads, 2 batches ahead",
            "on error": "raise (the default)",
        },
    ),
    "augmentations on the host": (
        lambda folder: DataLoader(ImageFolder(folder, AUGMENTED), num_workers="auto"),
        {
            "fused": "decode → RandomResizedCrop → RandAugment → ToTensor",
            "on batches": "RandomErasing",
            "why": "everything is fused",
        },
    ),
    "augmentations on batches": (
        lambda folder: DataLoader(ImageFolder(folder, AUGMENTED), augment_on="device"),
        {
            "fused": "decode → RandomResizedCrop → ToTensor",
            "on batches": "RandAugment → RandomErasing",
            "threads": "none; decodes in the calling thread (num_workers=0)",
        },
    ),
    "images in memory": (
        lambda folder: DataLoader(Subset(in_memory(), [3, 1, -2]), num_workers=1, backend="pil"),
        {
            "source": "Subset, 3 images in memory",
            "fused": "Resize → ToTensor",
            "backend": "none: pixels are in memory, nothing is decoded",
        },
    ),
    "code of one's own": (
        lambda folder: DataLoader(Table(folder, ELASTIC), 2),
        {
            "path": "torch's own DataLoader code, with fused transforms",
            "fused": "transform (RandomResizedCrop, ToTensor)",
            "per sample": "ElasticTransform",
        },
    ),
    "code of one's own in processes": (
        lambda folder: DataLoader(Table(folder, SMALL), 2, num_workers=1),
        {
            "path": "torch's own DataLoader code, with fused transforms",
            "workers": "1 worker process run the dataset's code; 1 thread of this process decode what it leaves "
            "encoded",
        },
    ),
    "no images": (
        lambda folder: DataLoader(Numbers(), seed=3, decode_device="cpu", backend="pil"),
        {
            "path": "torch's own DataLoader code",
            "decoding": "JPEGs and PNGs that it opens with PIL.Image.open are decoded by the native core when their "
            "pixels are used",
            "seed": "3: decides the order and what worker processes draw, not what the dataset draws in this process",
            "no effect": "backend='pil', decode_device='cpu'",
        },
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_say_what_is_done(folder: Path, table: Path, name: str) -> None:
    make, expected = LINES[name]
    loader = make(table if "own" in name else folder)
    assert {each: line(loader, each) for each in expected} == {each: [told] for each, told in expected.items()}


def test_a_counted_number_of_threads_says_how(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4, num_workers="auto")
    assert line(loader, "threads")[0].endswith("; num_workers='auto' is measured when the first epoch begins")
    list(loader)
    assert loader._findings.threads is not None
    (told,) = line(loader, "threads")
    assert told.startswith(f"{loader._findings.threads.threads} thread")
    assert told.endswith(f"; {loader._findings.threads.reason}")
    assert line(DataLoader(in_memory(), num_workers="auto"), "threads")[0].endswith(" batches ahead")


def test_explain_says_the_choice_before_the_first_batch_and_the_same_afterwards(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, SMALL), 4)
    before = loader.explain()
    assert "backend:    native: the first of native, turbojpeg, pil that is available\n" in before
    assert "fidelity:   exact: identical to Pillow's pixels\n" in before
    next(iter(loader))
    assert loader.explain() == before


@pytest.mark.parametrize(("backend", "tolerance"), [("native", 0), ("dali", 0.6), ("opencv", 0.5)])
def test_fidelity_is_that_of_the_backend_that_decodes(folder: Path, backend: Any, tolerance: float) -> None:
    told = "exact: identical to Pillow's pixels"
    if tolerance:
        told = f"as near as {backend} comes: mean difference from Pillow's pixels at most {tolerance} of 255"
    assert line(DataLoader(ImageFolder(folder, SMALL), backend=backend), "fidelity") == [told]


@pytest.mark.parametrize(
    ("transform", "options", "output"),
    [
        (SMALL, {}, "float32 (N, 3, 8, 8), contiguous; decoded straight into the batch"),
        (
            v1.Compose([v1.Resize((8, 9)), v1.PILToTensor()]),
            {"memory_format": torch.channels_last},
            "uint8 (N, 3, 8, 9), channels_last; decoded straight into the batch",
        ),
        (
            v2.Compose([v2.Resize((8, 8)), v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True)]),
            {},
            "bfloat16 (N, 3, 8, 8), contiguous; decoded straight into the batch",
        ),
        (SMALL, {"collate_fn": list}, "the result of list"),
    ],
)
def test_the_output_is_what_the_loop_receives(
    folder: Path, transform: Any, options: dict[str, Any], output: str
) -> None:
    loader = DataLoader(ImageFolder(folder, transform), 4, **options)
    assert line(loader, "output")[0].startswith(output)
    batch = next(iter(loader))
    if isinstance(batch[0], torch.Tensor) and "straight" in output:
        assert str(batch[0].dtype).removeprefix("torch.") == output.split()[0]
        assert str(tuple(batch[0].shape[1:]))[1:-1] in output


def test_no_step_is_told_twice(folder: Path) -> None:
    transform = v1.Compose([v1.Resize((8, 8)), v1.RandAugment(), v1.ToTensor(), v1.RandomErasing()])
    told = DataLoader(ImageFolder(folder, transform), augment_on="device").explain()
    assert [told.count(name) for name in ("Resize", "RandAugment", "ToTensor", "RandomErasing")] == [1] * 4


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda root: DataLoader(Numbers()), "use torchvision.datasets.ImageFolder or fastdata.ImageFolder"),
        (lambda root: DataLoader(ImageFolder(root)), "begins with RandomResizedCrop, Resize"),
        (
            lambda root: DataLoader(ImageFolder(root, SMALL), num_workers=1, worker_init_fn=print),
            "if it only sets seeds, remove it",
        ),
        (lambda root: DataLoader(ImageFolder(root, SMALL), batch_size=None), "pass a batch_size"),
        (
            lambda root: DataLoader(ImageFolder(root, SMALL, loader=np.load)),
            "use the dataset's default loader",
        ),
        (lambda root: DataLoader(ImageFolder(root, SMALL)), "num_workers='auto'"),
        (
            lambda root: DataLoader(
                ImageFolder(root, v1.Compose([v1.Resize((8, 8)), v1.PILToTensor(), v1.RandAugment()]))
            ),
            "augment_on='device'",
        ),
    ],
)
def test_explain_says_what_to_change(folder: Path, make: Any, change: str) -> None:
    assert any(change in each for each in line(make(folder), "to change"))


def test_nothing_to_change_is_no_advice(folder: Path) -> None:
    assert line(DataLoader(ImageFolder(folder, SMALL), num_workers=2), "to change") == []


class Rotated(Table):
    """Has Pillow work on whole images, before a transform whose steps are all fused."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(
            Image.open(self.folder / self.rows[index][0]).convert("RGB").rotate(10).resize((8, 8))
        ), index


def test_once_there_were_batches_the_verdict_has_the_reason_and_the_change(table: Path, tmp_path: Path) -> None:
    fused = DataLoader(Table(table, SMALL), 2)
    list(fused)
    assert fused.verdict().kind == "accelerated"
    assert line(fused, "why") == line(fused, "to change") == []
    small = DataLoader(Rotated(table, v1.ToTensor()), 2)
    list(small)
    assert small.verdict().kind == "little gain"
    assert line(small, "why") == line(small, "to change") == []
    dataset = Rotated(table, v1.ToTensor())
    dataset.folder, dataset.rows = tmp_path, [[f"{number}.jpg"] for number in range(4)]
    for name, *_ in dataset.rows:
        (tmp_path / name).write_bytes(images.jpeg(200, 150))
    rotated = DataLoader(dataset, 2)
    list(rotated)
    assert rotated.verdict().kind == "little gain"
    assert line(rotated, "why") == []
    assert line(rotated, "to change") == [rotated.verdict().change]
    tensors = DataLoader(TensorDataset(torch.zeros(4, 2)), 2)
    list(tensors)
    assert line(tensors, "to change") == []
