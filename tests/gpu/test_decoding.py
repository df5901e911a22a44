"""On a CUDA device: what it decodes and augments has the bits of the host."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import DataLoader, ImageFolder, ShardDataset
from fastdata import transforms as v1
from fastdata.device.packed_batch import DecodedBatch
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.system import cuda

pytestmark = pytest.mark.gpu

CROP = v1.RandomResizedCrop(64), v1.RandomHorizontalFlip()
FLOATS = v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
JITTER = v1.ColorJitter(0.4, 0.4, 0.4, 0.2), v1.RandomGrayscale(0.2), v1.GaussianBlur(5)
EFFECTS = {
    "none": (),
    "RandAugment": (v1.RandAugment(),),
    "TrivialAugmentWide": (v1.TrivialAugmentWide(),),
    "jitter": JITTER,
}


@pytest.fixture
def decoded_there(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images of each batch the device has decoded."""
    counts, run = list[int](), DecodedBatch.run

    def counting(batch: DecodedBatch, arena: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counts.append(batch.packed)
        return run(batch, arena)

    monkeypatch.setattr(DecodedBatch, "run", counting)
    return counts


def assert_same(dataset: Any, **options: Any) -> None:
    common: dict[str, Any] = {"batch_size": 8, "seed": 4, "num_workers": 2, "shuffle": True, **options}
    device = DataLoader(dataset, device="cuda", decode_device="cuda", **common)
    for (ours, labels), (theirs, expected) in zip(device, DataLoader(dataset, **common), strict=True):
        assert ours.is_cuda
        assert torch.equal(ours.cpu(), theirs)
        assert torch.equal(labels.cpu(), expected)


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_unpacked_jpegs(
    folder: Path, tmp_path: Path, decoded_there: list[int], effects: str, layout: torch.memory_format
) -> None:
    convert(str(folder), tmp_path / "shards", ConvertOptions(recoding=Recoding(unpacked=True)))
    transform = v1.Compose([*CROP, *EFFECTS[effects], *FLOATS])
    assert_same(ShardDataset(tmp_path / "shards", transform=transform), memory_format=layout)
    assert sum(decoded_there) == 39


def test_plain_files_with_an_index(folder: Path, tmp_path: Path, decoded_there: list[int]) -> None:
    shutil.copytree(folder, tmp_path / "indexed")
    make_index(tmp_path / "indexed", images_below(tmp_path / "indexed"))
    assert_same(ImageFolder(tmp_path / "indexed", v1.Compose([*CROP, v1.PILToTensor()])))
    assert sum(decoded_there) == 39


def test_nothing_waits_for_the_device(folder: Path, tmp_path: Path) -> None:
    convert(str(folder), tmp_path / "shards", ConvertOptions(recoding=Recoding(unpacked=True)))
    dataset = ShardDataset(tmp_path / "shards", transform=v1.Compose([*CROP, v1.RandAugment(), *FLOATS]))
    loader = DataLoader(dataset, 8, device="cuda", decode_device="cuda", num_workers=2)
    list(loader)
    cuda.set_sync_debug_mode("error")
    try:
        assert sum(1 for _ in loader) == len(loader)
    finally:
        cuda.set_sync_debug_mode("default")
