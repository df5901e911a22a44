"""draws="torch": training batches equal those of torch's DataLoader to the last bit, whatever the transforms draw."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image
from taken_over import decodes_natively, per_sample, pipelines_plan
from torch.utils.data import Dataset
from torchvision.datasets import CIFAR10, ImageFolder

from fastdata import DataLoader, OptionError
from fastdata.testing import synthetic_dataset

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def numbers(image: Any) -> Any:
    """A step of one's own that draws from Python's and NumPy's generators."""
    left, top = random.randrange(8), int(np.random.randint(8))
    return image.crop((left, top, left + 40, top + 40))


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "training": v1.Compose(
        [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    ),
    "colours and erasing": v1.Compose(
        [v1.RandomResizedCrop(32), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor(), v1.RandomErasing(p=0.5)]
    ),
    "TrivialAugment": v1.Compose([v1.RandomResizedCrop(32), v1.TrivialAugmentWide(), v1.PILToTensor()]),
    "v2": v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(32, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    ),
    "Python's and NumPy's numbers": v1.Compose([numbers, v1.RandomHorizontalFlip(), v1.ToTensor()]),
    "none that draws": v1.Compose([v1.Resize(36), v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
}


class Own(Dataset[Any]):
    """A dataset of one's own, with a number that it draws itself."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any]) -> None:
        self.paths, self.transform = sorted(folder.rglob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return self.transform(image.convert("RGB")), random.random()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_dataset(tmp_path_factory.mktemp("drawn"), classes=2, images_per_class=11, size_px=(64, 52))


def epochs(cls: Any, dataset: Any, **more: Any) -> Iterator[Any]:
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    loader = cls(dataset, 4, shuffle=True, **more)
    for _ in range(2):
        yield from loader
    yield torch.rand(3), torch.tensor([random.random(), np.random.rand()])  # what the program draws afterwards


@pytest.mark.parametrize(("dataset", "workers"), [(ImageFolder, 2), (Own, 0)])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_training_batches_equal_torchs(folder: Path, name: str, dataset: Any, workers: int) -> None:
    given = {"num_workers": workers}
    torchs = list(epochs(torch.utils.data.DataLoader, dataset(folder, TRANSFORMS[name]), **given))
    ours = list(epochs(DataLoader, dataset(folder, TRANSFORMS[name]), draws="torch", **given))
    assert len(ours) == len(torchs) == 13
    for (images, labels), (expected, theirs) in zip(ours, torchs, strict=True):
        torch.testing.assert_close(images, expected, rtol=0, atol=0)
        assert (type(images), images.stride()) == (type(expected), expected.stride())
        assert torch.equal(labels, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_of_every_start_method_draw_torchs_numbers(folder: Path, context: str) -> None:
    given = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True}
    dataset = ImageFolder(folder, TRANSFORMS["training"])
    torchs = list(epochs(torch.utils.data.DataLoader, dataset, **given))
    ours = list(epochs(DataLoader, dataset, draws="torch", **given))
    assert all(torch.equal(images, expected) for (images, _), (expected, _) in zip(ours, torchs, strict=True))


def test_the_image_pipeline_takes_torchs_numbers(folder: Path) -> None:
    training = DataLoader(ImageFolder(folder, TRANSFORMS["training"]), 4, num_workers=2, draws="torch")
    assert training.verdict().kind == "accelerated"
    assert len(pipelines_plan(training).fused) == 4
    assert per_sample(training) == []


ELSEWHERE: dict[str, dict[str, Any]] = {
    "num_workers=0": {"num_workers": 0},
    "persistent workers": {"persistent_workers": True},
    "in_order=False": {"in_order": False},
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_where_torchs_generators_are_needed_samples_are_made_by_them(folder: Path, name: str) -> None:
    given: dict[str, Any] = {"num_workers": 2, **ELSEWHERE[name]}
    loader = DataLoader(ImageFolder(folder, TRANSFORMS["training"]), 4, draws="torch", **given)
    list(loader)
    assert loader.verdict().kind == "accelerated"
    assert decodes_natively(loader)
    why = "draws='torch' has samples made where torch would make them"
    assert loader._route().reason.startswith((f"{why}: {name}", f"{why}: with {name}"))


def test_workers_that_seed_themselves_draw_what_they_seeded(folder: Path) -> None:
    given: dict[str, Any] = {"num_workers": 2, "worker_init_fn": torch.manual_seed}
    dataset = ImageFolder(folder, TRANSFORMS["training"])
    torchs, ours = (
        list(epochs(torch.utils.data.DataLoader, dataset, **given)),
        list(epochs(DataLoader, dataset, draws="torch", **given)),
    )
    assert all(torch.equal(images, expected) for (images, _), (expected, _) in zip(ours, torchs, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("backend", ["pil", "native"])
@pytest.mark.parametrize("workers", [1, 3])
def test_any_number_of_workers_and_any_exact_backend_give_torchs_batches(
    folder: Path, backend: str, workers: int
) -> None:
    dataset = ImageFolder(folder, TRANSFORMS["colours and erasing"])
    torchs = list(epochs(torch.utils.data.DataLoader, dataset, num_workers=workers))
    ours = list(epochs(DataLoader, dataset, draws="torch", num_workers=workers, backend=backend, prefetch_factor=4))
    assert all(torch.equal(images, expected) for (images, _), (expected, _) in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("name", ["training", "TrivialAugment"])
def test_an_epoch_that_is_resumed_goes_on_with_torchs_numbers(folder: Path, name: str) -> None:
    def make() -> Any:
        torch.manual_seed(1)
        return DataLoader(
            ImageFolder(folder, TRANSFORMS[name]), 4, shuffle=True, num_workers=2, draws="torch", prefetch_factor=3
        )

    whole, left = make(), make()
    expected = [batch for batch, _ in whole]
    for delivered in range(1, len(expected)):
        loader = make()
        iterator = iter(loader)
        for _ in range(delivered):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        left = make()
        torch.manual_seed(99)  # of another run
        left.load_state_dict(state)
        rest = [batch for batch, _ in left]
        assert len(rest) == len(expected) - delivered
        assert all(torch.equal(one, other) for one, other in zip(rest, expected[delivered:], strict=True))


def test_a_state_of_another_number_of_workers_is_told(folder: Path) -> None:
    def make(workers: int) -> Any:
        return DataLoader(ImageFolder(folder, TRANSFORMS["training"]), 4, num_workers=workers, draws="torch")

    loader = make(2)
    next(iter(loader))
    other = make(3)
    other.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="random numbers that the dataset draws differ"):
        assert len(list(other)) == 5


def outcomes(loader: Any) -> list[Any]:
    """The batches of an epoch, None for each that raised."""
    found: list[Any] = []
    iterator = iter(loader)
    while True:
        try:
            found.append(next(iterator)[0])
        except StopIteration:
            return found
        except Exception:  # noqa: BLE001 - torch's and ours are of other types
            found.append(None)


@pytest.mark.parametrize("damage", ["missing", "no image", "too small"])
def test_after_an_image_that_fails_batches_are_torchs_again(tmp_path: Path, damage: str) -> None:
    folder = synthetic_dataset(tmp_path / "made", classes=2, images_per_class=11, size_px=(64, 52))
    dataset = ImageFolder(folder, v1.Compose([v1.RandomCrop(40), v1.RandomHorizontalFlip(), v1.ToTensor()]))
    path = Path(dataset.samples[6][0])
    path.unlink()
    if damage != "missing":
        Image.new("RGB", (30, 30)).save(path.with_suffix(".jpg"))
    if damage == "no image":
        path.write_bytes(b"nothing")
    found = []
    for cls, more in ((torch.utils.data.DataLoader, {}), (DataLoader, {"draws": "torch"})):
        torch.manual_seed(3)
        found.append(outcomes(cls(dataset, 4, num_workers=2, **more)))
    torchs, ours = found
    assert [each is None for each in ours] == [each is None for each in torchs] == [False, True, *[False] * 4]
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True) if pair[0] is not None)


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_other_samples_of_a_batch_are_drawn_when_one_fails(tmp_path: Path, policy: Any) -> None:
    folder = synthetic_dataset(tmp_path / "made", classes=2, images_per_class=6, size_px=(64, 52))
    dataset = ImageFolder(folder, TRANSFORMS["colours and erasing"])
    Path(dataset.samples[5][0]).write_bytes(b"nothing")
    loader = DataLoader(dataset, 4, num_workers=2, draws="torch", on_error=policy)
    sizes = [len(labels) for _, labels in loader]
    assert sizes == ([4, 3, 4] if policy == "skip" else [4, 4, 4])
    assert loader.stats()["quarantine"][0][0] == 5


class InMemory(CIFAR10):
    """CIFAR10 of numbers that are drawn."""

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.data = np.random.default_rng(1).integers(0, 256, (24, 32, 32, 3), np.uint8)
        self.targets, self.transform, self.target_transform = list(range(24)), transform, None


InMemory.__module__, InMemory.__qualname__, InMemory.__name__ = CIFAR10.__module__, "CIFAR10", "CIFAR10"


def test_images_in_memory_are_drawn_like_torchs() -> None:
    steps = v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ColorJitter(0.3), v1.ToTensor()
    dataset = InMemory(v1.Compose([*steps, v1.Normalize(MEAN, STD)]))
    torchs = list(epochs(torch.utils.data.DataLoader, dataset, num_workers=2))
    ours = list(epochs(DataLoader, dataset, draws="torch", num_workers=2))
    assert all(torch.equal(images, expected) for (images, _), (expected, _) in zip(ours, torchs, strict=True))
    loader = DataLoader(dataset, 4, num_workers=2, draws="torch")
    assert loader._route().is_image_pipeline


def test_what_does_not_draw_stays_fused(folder: Path) -> None:
    validation = DataLoader(ImageFolder(folder, TRANSFORMS["none that draws"]), 4, draws="torch")
    assert len(pipelines_plan(validation).fused) == 4
    assert per_sample(validation) == []


def test_draws_that_cannot_be_torchs_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(folder, TRANSFORMS["training"])
    with pytest.raises(OptionError, match="augment_on='device' draws for whole batches"):
        DataLoader(dataset, draws="torch", augment_on="device")
    monkeypatch.setenv("FASTDATA_DRAWS", "torch")
    with pytest.warns(UserWarning, match="FASTDATA_DRAWS=torch has no effect on a loader with augment_on='device'"):
        assert DataLoader(dataset, augment_on="device").draws == "sample"
    assert DataLoader(dataset).draws == "torch"
    assert DataLoader(dataset, draws="sample").draws == "sample"
    with pytest.raises(OptionError, match="draws='numpy' is not accepted; use one of 'sample', 'torch'"):
        DataLoader(dataset, draws="numpy")  # type: ignore[arg-type]


class Strides:
    """Shows what a step of one's own sees of a tensor's memory."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return torch.tensor([*image.stride(), *image.shape])


TO_FLOAT = v2.ToDtype(torch.float32, scale=True)
LAYOUTS: dict[str, list[Any]] = {
    "a conversion": [v1.RandomCrop(32), v2.ToImage(), TO_FLOAT, v2.Normalize(MEAN, STD)],
    "v1's conversion": [v1.Resize((50, 60)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)],
    "a crop of tensors": [v2.ToImage(), v2.RandomCrop(32), TO_FLOAT],
    "a resized crop of tensors": [v2.ToImage(), v2.RandomResizedCrop(32, antialias=True), TO_FLOAT],
    "padding of tensors": [v2.ToImage(), v2.RandomCrop(32, padding=4), TO_FLOAT],
    "colours behind a crop": [v2.ToImage(), v2.RandomCrop(32), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), TO_FLOAT],
    "colours": [v1.Resize((50, 60)), v2.ToImage(), v2.ColorJitter(0.4, 0.4, 0.4, 0.1), TO_FLOAT],
    "grey": [v1.Resize((50, 60)), v2.ToImage(), v2.RandomGrayscale(1.0), TO_FLOAT],
    "ToTensor": [v1.RandomCrop(32), v1.ToTensor(), v1.Normalize(MEAN, STD)],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_own_steps_see_torchs_memory_and_draw_into_it(folder: Path, name: str) -> None:
    for own in (Strides(), lambda image: image.clone() + torch.randn_like(image)):
        dataset = ImageFolder(folder, v2.Compose([*LAYOUTS[name], own]))
        torchs, ours = (
            list(epochs(cls, dataset, **more))
            for cls, more in ((torch.utils.data.DataLoader, {}), (DataLoader, {"draws": "torch"}))
        )
        assert all(torch.equal(*pair) for pair in zip(*([x for x, _ in each] for each in (ours, torchs)), strict=True))


FILLS: dict[str, Any] = {
    "Pad": v2.Pad(4, fill={Image.Image: 7, "others": 0}),
    "RandomRotation": v2.RandomRotation(30, fill={Image.Image: (9, 8, 7), "others": 0}),
    "RandomCrop": v2.RandomCrop(60, padding=2, pad_if_needed=True, fill={Image.Image: 7, "others": 0}),
}


@pytest.mark.parametrize("name", FILLS)
def test_fills_by_class_are_those_of_pillows_images(folder: Path, name: str) -> None:
    dataset = ImageFolder(folder, v2.Compose([v2.Resize((50, 50)), FILLS[name], v2.ToImage()]))
    torchs, ours = list(epochs(torch.utils.data.DataLoader, dataset)), list(epochs(DataLoader, dataset, draws="torch"))
    assert all(torch.equal(images, expected) for (images, _), (expected, _) in zip(ours, torchs, strict=True))


def test_a_collate_function_does_not_take_the_pipeline_from_others(folder: Path) -> None:
    dataset = ImageFolder(folder, TRANSFORMS["colours and erasing"])
    DataLoader(dataset, 4, num_workers=2, draws="torch", collate_fn=list)._route()
    assert DataLoader(dataset, 4, num_workers=2, draws="torch")._route().is_image_pipeline


@pytest.mark.parametrize("bad", [[4, 99], ["a", 4], [1.5, 4]], ids=str)
def test_after_a_batch_that_cannot_be_batches_are_torchs_again(folder: Path, bad: list[Any]) -> None:
    order = [[0, 1], [2, 3], bad, [5, 6], [7, 8], [9, 10]]
    found = []
    for cls, more in ((torch.utils.data.DataLoader, {}), (DataLoader, {"draws": "torch"})):
        torch.manual_seed(3)
        dataset = ImageFolder(folder, TRANSFORMS["training"])
        found.append(outcomes(cls(dataset, batch_sampler=order, num_workers=2, **more)))
    torchs, ours = found
    assert [each is None for each in ours] == [each is None for each in torchs] == [False, False, True, *[False] * 3]
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True) if pair[0] is not None)


def test_errors_that_were_raised_are_not_told_again(folder: Path) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.RandomCrop(200), v1.ToTensor()]))
    for draws in ("torch", "sample"):
        assert outcomes(DataLoader(dataset, 4, num_workers=2, draws=draws)) == [None] * 6  # type: ignore[arg-type]
