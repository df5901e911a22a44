"""Datasets of one's own: their transforms are fused, wherever they lie, and whole batches of images decoded."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import images
import pytest
import torch
import torchvision.transforms as v1
from own_tables import TRAIN, VALIDATE, VALIDATE_V2, Table, TwoViews, batches, flat, same
from PIL import Image, ImageOps
from taken_over import decodes_natively
from torch.utils.data import ConcatDataset, Dataset, Subset, get_worker_info
from torchvision.datasets import ImageFolder
from torchvision.datasets.vision import VisionDataset

from fastdata import DataLoader


class Preset:
    """A class around the transforms, as in torchvision's reference training script."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transforms = transform

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class Module(torch.nn.Module):
    def __init__(self, transform: torch.nn.Module) -> None:
        super().__init__()
        self.inner = transform

    def forward(self, image: Any) -> Any:
        return self.inner(image)


class Chosen(Table):
    """Picks one of several."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform=None)  # type: ignore[arg-type]
        self.by_name = {"validation": [transform]}

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        return self.by_name["validation"][0](Image.open(self.folder / name).convert("RGB")), int(label)


class Wrapper(Dataset[Any]):
    def __init__(self, inner: Dataset[Any]) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        image, label = self.inner[index]
        return {"image": image, "label": label, "index": index, "file": f"{index}.jpg"}


class Visions(VisionDataset):
    """With torchvision's base class and its StandardTransform."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform=transform, target_transform=lambda label: label + 1)
        self.table = Table(folder, None)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Any:
        name, label = self.table.rows[index]
        return self.transforms(Image.open(self.table.folder / name).convert("RGB"), int(label))  # type: ignore[misc]


DATASETS: dict[str, Callable[[Path], Dataset[Any]]] = {
    "table": lambda folder: Table(folder, VALIDATE),
    "v2": lambda folder: Table(folder, VALIDATE_V2),
    "preset": lambda folder: Table(folder, Preset(VALIDATE)),
    "preset of presets": lambda folder: Table(folder, Preset(Preset(VALIDATE))),
    "module": lambda folder: Table(folder, Module(VALIDATE_V2)),
    "dictionary": lambda folder: Chosen(folder, VALIDATE),
    "wrapper": lambda folder: Wrapper(Table(folder, VALIDATE)),
    "subset of a wrapper": lambda folder: Subset(Wrapper(Table(folder, Preset(VALIDATE))), [5, 3, 1, 0, 7]),
    "concatenation": lambda folder: ConcatDataset([Table(folder, VALIDATE), Table(folder, VALIDATE)]),
    "two views": lambda folder: TwoViews(folder, VALIDATE),
    "StandardTransform": lambda folder: Visions(folder, VALIDATE),
    "steps of its own": lambda folder: Table(
        folder, v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), lambda image: image.flip(0) * 2])
    ),
    "pictures only": lambda folder: Wrapper(Table(folder, v1.Compose([v1.Resize((24, 24)), v1.PILToTensor()]))),
}


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, 0) for name in DATASETS] + [(name, 2) for name in ("table", "wrapper", "two views", "steps of its own")],
)
def test_transforms_are_found_and_batches_are_torchs_to_the_last_bit(table: Path, name: str, workers: int) -> None:
    dataset = DATASETS[name](table)
    loader = DataLoader(dataset, 4, num_workers=workers, shuffle=True)
    ours = batches(loader)
    theirs = batches(torch.utils.data.DataLoader(dataset, 4, num_workers=workers, shuffle=True))
    assert same(ours, theirs)
    assert [type(each) for each in flat(ours)] == [type(each) for each in flat(theirs)]
    assert decodes_natively(loader)
    assert loader.stats()["samples"] >= len(dataset)  # type: ignore[arg-type]


def test_the_users_objects_stay_as_they_are(table: Path) -> None:
    preset = Preset(TRAIN)
    dataset = Wrapper(Table(table, preset))
    before = dict(vars(dataset)), dict(vars(dataset.inner)), dict(vars(preset))
    batches(DataLoader(dataset, 4))
    assert (vars(dataset), vars(dataset.inner), vars(preset)) == before
    assert preset.transforms is TRAIN


