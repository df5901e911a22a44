"""The user's step that takes most of a sample is named; real datasets, made slow on purpose."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest
import torch
from torchvision import transforms
from torchvision.transforms import v2

from fastdata.diagnosis.samples import measure_samples

SLOW_S = 0.01


class Blur:
    """Takes much longer than all else."""

    def __call__(self, image: Any) -> Any:
        time.sleep(SLOW_S)
        return image


class Halve(v2.Transform):
    def transform(self, image: Any, params: Any) -> Any:
        time.sleep(SLOW_S)
        return image / 2

    _transform = transform  # as older versions call it


class Images(torch.utils.data.Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.full((3, 8, 8), float(index)))


class Loads(Images):
    """Calls functions of its own."""

    def fetch(self, index: int) -> Any:
        time.sleep(SLOW_S)
        return torch.full((3, 8, 8), float(index))

    def sample_of(self, index: int) -> Any:
        return self.transform(self.fetch(index))

    def __getitem__(self, index: int) -> Any:
        return self.sample_of(index)


def scaled(image: Any) -> Any:
    return image * 2


STEPS = {
    "Blur": Images(transforms.Compose([scaled, Blur(), transforms.Normalize([0.5] * 3, [0.5] * 3)])),
    "Halve": torch.utils.data.Subset(Images(v2.Compose([v2.RandomHorizontalFlip(), Halve()])), range(32)),
    "Loads.fetch": Loads(scaled),
    "": Images(torch.abs),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_slowest_step_is_named_with_its_time(name: str) -> None:
    found, _ = measure_samples(STEPS[name], None, seconds=0.5)
    expected = name if sys.version_info >= (3, 11) else name.rpartition(".")[2]  # code knows no more of its class
    assert found.own_step == expected
    assert found.own_step_ms > 0.4 * found.total_ms or not name
    assert found.own_step_ms <= found.total_ms


def test_decoding_by_pillow_within_a_step_is_not_the_users(folder: Any) -> None:
    from PIL import Image

    files = sorted(folder.rglob("*.jpg"))

    class Files(Images):
        def read(self, index: int) -> Any:
            return Image.open(files[index % len(files)]).convert("RGB").resize((16, 16))

        def __getitem__(self, index: int) -> Any:
            return self.read(index)

    found, _ = measure_samples(Files(None), None, seconds=0.5)
    assert found.decode_ms > 0
    assert found.own_step_ms <= found.total_ms - found.decode_ms - found.resize_ms + 0.4 * found.total_ms


def test_another_profiler_is_left_in_its_place() -> None:
    def follow(*_: object) -> None:
        return None

    sys.setprofile(follow)
    try:
        found, _ = measure_samples(STEPS["Blur"], None, seconds=0.2)
        assert sys.getprofile() is follow
    finally:
        sys.setprofile(None)
    assert found.own_step == ""
