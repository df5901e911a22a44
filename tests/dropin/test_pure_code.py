"""Classes that only call known transforms are told from their source; all others run where torch runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.lazy.pure_code import only_calls_known_transforms
from fastdata.transforms.known import holds_only_known

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


def own(image: Any) -> Any:
    return image


class OwnModule(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return image


def hooked() -> Any:
    step = v1.Resize((8, 8))
    step.register_forward_pre_hook(lambda module, given: None)
    return step


@functools.wraps(v1.functional.hflip)
def wrapped(image: Any) -> Any:
    return image


class OwnFlip(v1.RandomHorizontalFlip):
    pass


END = [v1.Resize((8, 8)), v1.ToTensor()]
HOLDING_OWN: dict[str, Callable[[], Any]] = {
    "a function first": lambda: v1.Compose([own, *END]),
    "a function between": lambda: v1.Compose([v1.Resize(9), own, *END]),
    "a lambda": lambda: v1.Compose([v1.Lambda(lambda image: image), *END]),
    "v2's lambda": lambda: v2.Compose([v2.Lambda(own), v2.Resize((8, 8)), v2.PILToTensor()]),
    "applied at random": lambda: v1.Compose([v1.RandomApply([own], p=0.5), *END]),
    "chosen": lambda: v1.Compose([v1.RandomChoice([own, v1.RandomHorizontalFlip()]), *END]),
    "in random order": lambda: v1.Compose([v1.RandomOrder([own, v1.RandomHorizontalFlip()]), *END]),
    "nested": lambda: v1.Compose([v1.Compose([own]), *END]),
    "a module": lambda: v2.Compose([OwnModule(), v2.Resize((8, 8)), v2.PILToTensor()]),
    "modules in a row": lambda: v1.Compose([torch.nn.Sequential(OwnModule(), v1.Resize((8, 8))), v1.ToTensor()]),
    "a wrapped function": lambda: v1.Compose([wrapped, *END]),
    "a method of an own class": lambda: v1.Compose([v1.Lambda(OwnFlip().forward), *END]),
    "a hook": lambda: v1.Compose([hooked(), v1.ToTensor()]),
}
HOLDING_NONE: dict[str, Callable[[], Any]] = {
    "v1": lambda: v1.Compose(STEPS),
    "v1, nested": lambda: v1.Compose([v1.RandomApply([v1.ColorJitter(0.4)], p=0.5), v1.Compose(STEPS)]),
    "v2": lambda: v2.Compose(
        [
            v2.RandomResizedCrop(16, antialias=True),
            v2.RandAugment(),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
        ]
    ),
    "modules in a row": lambda: torch.nn.Sequential(v1.Resize((8, 8)), v1.CenterCrop(6)),
    "a policy": lambda: v1.Compose([v1.AutoAugment(), *END, v1.RandomErasing()]),
}


@pytest.mark.parametrize("name", HOLDING_OWN)
def test_own_steps_of_a_librarys_container_run_where_torch_runs_them(folder: Path, name: str) -> None:
    transform = HOLDING_OWN[name]()
    assert not holds_only_known(transform)
    assert not DataLoader(ImageFolder(folder, transform), 5, num_workers=2)._route().in_threads
    pair = Pair()
    pair.t = transform
    assert not only_calls_known_transforms(pair)


@pytest.mark.parametrize("name", HOLDING_NONE)
def test_a_librarys_steps_hold_nothing_of_the_users(folder: Path, name: str) -> None:
    transform = HOLDING_NONE[name]()
    assert holds_only_known(transform) == (type(transform) is not torch.nn.Sequential)
    for outer in (v1.Compose([transform]), v2.Compose([transform, v2.RandomHorizontalFlip()])):
        assert holds_only_known(outer)


def test_timms_steps_hold_nothing_of_the_users() -> None:
    timm_data = pytest.importorskip("timm.data")
    augmented = {"auto_augment": "rand-m9-mstd0.5-inc1", "re_prob": 0.25, "color_jitter": 0.4}
    assert holds_only_known(timm_data.create_transform(64, is_training=True, **augmented))
    assert holds_only_known(timm_data.create_transform(64, is_training=True, auto_augment="augmix-m5-w4-d2"))
    assert holds_only_known(timm_data.create_transform(64))


def test_an_own_step_sees_its_worker_process_and_draws_its_numbers(folder: Path) -> None:
    seen: list[Any] = []

    def step(image: Any) -> Any:
        seen.append(image.size)
        info = torch.utils.data.get_worker_info()
        assert info is not None
        return image.rotate(float(torch.rand(())) * 90 + info.id)

    dataset = ImageFolder(folder, v1.Compose([step, v1.Resize((8, 8)), v1.ToTensor()]))
    batches = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        torch.manual_seed(4)
        batches.append(torch.cat([images for images, _ in kind(dataset, 5, num_workers=2)]))
    assert torch.equal(*batches)
    assert not seen  # in this process
