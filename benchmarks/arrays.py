"""Images in memory, as torchvision keeps CIFAR and MNIST, against torch's DataLoader.

Setup: torchvision's CIFAR10 with RandomCrop(32, padding=4), flip, ToTensor and Normalize, MNIST with ToTensor and
Normalize, and, with CIFAR10's images and transform, "own", a class as people write it, "index", a subclass that returns
the index as well, "part", some samples of it as tensors, as in federated learning, and "pillow", a list of PIL images;
images made here, smooth with edges and noise; batches of 256, shuffled; threads and worker processes equal in number;
torch with persistent workers.  All loaders take turns in every round.  Result: benchmarks/results/arrays.json.

    python benchmarks/arrays.py
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.utils.data
from harness import benchmark
from PIL import Image
from torchvision import datasets, transforms

from fastdata import DataLoader
from fastdata.measuring.rounds import compare

TORCH = "torch + torchvision"


def pictures(count: int, side: int, channels: int) -> np.ndarray:
    """Smooth colours, edges and a little noise: uint8, (count, side, side, channels)."""
    generator = torch.Generator().manual_seed(0)
    pictures = np.empty((count, side, side, channels), np.uint8)
    for begin in range(0, count, 1000):
        number = min(1000, count - begin)
        coarse = torch.rand((number, channels, 6, 6), generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")
        edges = (smooth[:, :1] > 0.5) * 0.3
        noise = 0.05 * torch.randn(smooth.shape, generator=generator)
        levels = (255 * (smooth + edges + noise)).clamp(0, 255).to(torch.uint8)
        pictures[begin : begin + number] = levels.permute(0, 2, 3, 1).numpy()
    return pictures


def made(cls: type, transform: Any, data: Any, targets: Any) -> Any:
    """A dataset of torchvision's with data written into it, so that nothing is downloaded."""
    dataset: Any = object.__new__(cls)
    dataset.transform, dataset.target_transform = transform, None
    dataset.data, dataset.targets = data, targets
    return dataset


def cifar(count: int) -> Any:
    """Like CIFAR-10, with the transform that it is usually trained with."""
    steps = [
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ]
    labels = np.random.default_rng(0).integers(0, 10, count).tolist()
    return made(datasets.CIFAR10, transforms.Compose(steps), pictures(count, 32, 3), labels)


def mnist(count: int) -> Any:
    """Like MNIST, with the transform of torch's own example."""
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    labels = torch.from_numpy(np.random.default_rng(0).integers(0, 10, count))
    return made(datasets.MNIST, steps, torch.from_numpy(pictures(count, 28, 1)[..., 0]), labels)


class Own(torch.utils.data.Dataset[Any]):
    """Images and labels of another dataset."""

    def __init__(self, other: Any) -> None:
        self.data, self.labels, self.transform = other.data, other.targets, other.transform

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        image = Image.fromarray(self.data[index])
        return self.transform(image), self.labels[index]


def own(count: int) -> Any:
    """As CIFAR-10, in a class of one's own."""
    return Own(cifar(count))


class WithIndex(datasets.CIFAR10):
    """Samples (image, label, index)."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image, label, index


class Part(torch.utils.data.Dataset[Any]):
    """Some samples of a dataset."""

    def __init__(self, dataset: Any, indices: list[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Any:
        image, label = self.dataset[self.indices[item]]
        return image, torch.tensor(label)


class OfPillow(Own):
    """Images as Pillow's."""

    def __init__(self, other: Any) -> None:
        super().__init__(other)
        self.data = list(map(Image.fromarray, other.data))

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.data[index]), self.labels[index]


def with_index(count: int) -> Any:
    """CIFAR-10 with indices."""
    plain = cifar(count)
    return made(WithIndex, plain.transform, plain.data, plain.targets)


KINDS = {
    "CIFAR10": cifar,
    "MNIST": mnist,
    "own": own,
    "index": with_index,
    "part": lambda count: Part(cifar(count), list(range(count))[::-1]),
    "pillow": lambda count: OfPillow(cifar(count)),
}


def run(dataset: Any, workers: int, rounds: int) -> dict[str, Any]:
    """Measures fastdata and torch on one dataset."""
    options: dict[str, Any] = {"batch_size": 256, "shuffle": True, "num_workers": workers}
    loaders: dict[str, Any] = {
        TORCH: torch.utils.data.DataLoader(dataset, persistent_workers=workers > 0, **options),
        "fastdata": DataLoader(dataset, **options),
    }
    print(loaders["fastdata"].explain())
    epochs = {name: partial(iter, loader) for name, loader in loaders.items()}
    return compare(epochs, TORCH, images=len(dataset), rounds=rounds)


def measured(given: Namespace) -> dict[str, Any]:
    """Both loaders on each dataset."""
    given.data = f"{given.images} generated images in each dataset"
    results = {}
    for name, make in KINDS.items():
        print(f"{name}\n")
        results[name] = run(make(given.images), given.workers, given.rounds)
    return results


if __name__ == "__main__":
    benchmark(__file__, measured, images=50_000, workers=2, rounds=5)
