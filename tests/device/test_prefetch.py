"""DevicePrefetcher on the CPU; what needs a device is in gpu/."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DevicePrefetcher, OptionError
from fastdata.augment.ops import normalise
from fastdata.device.prefetch import map_tensors
from fastdata.train import TrainOptions
from fastdata.views.levels import Levels
from fastdata.views.plan import Normalisation

Pair = namedtuple("Pair", ["left", "right"])


def test_on_the_cpu_batches_are_handed_through_untouched() -> None:
    batches = [[torch.ones(2), {"a": torch.zeros(1), "name": "x"}], [torch.ones(3), {"a": torch.ones(1), "name": "y"}]]
    got = list(DevicePrefetcher(batches, "cpu"))
    assert got[0][0] is batches[0][0]
    assert got[1][1]["name"] == "y"
    assert len(DevicePrefetcher(batches, "cpu")) == 2


def test_nested_structures_keep_their_types() -> None:
    value: Any = Pair((torch.ones(1), "text"), [{"deep": torch.ones(2), "none": None}])
    doubled = map_tensors(value, lambda tensor: tensor * 2)
    assert type(doubled) is Pair
    assert type(doubled.left) is tuple
    assert doubled.left[1] == "text"
    assert doubled.right[0]["deep"].tolist() == [2.0, 2.0]
    assert doubled.right[0]["none"] is None


def test_a_missing_device_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(OptionError, match="device='cuda', but torch sees no CUDA device"):
        DataLoader([1], device="cuda")
    with pytest.raises(OptionError, match="depth=0"):
        DevicePrefetcher([], "cpu", depth=0)


@pytest.mark.parametrize("name", ["mps", "xpu", "hpu:1"])
def test_a_missing_device_of_another_maker_is_named(name: str) -> None:
    message = f"device='{name}' cannot be used on this machine .*; use device='cpu' or leave it out"
    with pytest.raises(OptionError, match=message):
        DataLoader([1], device=name)
    with pytest.raises(OptionError, match=message):
        TrainOptions(device=name).torch_device()


@pytest.mark.parametrize("options", [{}, {"augment_on": "device"}, {"backend": "pil"}], ids=str)
def test_a_device_that_is_not_cuda_gets_finished_batches(folder: Path, options: dict[str, Any]) -> None:
    """The meta device stands for an accelerator of another maker: it takes tensors, and has no streams."""
    transform = v1.Compose([v1.RandomResizedCrop(16), v1.ColorJitter(0.3), v1.ToTensor(), v1.Normalize([0.5], [0.5])])
    loader = DataLoader(ImageFolder(folder, transform), 4, device="meta", **options)
    batches = list(loader)
    assert len(batches) == len(loader)
    for images, labels in batches:
        assert (images.device.type, labels.device.type, images.dtype) == ("meta", "meta", torch.float32)
        assert images.shape[1:] == (3, 16, 16)


def test_device_cpu_changes_nothing(folder: Path) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    pairs = zip(DataLoader(dataset, 4, device="cpu"), DataLoader(dataset, 4), strict=True)
    assert all(torch.equal(a[0], b[0]) for a, b in pairs)
    assert next(iter(DataLoader(torch.arange(4), 2, device="cpu"))).tolist() == [0, 1]


@pytest.mark.parametrize("scaling", ["divide", "multiply", "none"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_normalise_has_the_bits_of_the_table(scaling: str, layout: torch.memory_format) -> None:
    levels = (
        torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16).contiguous(memory_format=layout)
    )
    for mean, std in ((None, None), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))):
        normalisation = Normalisation(scaling=scaling, mean=mean, std=std)
        expected = Levels.of(normalisation).table().view(1, 3, 16, 16).expand(2, 3, 16, 16)
        statistics = [torch.tensor(each) for each in (mean, std) if each is not None]
        got = normalise(levels, *statistics, normalisation=normalisation)
        assert torch.equal(got, expected)
        assert got.is_contiguous(memory_format=layout)


def test_pin_memory_without_accelerator_warns_as_torch_does(folder: Path) -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    dataset = ImageFolder(folder, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator is found"):
        next(iter(DataLoader(dataset, pin_memory=True)))
