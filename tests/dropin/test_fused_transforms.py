"""Datasets of one's own: their transforms are fused, wherever they lie, and whole batches of images decoded."""

from __future__ import annotations

import csv
import io
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import images
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate, get_worker_info
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.datasets.vision import VisionDataset

import fastdata
from fastdata import DataLoader
from fastdata.dataloader import map_style, verdict

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
TRAIN = v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])
VALIDATE = v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.ToTensor(), v1.Normalize(MEAN, STD)])
VALIDATE_V2 = v2.Compose([v2.Resize(30), v2.CenterCrop(24), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])


linux = pytest.mark.skipif(sys.platform != "linux", reason="has no /dev/fd for this")


class Table(Dataset[Any]):
    """A table of files and labels, as most people write it."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        with (folder / "labels.csv").open() as file:
            self.rows = list(csv.reader(file))
        self.folder, self.transform = folder, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        with Image.open(self.folder / name) as opened:
            image = opened.convert("RGB")
        return self.transform(image), int(label)


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


class TwoViews(Table):
    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        image = Image.open(self.folder / name).convert("RGB")
        return [self.transform(image), self.transform(image)], label


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


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen JPEGs with a table, grey and progressive ones among them; also a folder for ImageFolder."""
    folder = tmp_path_factory.mktemp("table")
    rows = []
    for number in range(14):
        name = f"{number % 2}/{number:02}.jpg"
        (folder / str(number % 2)).mkdir(exist_ok=True)
        options = {"progressive": True} if number == 3 else {}
        data = images.jpeg(60 + number, 50 + 2 * number, seed=number)
        (folder / name).write_bytes(images.saved(70, 60, **options) if options else data)
        rows.append((name, number))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


def batches(loader: Any, seed: int = 3) -> list[Any]:
    torch.manual_seed(seed)
    return list(loader)


def flat(value: Any) -> list[Any]:
    """Everything in a batch, in order."""
    if isinstance(value, dict):
        return [each for key in sorted(value) for each in flat(value[key])]
    if isinstance(value, list | tuple):
        return [each for part in value for each in flat(part)]
    return [value]


def same(ours: Any, theirs: Any) -> bool:
    pairs = zip(flat(ours), flat(theirs), strict=True)
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


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
    assert "accelerated: images are decoded by the native core" in loader.explain().splitlines()[0]
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
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}):
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


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}])
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


# ---- what goes wrong


