"""Classes that only call known transforms are told from their source; all others run where torch runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.lazy.pure_code import only_calls_known_transforms

STEPS = [v1.RandomResizedCrop(16), v1.RandomHorizontalFlip(), v1.ToTensor()]


class Base:
    def __init__(self) -> None:
        self.t, self.u, self.n = v1.Compose(STEPS), v1.Compose([v1.Resize((8, 8)), v1.ToTensor()]), 3
        self.all = [self.t, self.u]
        self.calls = 0


class Pair(Base):
    def __call__(self, image: Any) -> Any:
        """Two views."""
        return self.t(image), self.u(image)


class Comprehended(Base):
    def __call__(self, image: Any) -> Any:
        return [self.t(image) for _ in range(2)]


class OfAList(Base):
    def __call__(self, image: Any) -> Any:
        return [each(image) for each in self.all]


class Named(Base):
    def __call__(self, x: Any) -> Any:
        q = self.t(x)
        k = self.t(x)
        return [q, k]


class Appended(Base):
    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.t(image))
        for _ in range(self.n):
            crops.append(self.t(image))
        return crops


class Stacked(Base):
    def __call__(self, image: Any) -> Any:
        return torch.stack([self.t(image), self.t(image)])


PURE = [Pair, Comprehended, OfAList, Named, Appended, Stacked]


class Counts(Base):
    def __call__(self, image: Any) -> Any:
        self.calls += 1
        return self.t(image)


class Asks(Base):
    def __call__(self, image: Any) -> Any:
        return self.t(image), torch.utils.data.get_worker_info()


class Prints(Base):
    def __call__(self, image: Any) -> Any:
        print("here")
        return self.t(image)


class Filters(Base):
    def __call__(self, image: Any) -> Any:
        return [self.t(image) for number in range(3) if number]


class Reads(Base):
    def __call__(self, image: Any) -> Any:
        return self.t(image), self.calls


class Touches(Base):
    def __call__(self, image: Any) -> Any:
        return self.t(image.rotate(9))


class CallsOther(Base):
    def __init__(self) -> None:
        super().__init__()
        self.t = lambda image: image

    def __call__(self, image: Any) -> Any:
        return [self.t(image), self.t(image)]


class Forwards(Base):
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __call__(self, image: Any) -> Any:
        return [self.t(image)]


IMPURE = [Counts, Asks, Prints, Filters, Reads, Touches, CallsOther, Forwards]


@pytest.mark.parametrize("kind", PURE)
def test_what_only_calls_known_transforms_runs_in_threads_with_the_same_views(folder: Path, kind: Any) -> None:
    assert only_calls_known_transforms(kind())
    dataset = ImageFolder(folder, kind())
    loader = DataLoader(dataset, 5, num_workers=2, seed=3)
    assert loader._route().in_threads
    by_processes = DataLoader(dataset, 5, num_workers=2, seed=3, workers="processes")
    for ours, expected in zip(loader, by_processes, strict=True):
        assert all(torch.equal(*pair) for pair in zip(ours[0], expected[0], strict=True))
        assert torch.equal(ours[1], expected[1])


@pytest.mark.parametrize("kind", IMPURE)
def test_everything_else_runs_where_torch_runs_it(folder: Path, kind: Callable[[], Any]) -> None:
    assert not only_calls_known_transforms(kind())
    assert not DataLoader(ImageFolder(folder, kind()), 5, num_workers=2)._route().in_threads


def test_a_replaced_function_is_no_known_transform() -> None:
    pair = Pair()
    pair.t.forward = pair.t.__call__ = lambda image: image
    assert not only_calls_known_transforms(pair)
