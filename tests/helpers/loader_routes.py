"""Loaders of every route: images, code of one's own, streams with and without a state, draws from global generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from PIL import Image
from streams import CountingIterator
from torch.utils.data import Dataset, IterableDataset
from torchvision.datasets import ImageFolder

SIZE, BATCH = 14, 4
VIEWS = v1.Compose([v1.RandomResizedCrop(8, antialias=True), v1.RandomHorizontalFlip(), v1.PILToTensor()])


class Draws(Dataset[Any]):
    """Numbers from every global generator, for each sample."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, torch.rand(()).item(), random.random(), np.random.rand()])


class OwnViews(Dataset[Any]):
    """An image folder behind code that nobody knows."""

    def __init__(self, folder: Path, unfused: bool) -> None:
        own = [self._step] if unfused else []
        steps = [v1.RandomResizedCrop(8, antialias=True), v1.RandomHorizontalFlip(), *own, v1.PILToTensor()]
        self._inner = ImageFolder(folder, v1.Compose(steps))
        self._log: list[int] = []

    def _step(self, image: Any) -> Any:
        return image

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        self._log.append(index)
        image, _ = self._inner[index]
        return image.flatten()[:6].float(), index


class Lazy(IterableDataset[int]):
    """A generator, which begins with the first sample: until then its place is where the last epoch was left."""

    def __init__(self) -> None:
        self._place, self._from = 0, 0

    def __iter__(self) -> Iterator[int]:
        begin, self._from = self._from, 0
        for place in range(begin, SIZE):
            self._place = place + 1
            yield place * 10 + random.randrange(10)
        self._place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self._place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._from = state["place"]


class Plain(IterableDataset[int]):
    """A generator without a state."""

    def __iter__(self) -> Iterator[int]:
        for place in range(SIZE):
            yield place * 10 + random.randrange(10)


class Eager(IterableDataset[int]):
    """Its own iterator: where an epoch begins, and how, is decided by `__iter__`."""

    place, epoch = SIZE, -1
    _loaded = False

    def __iter__(self) -> Iterator[int]:
        if not self._loaded:
            self.place, self.epoch = 0, self.epoch + 1
        self._loaded = False
        return self

    def __next__(self) -> int:
        if self.place >= SIZE:
            raise StopIteration
        self.place += 1
        return self.place * 10 + self.epoch

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place, self.epoch = state["place"], state["epoch"]
        self._loaded = self.place < SIZE


class Live(Eager):
    """Gives the dict that it goes on to change as its state."""

    def __init__(self) -> None:
        self._live: dict[str, int] = {}

    def state_dict(self) -> dict[str, int]:
        self._live.update(super().state_dict())
        return self._live


class Cursor(CountingIterator):
    """An iterator with a state, that draws."""

    def __next__(self) -> int:
        return super().__next__() * 10 + random.randrange(10)


class OfCursors(IterableDataset[int]):
    """Gives an iterator with a state for each epoch."""

    def __iter__(self) -> Iterator[int]:
        return Cursor(SIZE)


class DrawsBesideDamage(Dataset[Any]):
    """Draws a number for each sample; the decoder finds two images damaged, and has their batch made again."""

    def __init__(self, folder: Path) -> None:
        self._inner = ImageFolder(folder, v1.Compose([v1.CenterCrop(40), v1.PILToTensor()]))
        self._damaged = folder.parent / f"{folder.name}-damaged.png"
        Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 60, 3), np.uint8)).save(self._damaged)
        data = self._damaged.read_bytes()
        self._damaged.write_bytes(data[:5000] + bytes(100) + data[5100:])
        for index in (1, 2):
            self._inner.samples[index] = (str(self._damaged), 0)

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        number = torch.rand(()).item()
        return self._inner[index][0], index, number


# What a loader is made of, by the folder of images.
ROUTES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "image pipeline": lambda folder: {"dataset": ImageFolder(folder, VIEWS), "shuffle": True},
    "image pipeline, threads": lambda folder: {
        "dataset": ImageFolder(folder, VIEWS),
        "shuffle": True,
        "num_workers": 2,
    },
    "own code": lambda folder: {"dataset": OwnViews(folder, unfused=False), "shuffle": True},
    "own code, workers": lambda folder: {
        "dataset": OwnViews(folder, unfused=False),
        "shuffle": True,
        "num_workers": 2,
    },
    "unfused steps": lambda folder: {"dataset": OwnViews(folder, unfused=True), "shuffle": True},
    "draws": lambda folder: {"dataset": Draws()},
    "draws, shuffled": lambda folder: {"dataset": Draws(), "shuffle": True},
    "draws, own generator": lambda folder: {
        "dataset": Draws(),
        "shuffle": True,
        "generator": torch.Generator().manual_seed(5),
    },
    "draws, seed": lambda folder: {"dataset": Draws(), "shuffle": True, "seed": 3},
    "plain stream": lambda folder: {"dataset": Plain()},
    "lazy stream": lambda folder: {"dataset": Lazy()},
    "eager stream": lambda folder: {"dataset": Eager()},
    "stream with a live state": lambda folder: {"dataset": Live()},
    "stream of cursors": lambda folder: {"dataset": OfCursors()},
    "plain stream, workers": lambda folder: {"dataset": Plain(), "num_workers": 2},
    "lazy stream, workers": lambda folder: {"dataset": Lazy(), "num_workers": 2},
    "eager stream, workers": lambda folder: {"dataset": Eager(), "num_workers": 2},
    "stream of cursors, workers": lambda folder: {"dataset": OfCursors(), "num_workers": 2},
    "draws, workers": lambda folder: {"dataset": Draws(), "shuffle": True, "num_workers": 2},
    "draws, persistent workers": lambda folder: {
        "dataset": Draws(),
        "shuffle": True,
        "num_workers": 2,
        "persistent_workers": True,
    },
    "unfused steps, workers": lambda folder: {
        "dataset": OwnViews(folder, unfused=True),
        "shuffle": True,
        "num_workers": 2,
    },
    "draws beside damage, workers": lambda folder: {
        "dataset": DrawsBesideDamage(folder),
        "num_workers": 2,
        "on_error": "skip",
        "prefetch_factor": 1,
    },
    "plain stream, persistent workers": lambda folder: {
        "dataset": Plain(),
        "num_workers": 2,
        "persistent_workers": True,
    },
}


ROUTES |= {
    f"{name}, torch's draws": lambda folder, name=name: {**ROUTES[name](folder), "draws": "torch"}  # type: ignore[misc]
    for name in ("image pipeline", "image pipeline, threads", "own code", "own code, workers")
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)


def drawn(batch: Any) -> Any:
    """A batch as plain numbers."""
    return [each.tolist() for each in batch] if isinstance(batch, list | tuple) else batch.tolist()
