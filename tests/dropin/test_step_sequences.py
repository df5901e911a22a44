"""All sequences of geometric steps and augmentations, before every kind of end, give what torch gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image, ImageOps

from fastdata import DataLoader

FIXED: dict[str, Callable[[Any], Any]] = {
    "resize": lambda lib: lib.Resize((24, 20)),
    "resize shorter": lambda lib: lib.Resize(26),
    "crop": lambda lib: lib.CenterCrop(30),
    "crop beyond": lambda lib: lib.CenterCrop((70, 20)),
    "pad": lambda lib: lib.Pad((2, 3, 4, 5), fill=(9, 8, 7)),
    "reflect": lambda lib: lib.Pad(3, padding_mode="reflect"),
    "flip": lambda lib: lib.RandomHorizontalFlip(1.0),
    "upside down": lambda lib: lib.RandomVerticalFlip(1.0),
    "grey": lambda lib: lib.Grayscale(3),
}
RANDOM: dict[str, Callable[[Any], Any]] = {
    "resized crop": lambda lib: lib.RandomResizedCrop(22),
    "padded crop": lambda lib: lib.RandomCrop(18, padding=2),
    "random crop": lambda lib: lib.RandomCrop(18, pad_if_needed=True),
    "random flip": lambda lib: lib.RandomHorizontalFlip(),
    "jitter": lambda lib: lib.ColorJitter(0.3, 0.3, 0.3, 0.1),
    "random grey": lambda lib: lib.RandomGrayscale(0.5),
    "affine": lambda lib: lib.RandomAffine(20),
}


def own(image: Image.Image) -> Image.Image:
    return ImageOps.posterize(image, 6)


ENDS: dict[str, Callable[[Any], list[Any]]] = {
    "image": lambda lib: [],
    "own step": lambda lib: [own],
    "own step, tensor": lambda lib: [own, lib.PILToTensor()],
    "bytes": lambda lib: [lib.PILToTensor()],
    "tensor": lambda lib: [lib.ToTensor()] if lib is v1 else [lib.ToImage(), lib.ToDtype(torch.float32, scale=True)],
}


class Photos(torch.utils.data.Dataset[Any]):
    def __init__(self, files: list[Path], steps: list[Any]) -> None:
        self.files, self.transform = files, v1.Compose(steps)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.mktemp("photos") / f"{number}.jpg" for number in range(3)]
    for number, path in enumerate(paths):
        path.write_bytes(images.jpeg(60 + number, 50, seed=number))
    return paths


def outcome(kind: Any, dataset: Photos, **options: Any) -> Any:
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    try:
        samples = [sample for batch in kind(dataset, 3, collate_fn=list, **options) for sample in batch]
    except ValueError as error:  # of an image that is too small
        return str(error)[:20]
    kinds = ["image" if isinstance(sample, Image.Image) else type(sample) for sample in samples]
    return kinds, [np.asarray(sample) for sample in samples]


def are_same(ours: Any, torchs: Any) -> bool:
    if isinstance(ours, str) or isinstance(torchs, str):
        return bool(ours == torchs)
    alike = (one.dtype == two.dtype and np.array_equal(one, two) for one, two in zip(ours[1], torchs[1], strict=True))
    return ours[0] == torchs[0] and all(alike)


def sequences(names: Sequence[str], triples: int) -> list[tuple[str, ...]]:
    """All steps, all pairs, and some of the sequences of three."""
    three = random.Random(0).sample(list(itertools.product(names, repeat=3)), triples)
    return [*((name,) for name in names), *itertools.product(names, repeat=2), *three]


@pytest.mark.parametrize("lib", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("draws", ["sample", "torch"])
def test_any_sequence_of_steps_gives_torchs_images(files: list[Path], lib: Any, end: str, draws: str) -> None:
    steps = FIXED if draws == "sample" else RANDOM | {name: FIXED[name] for name in ("resize", "crop beyond", "pad")}
    wrong = []
    for names in sequences(list(steps), triples=30):
        dataset = Photos(files, [*(steps[name](lib) for name in names), *ENDS[end](lib)])
        ours, torchs = outcome(DataLoader, dataset, draws=draws), outcome(torch.utils.data.DataLoader, dataset)
        wrong += [] if are_same(ours, torchs) else [names]
    assert not wrong