class Curious(Table):
    """Looks at what it calls, and counts."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform)
        self.calls, self.offset = 0, 0

    def __getitem__(self, index: int) -> Any:
        self.calls += 1
        assert isinstance(self.transform, v1.Compose)
        assert len(self.transform.transforms) == 4
        assert repr(self.transform).startswith("Compose(")
        return super().__getitem__(index)[0], index + self.offset


def test_attributes_are_the_users_in_the_same_process(table: Path) -> None:
    dataset = Curious(table, TRAIN)
    for number, (_, indices) in enumerate(DataLoader(dataset, 2)):
        assert dataset.calls == 2 * (number + 1)
        assert indices.tolist() == [2 * number + 100 * number, 2 * number + 1 + 100 * number]
        dataset.offset += 100


def test_crops_are_those_of_the_image_folder(table: Path) -> None:
    folder = ImageFolder(table, TRAIN)
    same_files = Table(table, TRAIN)
    same_files.rows = [(os.path.relpath(path, table), label) for path, label in folder.samples]
    expected = batches(DataLoader(folder, 4, seed=5))
    for options in ({}, {"num_workers": 2}):
        assert same(batches(DataLoader(same_files, 4, seed=5, **options)), expected)  # type: ignore[arg-type]


def test_epochs_views_and_seeds_differ(table: Path) -> None:
    loader = DataLoader(TwoViews(table, TRAIN), 14, seed=1)
    (first,), (second,) = list(loader), list(loader)
    one, other = first[0]
    assert not torch.equal(one, other)
    assert not torch.equal(one, second[0][0])
    (again,) = list(DataLoader(TwoViews(table, TRAIN), 14, seed=1, num_workers=1))
    assert same(again, first)


class StackedViews(Table):
    """Several views in one tensor, as people write it for contrastive learning."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        image = Image.open(self.folder / name).convert("RGB")
        return torch.stack([self.transform(image), self.transform(image)]), label


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"memory_format": torch.channels_last}])
def test_views_in_one_tensor_are_left_to_be_decoded_together(table: Path, options: dict[str, Any]) -> None:
    stacked = DataLoader(StackedViews(table, TRAIN), 5, seed=1, **options)
    for (views, _), (pair, _) in zip(stacked, DataLoader(TwoViews(table, TRAIN), 5, seed=1), strict=True):
        assert views.shape[1] == 2
        assert torch.equal(views, torch.stack(pair, dim=1))


@pytest.mark.parametrize("crops", [v1.FiveCrop(20), v1.TenCrop(20)])
@pytest.mark.parametrize("workers", [0, 2])
def test_five_and_ten_crops_are_torchvisions(table: Path, crops: Any, workers: int) -> None:
    def to_tensors(images: Any) -> torch.Tensor:
        return torch.stack([v1.functional.to_tensor(image) for image in images])

    transform = v1.Compose([v1.Resize(30), crops, v1.Lambda(to_tensors)])
    for dataset in (Table(table, transform), ImageFolder(table, transform)):
        theirs = batches(torch.utils.data.DataLoader(dataset, 5))
        assert same(batches(DataLoader(dataset, 5, num_workers=workers)), theirs)


