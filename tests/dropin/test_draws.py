"""draws="torch": training batches equal those of torch's DataLoader to the last bit, whatever the transforms draw."""

from __future__ import annotations

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
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

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


def test_images_stay_encoded_and_what_does_not_draw_stays_fused(folder: Path) -> None:
    training = DataLoader(ImageFolder(folder, TRANSFORMS["training"]), 4, draws="torch")
    list(training)
    assert training.verdict().startswith("accelerated: images are decoded by the native core")
    assert "draws='torch' has random transforms run where torch would" in " ".join(training.explain().split())
    validation = DataLoader(ImageFolder(folder, TRANSFORMS["none that draws"]), 4, draws="torch")
    assert "4 of 4 steps fused" in validation.verdict()


def test_draws_that_cannot_be_torchs_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageFolder(folder, TRANSFORMS["training"])
    with pytest.raises(OptionError, match=r"workers='threads' does not have; leave one of them out"):
        DataLoader(dataset, draws="torch", workers="threads")
    with pytest.raises(OptionError, match="augment_on='device' draws for whole batches"):
        DataLoader(dataset, draws="torch", augment_on="device")
    monkeypatch.setenv("FASTDATA_DRAWS", "torch")
    with pytest.warns(UserWarning, match="FASTDATA_DRAWS=torch has no effect on a loader with workers='threads'"):
        assert DataLoader(dataset, workers="threads").draws == "sample"
    assert DataLoader(dataset).draws == "torch"
    assert DataLoader(dataset, draws="sample").draws == "sample"
    with pytest.raises(OptionError, match="draws='numpy' is not accepted; use one of 'sample', 'torch'"):
        DataLoader(dataset, draws="numpy")  # type: ignore[arg-type]