@pytest.fixture
def damaged(table: Path, tmp_path: Path) -> Path:
    """One file is cut short, one is no image, one is missing."""
    whole = (table / "0/04.jpg").read_bytes()
    copy = folders.changed_copy(
        table, tmp_path / "damaged", {"0/04.jpg": whole[: len(whole) // 2], "1/05.jpg": b"no image"}
    )
    (copy / "0/08.jpg").unlink()
    return copy


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "threads"}])
def test_samples_that_fail_are_skipped_or_replaced_and_nothing_else_is_lost(
    damaged: Path, options: dict[str, Any]
) -> None:
    dataset = Table(damaged, TRAIN)
    loader = DataLoader(dataset, 4, on_error="skip", **options)
    labels = [label for _, labels in loader for label in labels.tolist()]
    assert labels == [0, 1, 2, 3, 6, 7, 9, 10, 11, 12, 13]
    assert loader.stats()["failures"] == 3
    assert {index for index, *_ in loader.stats()["quarantine"]} == {4, 5, 8}
    replaced = DataLoader(dataset, 4, on_error="replace", seed=1, **options)
    first, second = list(replaced), list(DataLoader(dataset, 4, on_error="replace", seed=1))
    assert [len(labels) for _, labels in first] == [4, 4, 4, 2]
    assert same(first, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_those_that_torch_would_show(damaged: Path, workers: int) -> None:
    ours, theirs = (
        iter(kind(Table(damaged, TRAIN), 1, num_workers=workers)) for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    outcomes: list[list[Any]] = [[], []]
    for outcome, iterator in zip(outcomes, (ours, theirs), strict=True):
        while True:
            try:
                outcome.append(next(iterator)[1].item())
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is
                outcome.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]
    assert "UnidentifiedImageError" in outcomes[0]


class Vanishing(Table):
    """Its files are gone when the sample has been made."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
            file.write((self.folder / name).read_bytes())
            file.flush()
            return self.transform(Image.open(file.name).convert("RGB")), int(label)


@pytest.mark.parametrize("workers", [0, 1])
def test_temporary_files_may_be_gone_before_they_are_decoded(table: Path, workers: int) -> None:
    dataset = Vanishing(table, VALIDATE)
    assert same(
        batches(DataLoader(dataset, 4, num_workers=workers)),
        batches(torch.utils.data.DataLoader(Table(table, VALIDATE), 4)),
    )


class Removing(Table):
    """Deletes a file of the dataset that is still to be decoded, or puts a smaller one in its place."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        path = self.folder / self.rows[index][0]
        if index == 1:
            path.unlink()
        if index == 6:
            path.write_bytes(images.jpeg(8, 8))
        return sample


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the test count as older than the program, so their paths are kept."""
    monkeypatch.setattr(map_style, "program_began", lambda: time.time() + 60)


@pytest.mark.usefixtures("old_files")
def test_files_that_vanish_or_change_before_they_are_decoded_are_made_again(table: Path, tmp_path: Path) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    iterator, outcomes = iter(DataLoader(Removing(copy, VALIDATE), 2, num_workers=1)), []
    while True:
        try:
            outcomes.append(next(iterator)[1].tolist())
        except StopIteration:
            break
        except fastdata.DecodeError as error:
            outcomes.append((error.index, os.path.basename(error.location)))
    assert [each for each in outcomes if isinstance(each, tuple)] == [(1, "01.jpg")]  # 6 was made again
    assert len(outcomes) == 7


class Faulty(Table):
    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise KeyError("a mistake of the user's")
        return None if index == 5 else super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "workers": "threads"}])
def test_mistakes_of_the_users_are_never_skipped(table: Path, options: dict[str, Any]) -> None:
    iterator = iter(DataLoader(Faulty(table, VALIDATE), 2, on_error="skip", **options))
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(KeyError, match="a mistake"):
        next(iterator)
    with pytest.raises(TypeError):  # None cannot be collated
        next(iterator)
    assert next(iterator)[1].tolist() == [6, 7]


# ---- what it says


@pytest.fixture
def not_warned() -> Any:
    verdict._warned.cache_clear()
    yield
    verdict._warned.cache_clear()


class Arrays(Table):
    """Gives its transform something else than images."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.rand(3, 40, 40)), index


FLOATS = v1.Compose([v1.RandomResizedCrop(24), v1.Normalize(MEAN, STD)])


@pytest.mark.usefixtures("not_warned")
def test_a_loader_of_images_that_gains_nothing_says_so_once(table: Path) -> None:
    loader = DataLoader(Arrays(table, FLOATS), 2)
    expected = "Arrays is loaded at torch's speed: Arrays decodes its images itself"
    with pytest.warns(fastdata.NotAccelerated, match=expected):
        batches(loader)
    assert loader.explain().startswith("not accelerated: Arrays decodes its images itself")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches(DataLoader(Arrays(table, FLOATS), 2))


def test_steps_of_a_transform_that_is_not_fused_as_a_whole(table: Path) -> None:
    steps = v1.Compose([lambda image: image.rotate(90), v1.RandomResizedCrop(20), v1.ToTensor()])
    loader = DataLoader(Table(table, steps), 2)
    batches(loader)
    explained = loader.explain()
    assert explained.startswith("partly accelerated: images are decoded by the native core")
    assert "transform.transforms[1]: 1 of 1 steps fused" in explained


@pytest.mark.usefixtures("not_warned")
def test_others_are_not_warned_of(table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", fastdata.NotAccelerated)
        batches(DataLoader(Table(table, TRAIN), 2))
        batches(DataLoader(Table(table, lambda image: TRAIN(image)), 2))
        batches(DataLoader(torch.utils.data.TensorDataset(torch.rand(20, 3, 8, 8)), 2))
    assert verdict._warned() == []


def seeds(worker: int) -> None:
    """A worker_init_fn that could do anything."""


def pl_worker_init_function(worker: int, rank: int | None = None) -> None:
    """Stands where Lightning's would."""


pl_worker_init_function.__module__ = "lightning.fabric.utilities.seed"


def test_the_way_is_named(table: Path) -> None:
    folder = ImageFolder(table, TRAIN)
    assert "image pipeline" in DataLoader(folder, 2, num_workers=1, worker_init_fn=pl_worker_init_function).explain()
    by_processes = DataLoader(folder, 2, num_workers=1, worker_init_fn=seeds)
    assert by_processes.explain().startswith("not known before the first batches")
    assert "1 worker process run" in by_processes.explain()
    assert same(batches(by_processes, 5), batches(DataLoader(folder, 2), 5))
    assert by_processes.explain().startswith("accelerated: images are decoded by the native core")
    own = Table(table, v1.Compose([v1.RandomResizedCrop(24), v1.ElasticTransform(), v1.ToTensor()]))
    text = DataLoader(own, 2, num_workers=2, workers="threads").explain()
    assert "1 of 3 steps fused, then ElasticTransform, ToTensor per sample" in text
    assert "2 threads of this process make samples and decode, as asked" in text
    with pytest.raises(fastdata.OptionError, match="workers='fibres'"):
        DataLoader(own, workers="fibres")  # type: ignore[arg-type]


def test_default_collate_alone_stacks_pending_images(table: Path) -> None:
    samples = [Table(table, VALIDATE)[index] for index in range(3)]
    assert default_collate(samples)[0].shape == (3, 3, 24, 24)


# ---- what a review of hard use found


class Closing(Table):
    """Holds something that is closed when the dataset goes."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform)
        self.file = (folder / "labels.csv").open()
        self.get = self.take
        self.calls = 0

    def __del__(self) -> None:
        self.file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "file": None}

    def take(self, index: int) -> Any:
        self.calls += 1
        self.file.seek(0)
        return super().__getitem__(index)[0], self.calls

    def __getitem__(self, index: int) -> Any:
        return self.get(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_datasets_are_not_copied(table: Path, workers: int) -> None:
    dataset = Closing(table, VALIDATE)
    for _ in range(2):
        loader = DataLoader(dataset, 4, num_workers=workers)
        calls = [call for _, calls in loader for call in calls.tolist()]
        assert calls == list(range(calls[0], calls[0] + 14))
        assert loader.explain().startswith("accelerated")
        assert not dataset.file.closed
    del loader
    assert dataset.calls == (0 if workers else 28)


class Changing(Table):
    """Changes what it does in the middle of an epoch."""

    def __getitem__(self, index: int) -> Any:
        if index == 5:
            self.transform.transforms[0] = v1.Resize((24, 24))  # type: ignore[attr-defined]
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_transforms_that_change_are_heeded(table: Path, workers: int) -> None:
    made = [
        kind(
            Changing(table, v1.Compose([v1.Resize((30, 30)), v1.CenterCrop(24), v1.ToTensor()])), 1, num_workers=workers
        )
        for kind in (DataLoader, torch.utils.data.DataLoader)
    ]
    assert same(*map(batches, made))
    dataset = Table(table, TRAIN)
    iterator = iter(DataLoader(dataset, 4))
    next(iterator)
    dataset.transform = v1.Compose([v1.Resize((9, 9)), v1.ToTensor()])
    assert next(iterator)[0].shape == (4, 3, 9, 9)


class Caching(Table):
    """Keeps what it has made."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        super().__init__(folder, transform)
        self.made: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        if index not in self.made:
            self.made[index] = super().__getitem__(index)
        return self.made[index]


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_samples_that_are_kept_are_decoded_once(table: Path, options: dict[str, Any]) -> None:
    loader = DataLoader(Caching(table, VALIDATE), 4, **options)
    expected = batches(torch.utils.data.DataLoader(Table(table, VALIDATE), 4))
    for _ in range(3):
        epoch = batches(loader)
        assert {type(pixels) for pixels, _ in epoch} == {torch.Tensor}
        assert same(epoch, expected)


class Sack:
    """What nobody can look into."""

    def __init__(self, samples: list[Any]) -> None:
        self.pixels = torch.stack([pixels for pixels, _ in samples])


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_in_objects_of_ones_own_are_decoded(table: Path, workers: int) -> None:
    for sack in DataLoader(Table(table, VALIDATE), 4, num_workers=workers, collate_fn=Sack):
        assert type(torch.as_tensor(sack.pixels.numpy())) is torch.Tensor
        assert torch.tensor(sack.pixels.tolist()).shape[1:] == (3, 24, 24)


class Inner(Table):
    """Uses a loader of torch's for each sample."""

    def __getitem__(self, index: int) -> Any:
        loader = torch.utils.data.DataLoader(Subset(Table(self.folder, VALIDATE), [index]), batch_size=1)
        ((pixels, _),) = loader
        return pixels.mean(), index


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_of_torchs_inside_of_a_dataset_are_torchs(table: Path, workers: int) -> None:
    assert same(
        batches(DataLoader(Inner(table, VALIDATE), 4, num_workers=workers)),
        batches(torch.utils.data.DataLoader(Inner(table, VALIDATE), 4)),
    )


class Slow(Table):
    """The first sample is made at once, and the others only when somebody says so."""

    def __init__(self, folder: Path, go: Any) -> None:
        super().__init__(folder, VALIDATE)
        self.go = go

    def __getitem__(self, index: int) -> Any:
        if index > 0:
            self.go.wait()
        return super().__getitem__(index)


def test_a_batch_that_is_there_is_not_held_back(table: Path) -> None:
    go = torch.multiprocessing.get_context("fork").Event()
    iterator = iter(DataLoader(Slow(table, go), 1, num_workers=1, prefetch_factor=4, timeout=60))
    assert next(iterator)[1].tolist() == [0]  # would wait for ever
    go.set()
    assert len(list(iterator)) == 13


class Dying(Table):
    def __getitem__(self, index: int) -> Any:
        if index == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch raises in a signal handler
def test_a_worker_that_is_killed_ends_in_an_error(table: Path) -> None:
    for _ in range(2):
        with pytest.raises(Exception, match=r"exited unexpectedly|killed by signal|reset by peer|closed|EOF|Ran out"):
            list(DataLoader(Dying(table, VALIDATE), 1, num_workers=2))


def target_plus_one(label: int) -> int:
    info = get_worker_info()
    return label + (1000 if info is None else 1)


def test_functions_of_the_users_run_in_worker_processes(table: Path) -> None:
    folder = ImageFolder(
        table, VALIDATE, target_transform=target_plus_one, loader=lambda path: Image.open(path).convert("RGB")
    )
    loader = DataLoader(folder, 4, num_workers=1)
    assert "worker process" in loader.explain()
    assert same(batches(loader), batches(torch.utils.data.DataLoader(folder, 4, num_workers=1)))


class Joint(Table):
    """Its tensors know that they are images."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return isinstance(image, tv_tensors.Image), image, label


def test_tensors_are_of_the_class_that_the_transform_makes(table: Path) -> None:
    transform = v2.Compose([v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    ours, theirs = (batches(kind(Joint(table, transform), 4)) for kind in (DataLoader, torch.utils.data.DataLoader))
    assert same(ours, theirs)


@pytest.mark.usefixtures("old_files")
def test_errors_of_datasets_without_transforms_name_their_sample(table: Path, tmp_path: Path) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    outcomes = []
    iterator = iter(DataLoader(Removing(copy, lambda image: VALIDATE(image)), 2, num_workers=1))
    while True:
        try:
            next(iterator)
        except StopIteration:
            break
        except fastdata.DecodeError as error:
            outcomes.append(error.index)
    assert outcomes == [1]


@pytest.mark.usefixtures("old_files")
@pytest.mark.parametrize("collate", [None, list])
def test_what_only_the_decoder_finds_is_skipped_with_every_collate_function(
    table: Path, tmp_path: Path, collate: Callable[[Any], Any] | None
) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    loader = DataLoader(Removing(copy, VALIDATE), 2, num_workers=1, collate_fn=collate, on_error="skip")
    assert sum(len(batch if collate is list else batch[1]) for batch in loader) == 13
    assert [index for index, *_ in loader.stats()["quarantine"]] == [1]
    assert loader.stats()["samples"] == 13


class Odd(Table):
    """Opens what is no file at rest."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder, VALIDATE)
        self.kind = kind

    def __getitem__(self, index: int) -> Any:
        data = (self.folder / self.rows[index][0]).read_bytes()
        if self.kind == "closed":
            file = io.BytesIO(data)
            file.close()
            return self.transform(Image.open(file)), index
        if self.kind == "socket":
            return self.transform(self.of_a_socket(data)), index
        reading, writing = os.pipe()
        writer = threading.Thread(target=lambda: (os.write(writing, data), os.close(writing)))
        writer.start()
        if self.kind == "pipe":
            with open(reading, "rb") as file:
                return self.transform(Image.open(file).convert("RGB")), index
        sample = self.transform(Image.open(f"/dev/fd/{reading}").convert("RGB")), index
        writer.join()
        os.close(reading)
        return sample

    @staticmethod
    def of_a_socket(data: bytes) -> Image.Image:
        here, there = socket.socketpair()
        with here, there:
            writer = threading.Thread(target=lambda: (there.sendall(data), there.shutdown(socket.SHUT_WR)))
            writer.start()
            with here.makefile("rb") as file:
                image = Image.open(file).convert("RGB")
            writer.join()
        return image


@pytest.mark.filterwarnings("ignore::fastdata.NotAccelerated", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Pillow leaves a pipe open
@pytest.mark.parametrize("kind", ["pipe", "socket", "closed", pytest.param("path of a pipe", marks=linux)])
def test_what_is_no_file_at_rest_is_opened_by_pillow(table: Path, kind: str) -> None:
    def outcome(loader: Any) -> Any:
        try:
            return batches(loader)
        except Exception as error:  # noqa: BLE001 - whatever it is
            return type(error), str(error)

    ours, theirs = (outcome(each(Odd(table, kind), 7)) for each in (DataLoader, torch.utils.data.DataLoader))
    assert same(ours, theirs)


@pytest.mark.parametrize("limit", [100, 2900], ids=["refused", "warned of"])
def test_huge_images_of_ones_own_datasets_are_pillows(table: Path, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    warnings_or_errors = []
    for each in (DataLoader, torch.utils.data.DataLoader):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", Image.DecompressionBombWarning)
            try:
                list(each(Table(table, VALIDATE), 7))
                error = None
            except Image.DecompressionBombError as bomb:
                error = str(bomb).split("\n")[0]
        kinds = {w.category for w in warned if w.category is Image.DecompressionBombWarning}
        warnings_or_errors.append((error, kinds))
    ours, theirs = warnings_or_errors
    assert ours == theirs
    assert ours[0] or ours[1]


SPAWNED = """
import sys
from pathlib import Path
import torch
from fastdata import DataLoader, transforms


class Late(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).rglob("*.jpg"))
        self.transform = transforms.Compose([transforms.CenterCrop(20), transforms.ToTensor()])

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        from PIL import Image

        return self.transform(Image.open(self.paths[index]).convert("RGB"))


if __name__ == "__main__":
    loader = DataLoader(Late(sys.argv[1]), 7, num_workers=1, multiprocessing_context="spawn")
    print([tuple(batch.shape) for batch in loader], loader.explain().startswith("accelerated"))
"""


@pytest.mark.slow
def test_worker_processes_that_import_pillow_late(table: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    done = subprocess.run([sys.executable, program, table], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[(7, 3, 20, 20), (7, 3, 20, 20)] True\n", done.stderr


AUGMENTED = v1.Compose(
    [
        v1.RandomResizedCrop(24),
        v1.RandomHorizontalFlip(),
        v1.RandAugment(),
        v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.6),
        v1.ToTensor(),
        v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
        v1.RandomErasing(0.6),
    ]
)


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 2, "workers": "threads"}, {"backend": "pil"}]
)
def test_augmentations_are_fused(table: Path, options: dict[str, Any]) -> None:
    """As the image pipeline makes them of the same files."""
    folder = ImageFolder(table, AUGMENTED)
    expected = batches(DataLoader(folder, 3, seed=7))
    fused = DataLoader(folder, 3, seed=7, worker_init_fn=seeds, **options)
    if "workers" in options or not options.get("num_workers"):
        fused = DataLoader(Files(folder), 3, seed=7, **options)
    assert same(batches(fused), expected)
    assert fused.explain().startswith("accelerated: images are decoded")


class Files(Dataset[Any]):
    """The same files as an image folder."""

    def __init__(self, folder: ImageFolder) -> None:
        self.samples, self.transform = folder.samples, folder.transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label


@pytest.mark.parametrize("workers", [0, 1])
def test_augmentations_without_chance_are_torchs(table: Path, workers: int) -> None:
    always = [
        v1.RandomEqualize(1.0),
        v1.ColorJitter((0.5, 0.5)),
        v1.RandomInvert(1.0),
        v1.RandomAdjustSharpness(3, 1.0),
    ]
    steps = v1.Compose([v1.Resize(30), v1.CenterCrop(24), *always, v1.ToTensor()])
    ours, theirs = (
        each(Table(table, steps), 2, num_workers=workers) for each in (DataLoader, torch.utils.data.DataLoader)
    )
    assert "transform: 7 of 7 steps fused" in ours.explain()
    assert same(batches(ours), batches(theirs))


class Views(Table):
    """Two views, of which one is looked at, and pixels that were touched before."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.folder / self.rows[index][0]).convert("RGB")
        first, second = self.transform(image), self.transform(image)
        image.load()[0, 0]
        return first, second + 0.25, float(second.sum()), self.transform(image)


def test_augmented_images_that_somebody_looks_at(table: Path) -> None:
    """The same numbers, whoever makes them when."""
    loaders = [DataLoader(Views(table, AUGMENTED), 3, seed=7, num_workers=workers) for workers in (0, 1)]
    one, other = map(batches, loaders)
    assert same(one, other)
    assert all(torch.isfinite(each).all() for batch in one for each in batch)
    sums = [float((batch[1][row] - 0.25).sum()) for batch in one for row in range(len(batch[1]))]
    assert sums == pytest.approx([float(each) for batch in one for each in batch[2]], abs=0.05)
