"""Errors of the user's own code arrive as torch hands them over; those of images are caught as what they stand for."""

from __future__ import annotations

import io
import json
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from bad_images import bad_images
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DecodeError
from fastdata.errors import ViewError

CROP = v1.Compose([v1.RandomResizedCrop(16), v1.ToTensor()])


def raised(file: Path) -> Any:
    raise FileNotFoundError(2, "no caption", str(file))


def truncated(file: Path) -> Any:
    raise EOFError("caption ends early")


def in_the_library(file: Path) -> Any:
    return file.read_text()


def by_json(file: Path) -> Any:
    with open(file) as opened:
        return json.load(opened)


def by_numpy(file: Path) -> Any:
    return np.load(file)


def not_permitted(file: Path) -> Any:
    raise PermissionError(13, "not for you", str(file))


OWN: dict[str, Callable[[Path], Any]] = {
    each.__name__: each for each in (raised, truncated, in_the_library, by_json, by_numpy, not_permitted)
}


class Captioned(Dataset[Any]):
    """Images with captions, of which one is missing; counts how often its code runs."""

    def __init__(self, folder: Path, how: str, before: bool) -> None:
        self.samples, self.how, self.before, self.asked = ImageFolder(folder).samples, how, before, list[int]()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        if self.before and index == 5:
            OWN[self.how](Path("/nowhere/caption.npy"))
        image = CROP(Image.open(self.samples[index][0]).convert("RGB"))
        if index == 5:
            OWN[self.how](Path("/nowhere/caption.npy"))
        return image, index


def error_of(batches: Iterable[Any], found: list[Any]) -> Exception:
    """What iterating raises, behind the labels of the batches, which are added to `found`.

    An iterator of torch's that only the garbage collector finds, as in frames of a worker process's error, waits five
    seconds for its worker, so the frames are cleared.
    """
    try:
        for _, labels in batches:
            found.append(labels.tolist())
    except Exception as error:  # noqa: BLE001 - which one is the question
        traceback.clear_frames(error.__traceback__)
        return error.with_traceback(None)
    raise AssertionError("there was no error")


def outcome(cls: Any, dataset: Any, workers: int) -> Any:
    """The labels of the batches, and the error behind them."""
    found: list[Any] = []
    error = error_of(cls(dataset, 4, num_workers=workers), found)
    lines = str(error).splitlines()  # in a worker process with its traceback, and a note of ours
    lines = [line for line in lines if "aption" in line and "while making" not in line]
    said = [line.removeprefix(f"{type(error).__name__}: ") for line in lines]
    return found, type(error), said[-1], getattr(error, "filename", None)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("before", [True, False], ids=["before the image", "behind it"])
def test_an_error_of_ones_own_code_is_not_that_of_an_image(folder: Path, before: bool, workers: int) -> None:
    for how in OWN:
        ours, theirs = Captioned(folder, how, before), Captioned(folder, how, before)
        assert outcome(DataLoader, ours, workers) == outcome(torch.utils.data.DataLoader, theirs, workers)
        assert ours.asked == theirs.asked  # the code has run once
        subset = Subset(ours, range(8))
        assert outcome(DataLoader, subset, workers)[1:] == outcome(torch.utils.data.DataLoader, subset, workers)[1:]


def test_whoever_asks_for_it_has_such_samples_left_out(folder: Path) -> None:
    loader = DataLoader(Captioned(folder, "raised", True), 4, on_error="skip")
    with pytest.warns(UserWarning, match="1 sample"):
        assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 6, 7]]


BAD = ["text", "JPEG cut in the middle", "PNG bomb of 30000 by 30000", "the head of a JPEG alone"]


class Opened(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return CROP(Image.open(io.BytesIO(self.path.read_bytes())).convert("RGB")), index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("bad", BAD)
def test_an_error_of_an_image_is_caught_as_pillows(tmp_path: Path, bad: str, workers: int) -> None:
    path = tmp_path / "a" / "0.jpg"
    path.parent.mkdir()
    path.write_bytes(bad_images()[bad])
    for dataset in (ImageFolder(tmp_path, CROP), Opened(path)):
        theirs = error_of(torch.utils.data.DataLoader(dataset, 1), [])
        for backend in ("native", "pil"):
            ours = error_of(DataLoader(dataset, 1, num_workers=workers, backend=backend), [])
            assert isinstance(ours, type(theirs))
            assert isinstance(ours, DecodeError) or isinstance(dataset, Opened)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_size_without_pixels_is_left_to_torchvision(folder: Path, workers: int) -> None:
    for step in (v1.CenterCrop(0), v1.CenterCrop((0, 5)), v1.RandomCrop(0), v1.Resize(0), v1.Resize((0, 4))):
        for dataset in (ImageFolder(folder, v1.Compose([step, v1.ToTensor()])), Stepped(folder, step)):
            found = []
            for cls in (torch.utils.data.DataLoader, DataLoader):
                try:
                    found.append([tuple(batch.shape) for batch, _ in cls(dataset, 16, num_workers=workers)])
                except ValueError as error:
                    found.append("height and width must be > 0" in str(error))
                    traceback.clear_frames(error.__traceback__)
            assert found[0] == found[1]


class Stepped(Captioned):
    def __init__(self, folder: Path, step: Any) -> None:
        super().__init__(folder, "raised", False)
        self.transform = v1.Compose([step, v1.ToTensor()])

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.samples[index][0]).convert("RGB")), index


def test_what_does_not_fit_the_transform_is_not_blamed_on_the_file(folder: Path) -> None:
    with pytest.raises(ViewError, match="larger than input image size") as error:
        list(DataLoader(ImageFolder(folder, v1.Compose([v1.RandomCrop(900), v1.ToTensor()])), 4))
    assert "Repair" not in str(error.value)
    assert "Pad or resize before the step that needs more pixels, or take a smaller size there" in str(error.value)
