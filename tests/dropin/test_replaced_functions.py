"""Functions of Pillow, torchvision and torch that a program has replaced: its own are called, as by torch's loader."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image, ImageOps, JpegImagePlugin
from torch.utils.data import Dataset, Subset
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.datasets import folder as tv_folder
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it
from torchvision.transforms import v2

import fastdata
from fastdata import DataLoader
from fastdata.patches import originals
from fastdata.patches.originals import replaced_function

CONVERT = Image.Image.convert
STEPS = [v1.Resize((12, 12)), v1.CenterCrop(8), v1.RandomHorizontalFlip(1.0), v1.ToTensor()]


class Own(Dataset[Any]):
    def __init__(self, folder: Path) -> None:
        self.samples, self.transform = ImageFolder(folder).samples, v1.Compose(STEPS)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.samples[index][0]).convert("RGB")), index


def cifar() -> CIFAR10:
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.data = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    dataset.targets, dataset.transform, dataset.target_transform = list(range(8)), v1.Compose(STEPS), None
    return dataset


def inverted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a function that gives an image, and inverts that."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return ImageOps.invert(CONVERT(function(*arguments, **named), "RGB"))

    return call


def darker(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments: function(*arguments) / 2


def grey_files(function: Callable[..., Any]) -> Callable[..., Any]:
    """Opens all JPEGs as one grey one, as from another place."""
    return lambda path, *more, **named: (
        io.BytesIO(images.jpeg(20, 20, seed=9)) if str(path).endswith(".jpg") else function(path, *more, **named)
    )


def first_sample(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, index: function(self, 0)


def first_samples(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, indices: function(self, [0 for _ in indices])


# What is replaced, and by what is made of it; where it is seen.
REPLACED: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "Image.open": (PIL.Image, "open", inverted, "folder own"),
    "convert": (PIL.Image.Image, "convert", inverted, "folder own"),
    "resize": (PIL.Image.Image, "resize", inverted, "folder own cifar"),
    "crop": (PIL.Image.Image, "crop", inverted, "folder own cifar"),
    "fromarray": (PIL.Image, "fromarray", inverted, "cifar"),
    "F.resize": (F, "resize", inverted, "folder own cifar"),
    "F.to_tensor": (F, "to_tensor", darker, "folder own cifar"),
    "a method of a step": (v1.CenterCrop, "forward", inverted, "folder own cifar"),
    "pil_loader": (tv_folder, "pil_loader", inverted, "folder"),
    "the folder's samples": (tv_folder.DatasetFolder, "__getitem__", first_sample, "folder"),
    "the array's samples": (CIFAR10, "__getitem__", first_sample, "cifar"),
    "Subset's samples": (Subset, "__getitems__", first_samples, "subset"),
    "open": (builtins, "open", grey_files, "folder own"),
}


def datasets(folder: Path) -> dict[str, Any]:
    whole = ImageFolder(folder, v1.Compose(STEPS))
    return {
        "folder": Subset(whole, range(8)),
        "own": Own(folder),
        "cifar": cifar(),
        "subset": Subset(Own(folder), [3, 4]),
    }


def batches(loader: Any) -> list[Any]:
    return [[each.tolist() for each in batch] for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", REPLACED)
def test_what_has_been_replaced_is_called(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, workers: int
) -> None:
    """Before the loader is made, and between two of its epochs; put back, it is as before."""
    owner, attribute, making, seen = REPLACED[name]
    for kind in seen.split():
        dataset = datasets(folder)[kind]
        theirs = torch.utils.data.DataLoader(dataset, 4, num_workers=workers)
        made_before = DataLoader(dataset, 4, num_workers=workers)
        plain = batches(made_before)
        with monkeypatch.context() as patched:
            patched.setattr(owner, attribute, making(getattr(owner, attribute)))
            expected = batches(theirs)
            made_now = DataLoader(dataset, 4, num_workers=workers)
            assert batches(made_before) == batches(made_now) == expected != plain
            said = str(made_now.verdict())
            assert said.startswith("not accelerated")
            assert attribute in said
            assert "has been replaced by" in said
            assert made_now.explain().count("has been replaced by") >= 1
        assert batches(made_before) == plain
        assert not str(DataLoader(dataset, 4, num_workers=workers).verdict()).startswith("not accelerated")


def test_another_plugin_for_jpegs_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(fp: Any, filename: Any) -> Any:
        fp.close()
        return JpegImagePlugin.jpeg_factory(io.BytesIO(images.jpeg(20, 20, seed=9)))

    dataset = Own(folder)
    monkeypatch.setitem(PIL.Image.OPEN, "JPEG", (opened, PIL.Image.OPEN["JPEG"][1]))
    loader = DataLoader(dataset, 4)
    assert batches(loader) == batches(torch.utils.data.DataLoader(dataset, 4))
    assert "what Pillow opens a JPEG with has been replaced by" in str(loader.verdict())


def test_other_formats_may_be_added(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PIL.Image.OPEN, "MINE", (lambda *_: None, lambda _: False))
    monkeypatch.setattr(PIL.Image.Image, "mine", lambda self: 1, raising=False)
    assert replaced_function() is None


def test_streams_and_lists_for_torchs_loader_obey(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return (Own(folder)[index] for index in range(8))

    dataset = fastdata.ImageFolder(folder, v1.Compose(STEPS))
    monkeypatch.setattr(PIL.Image, "open", inverted(PIL.Image.open))
    assert batches(DataLoader(Stream(), 4)) == batches(torch.utils.data.DataLoader(Stream(), 4))
    listed = [image.tolist() for image, _ in dataset.__getitems__([0, 1])]
    assert listed == [dataset[index][0].tolist() for index in (0, 1)]


# ---- what is compared is all that is called

KNOWN_STEPS: list[Any] = [
    v1.Compose([v1.RandomResizedCrop(12), v1.RandomHorizontalFlip(1.0), v1.RandomVerticalFlip(1.0), v1.ToTensor()]),
    v1.Compose([v1.Pad(2), v1.RandomCrop(16), v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
    v1.Compose([v1.ColorJitter(0.4, 0.4, 0.4, 0.2), v1.RandomGrayscale(1.0), v1.ToTensor(), v1.RandomErasing(1.0)]),
    v1.Compose([v1.RandAugment(4), v1.TrivialAugmentWide(), v1.AutoAugment(), v1.AugMix(), v1.ToTensor()]),
    v1.Compose([v1.RandomRotation(9), v1.RandomAffine(9, (0.1, 0.1)), v1.RandomPerspective(p=1.0), v1.GaussianBlur(3)]),
    v1.Compose([v1.RandomSolarize(9, 1.0), v1.RandomPosterize(3, 1.0), v1.RandomEqualize(1.0), v1.RandomInvert(1.0)]),
    v1.Compose([v1.RandomAutocontrast(1.0), v1.RandomAdjustSharpness(2, 1.0), v1.ToTensor()]),
    v2.Compose([v2.ToImage(), v2.RandomResizedCrop(12, antialias=True), v2.ToDtype(torch.float32, scale=True)]),
    v2.Compose([v2.Resize(14), v2.CenterCrop(12), v2.RGB(), v2.ToImage(), v2.Normalize([0.5], [0.2])][:4]),
    v2.Compose([v2.RandomPhotometricDistort(p=1.0), v2.RandomZoomOut(p=1.0), v2.ScaleJitter((20, 20)), v2.ToImage()]),
]


def test_everything_that_known_steps_call_is_compared(folder: Path) -> None:
    """Follows all calls of Python's functions while samples are made; those of other modules than these are torch's."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            called.add(str(frame.f_globals.get("__name__")))

    dataset = ImageFolder(folder)
    png = io.BytesIO()
    dataset[0][0].save(png, "PNG")
    sys.setprofile(note)
    try:
        for steps in KNOWN_STEPS:
            dataset.transform = steps
            for index in range(4):
                Subset(dataset, range(8))[index]
            steps(Image.open(io.BytesIO(png.getvalue())).convert("RGB"))
        cifar()[0]
    finally:
        sys.setprofile(None)
    libraries = {name for name in called if name.partition(".")[0] in ("PIL", "torchvision", "timm")}
    libraries |= {name for name in called if name.startswith("torch.utils.data")}
    compared = {name for name in libraries if name in originals._MODULES or name.startswith(originals._PACKAGES)}
    # What finds a format among Pillow's, reads its numbers, and counts uses of torchvision's functions.
    others = {"PIL._binary", "PIL._util", "torchvision", "torchvision.utils"}
    others |= {f"PIL.{kind}ImagePlugin" for kind in ("Bmp", "Gif", "Ppm")}
    assert libraries - compared - others == set()
    assert {"PIL.Image", "torchvision.transforms.functional", "torchvision.datasets.folder"} < compared


def test_a_module_that_is_still_being_imported_is_looked_at_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its classes are not all there yet, and what is found would be kept."""
    module = sys.modules["torchvision.transforms.autoaugment"]
    originals._compiled.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(module.__spec__, "_initializing", True, raising=False)
        patched.delattr(module, "RandAugment")
        assert replaced_function() is None
    assert replaced_function() is None
    assert ("RandAugment",) in originals._compiled("torchvision.transforms.autoaugment")


def test_all_of_them_are_the_libraries_own_here() -> None:
    assert replaced_function() is None
    for module in ("PIL.Image", "torchvision.transforms.functional", "torch.utils.data.dataset"):
        assert sum(map(len, originals._compiled(module).values())) > 10
