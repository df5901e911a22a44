"""On a CUDA device: same bits, safe hand-over, pinned memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, DevicePrefetcher

pytestmark = pytest.mark.gpu

TRAIN = v1.Compose(
    [v1.RandomResizedCrop(64), v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_float_work_on_the_device_has_the_hosts_bits(folder: Path, layout: torch.memory_format) -> None:
    options: dict[str, Any] = {"batch_size": 5, "seed": 2, "num_workers": 2, "memory_format": layout}
    dataset = ImageFolder(folder, TRAIN)
    pairs = zip(DataLoader(dataset, device="cuda", **options), DataLoader(dataset, **options), strict=True)
    for (device_images, device_labels), (host_images, host_labels) in pairs:
        assert device_images.is_cuda
        assert device_images.is_contiguous(memory_format=layout)
        assert torch.equal(device_images.cpu(), host_images)
        assert torch.equal(device_labels.cpu(), host_labels)


def test_batches_survive_slow_kernels_of_the_consumer() -> None:
    """Without record_stream the copy stream would write the next batches over memory still being read."""
    batches = [torch.full((1 << 22,), float(n)).pin_memory() for n in range(24)]
    sums = []
    for batch in DevicePrefetcher(batches, "cuda", depth=2):
        torch.cuda._sleep(20_000_000)
        sums.append(batch.sum())
        del batch
    assert [int(total.item()) >> 22 for total in sums] == list(range(24))


def test_kept_batches_keep_their_values() -> None:
    kept = list(DevicePrefetcher([torch.full((1 << 20,), float(n)) for n in range(16)], "cuda"))
    assert [batch[0].item() for batch in kept] == list(range(16))


def test_pin_memory_pins(folder: Path) -> None:
    batch_images, labels = next(iter(DataLoader(ImageFolder(folder, TRAIN), 4, pin_memory=True)))
    assert batch_images.is_pinned()
    assert labels.is_pinned()


def test_no_synchronisation_in_the_loop(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, TRAIN), 5, device="cuda", num_workers=2)
    list(loader)
    torch.cuda.set_sync_debug_mode("error")
    try:
        count = sum(1 for _ in loader)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert count == len(loader)