class OpenedTwice(TwoViews):
    """The same views, of files that are opened for each."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        images = [Image.open(self.folder / name).convert("RGB") for _ in range(2)]
        return [self.transform(image) for image in images], label


@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_views_of_one_image_that_is_decoded_once_are_the_same(table: Path, tmp_path: Path, kind: str) -> None:
    folder = folders.changed_copy(table, tmp_path / "copy", {})
    if kind == "png":
        for path in folder.glob("*/*.jpg"):
            path.write_bytes(images.saved(90, 70, kind="PNG"))
    for transform in (TRAIN, v1.Compose([v1.RandomCrop(20), v1.PILToTensor()])):
        once, twice = (DataLoader(each(folder, transform), 5, seed=1) for each in (TwoViews, OpenedTwice))
        assert same(list(once), list(twice))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_an_epoch_continues_with_the_same_crops(table: Path, options: dict[str, Any]) -> None:
    dataset = Table(table, TRAIN)
    whole = batches(DataLoader(dataset, 4, shuffle=True, **options))
    torch.manual_seed(3)
    loader = DataLoader(dataset, 4, shuffle=True, **options)
    begun = list(itertools.islice(loader, 2))
    state = loader.state_dict()
    resumed = DataLoader(dataset, 4, shuffle=True, **options)
    resumed.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what the dataset might draw by itself
        assert same([*begun, *resumed], whole)


class WithWorkers(Table):
    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        return super().__getitem__(index)[0], -1 if info is None else info.id, self.greeting  # type: ignore[attr-defined]


def greet(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is WithWorkers
    info.dataset.greeting = 10 + worker  # type: ignore[attr-defined]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_worker_processes_are_torchs(table: Path, context: str) -> None:
    options: dict[str, Any] = {"num_workers": 2, "worker_init_fn": greet, "multiprocessing_context": context}
    dataset = WithWorkers(table, VALIDATE)
    ours = batches(DataLoader(dataset, 4, **options))
    assert same(ours, batches(torch.utils.data.DataLoader(dataset, 4, **options)))
    assert {int(worker) for _, workers, _ in ours for worker in workers} == {0, 1}


def test_persistent_workers_make_another_epoch_after_a_break(table: Path) -> None:
    loader = DataLoader(Table(table, TRAIN), 4, num_workers=2, persistent_workers=True, seed=2)
    first = next(iter(loader))
    epochs = [list(loader), list(loader)]
    assert [len(epoch) for epoch in epochs] == [4, 4]
    assert not same(epochs[0], epochs[1])
    fresh = DataLoader(Table(table, TRAIN), 4, seed=2)
    assert same(next(iter(fresh)), first)


class InBatches(Table):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def test_datasets_that_give_batches_are_asked_for_them(table: Path) -> None:
    dataset = InBatches(table, VALIDATE)
    assert same(batches(DataLoader(dataset, 4)), batches(torch.utils.data.DataLoader(dataset, 4)))
    (crops, _), *_ = DataLoader(InBatches(table, v1.Compose([v1.RandomCrop(24), v1.ToTensor()])), 4)
    assert len({crop.sum().item() for crop in crops}) == 4


def test_samples_that_are_made_together_draw_as_they_would_one_by_one(table: Path) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(24), v1.ColorJitter(0.4), v1.ToTensor()])
    alone, together, others = (
        batches(DataLoader(kind(table, transform), size, seed=5, shuffle=True))
        for kind, size in ((Table, 4), (InBatches, 4), (InBatches, 3))
    )
    assert same(alone, together)
    assert torch.equal(torch.cat([images for images, _ in others]), torch.cat([images for images, _ in together]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "collate",
    [list, lambda samples: tuple(zip(*samples, strict=True)), lambda samples: torch.stack([x for x, _ in samples])],
)
def test_collate_functions_of_ones_own(table: Path, collate: Callable[[Any], Any], workers: int) -> None:
    dataset, options = Table(table, VALIDATE), {"num_workers": workers, "collate_fn": collate}
    ours = batches(DataLoader(dataset, 4, **options))  # type: ignore[arg-type]
    assert same(ours, batches(torch.utils.data.DataLoader(dataset, 4, **options)))  # type: ignore[arg-type]
    assert {type(each) for each in flat(ours)} <= {torch.Tensor, int}


class Touching(Table):
    """Looks at pixels first."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        image = ImageOps.mirror(Image.open(self.folder / name).convert("RGB"))
        image.putpixel((0, 0), (index, 0, 0))
        return self.transform(image), label


def test_images_whose_pixels_were_touched_are_transformed_alike(table: Path) -> None:
    assert same(
        batches(DataLoader(Touching(table, VALIDATE), 4)),
        batches(torch.utils.data.DataLoader(Touching(table, VALIDATE), 4)),
    )
    crops = batches(DataLoader(Touching(table, TRAIN), 14, seed=4))
    assert same(crops, batches(DataLoader(Touching(table, TRAIN), 14, seed=4, num_workers=1)))


class AsTheyAre(Table):
    """Grey images stay grey."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        return self.transform(Image.open(self.folder / name)), label


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated")
def test_images_of_every_mode_and_kind(tmp_path: Path) -> None:
    files = {"grey.jpg": images.saved(mode="L"), "alpha.png": images.saved(mode="RGBA", kind="PNG")}
    files |= {"cmyk.jpg": images.saved(mode="CMYK"), "plain.jpg": images.jpeg(50, 40)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "labels.csv").write_text("".join(f"{name},0\n" for name in files))
    transform = v1.Compose([v1.Resize((24, 24)), v1.ToTensor()])
    for kind in (AsTheyAre, Table):
        dataset = kind(tmp_path, transform)
        assert same(batches(DataLoader(dataset, 1)), batches(torch.utils.data.DataLoader(dataset, 1)))
