"""On a CUDA device: same bits, safe hand-over, pinned memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import DataLoader, DevicePrefetcher, ImageFolder, doctor
from fastdata import transforms as v1
from fastdata.loaders import mean_tolerance
from fastdata.system import cuda

pytestmark = pytest.mark.gpu

TRAIN = v1.Compose(
    [v1.RandomResizedCrop(64), v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)


def keep_busy() -> None:
    """Gives the device about 10 ms of work."""
    torch.cuda._sleep(20_000_000)  # type: ignore[no-untyped-call]


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
        keep_busy()
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
    cuda.set_sync_debug_mode("error")
    try:
        count = sum(1 for _ in loader)
    finally:
        cuda.set_sync_debug_mode("default")
    assert count == len(loader)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("decode_device", ["cpu", "mixed"])
def test_dali_gives_the_batches_of_the_others(folder: Path, decode_device: Any, layout: torch.memory_format) -> None:
    options: dict[str, Any] = {"batch_size": 5, "seed": 2, "num_workers": 2, "memory_format": layout, "shuffle": True}
    dataset = ImageFolder(folder, TRAIN)
    dali = DataLoader(dataset, device="cuda", backend="dali", decode_device=decode_device, **options)
    for (ours, our_labels), (pils, labels) in zip(dali, DataLoader(dataset, backend="pil", **options), strict=True):
        assert ours.is_cuda
        assert our_labels.is_cuda
        assert ours.is_contiguous(memory_format=layout)
        assert torch.equal(our_labels.cpu(), labels)
        tolerance = mean_tolerance("dali")
        assert tolerance is not None
        assert (ours.cpu() - pils).abs().mean() * 255 * 0.224 <= 2 * tolerance


def test_dalis_batches_survive_slow_kernels_and_being_kept(folder: Path) -> None:
    transform = v1.Compose([v1.Resize((64, 64)), v1.PILToTensor()])
    options: dict[str, Any] = {"batch_size": 4, "backend": "dali", "device": "cuda", "num_workers": 2}
    dataset = ImageFolder(folder, transform)
    expected = [images.cpu() for images, _ in DataLoader(dataset, **options)]
    sums, kept = [], []
    for images, _ in DataLoader(dataset, memory_format=torch.channels_last, **options):
        keep_busy()
        sums.append(images.sum())
        kept.append(images)
    assert [total.item() for total in sums] == [images.sum().item() for images in expected]
    assert all(torch.equal(images.cpu(), other) for images, other in zip(kept, expected, strict=True))


def test_a_damaged_image_on_the_gpu_leaves_its_neighbours_unharmed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    path = tmp_path / "copy" / "apple" / "05.jpg"
    data = bytearray(path.read_bytes())
    data[400:600] = b"\xff\xc4\x00\x10" * 50
    path.write_bytes(data)
    options: dict[str, Any] = {"batch_size": 4, "backend": "dali", "device": "cuda", "on_error": "skip"}
    sizes = [len(labels) for _, labels in DataLoader(ImageFolder(tmp_path / "copy", TRAIN), **options)]
    assert sizes[:3] == [4, 3, 4]


def test_augmentations_do_not_depend_on_the_device(folder: Path) -> None:
    steps: list[Callable[[Any], Any]] = [
        v1.RandomResizedCrop(64),
        v1.RandAugment(),
        v1.ColorJitter(0.3, 0.3, 0.3, 0.1),
        v1.ToTensor(),
    ]
    dataset = ImageFolder(folder, v1.Compose([*steps, v1.RandomErasing(0.5)]))
    options: dict[str, Any] = {"batch_size": 5, "seed": 2, "backend": "native", "augment_on": "device"}
    on_device = DataLoader(dataset, device="cuda", **options)
    for (device_images, _), (host_images, _) in zip(on_device, DataLoader(dataset, **options), strict=True):
        # Bilinear weights and sums are rounded differently on a GPU: a grey level here and there.
        assert ((device_images.cpu() - host_images).abs() > 1.5 / 255).float().mean() < 0.01


@pytest.mark.backend("dali")
def test_dalis_augmentations_on_the_gpu_are_those_of_its_cpu_pipeline(folder: Path) -> None:
    steps: list[Callable[[Any], Any]] = [v1.RandomResizedCrop(64), v1.RandAugment(), v1.ColorJitter(0.3, 0.3, 0.3, 0.1)]
    steps += [v1.RandomGrayscale(0.3), v1.GaussianBlur(5), v1.PILToTensor()]
    dataset = ImageFolder(folder, v1.Compose(steps))
    options: dict[str, Any] = {"batch_size": 5, "seed": 2, "backend": "dali", "augment_on": "device"}
    on_gpu = DataLoader(dataset, device="cuda", **options)
    for (gpu_images, gpu_labels), (images, labels) in zip(on_gpu, DataLoader(dataset, **options), strict=True):
        assert torch.equal(gpu_labels.cpu(), labels)
        difference = (gpu_images.cpu().float() - images.float()).abs().mean(dim=(1, 2, 3))
        assert difference.median() < 1  # nvJPEG rounds otherwise, which equalising makes larger
        assert difference.max() < 10


def test_synthetic_batches_lie_on_the_device(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, TRAIN), 5, device="cuda", backend="synthetic")
    first, second = (images for images, _ in list(loader)[:2])
    assert first.is_cuda
    assert first.data_ptr() == second.data_ptr()
    assert first.dtype is torch.float32


def test_static_batches_feed_a_cuda_graph() -> None:
    batches = [torch.full((1 << 16,), float(n)) for n in range(20)]
    total = torch.zeros((), device="cuda")
    graph, sums = torch.cuda.CUDAGraph(), []
    for number, batch in enumerate(DevicePrefetcher(batches, "cuda", depth=2, static=True)):
        if number == 0:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                total.copy_(batch.mean())
        graph.replay()
        sums.append(total.clone())
    assert [value.item() for value in sums] == list(range(20))


@pytest.mark.parametrize("options", [{"backend": "dali"}, {"backend": "native", "augment_on": "device"}], ids=str)
def test_no_synchronisation_while_decoding_or_augmenting(folder: Path, options: dict[str, Any]) -> None:
    steps: list[Callable[[Any], Any]] = [
        v1.RandomResizedCrop(64),
        v1.RandAugment(),
        v1.ToTensor(),
        v1.RandomErasing(0.5),
    ]
    transform = v1.Compose(steps) if "augment_on" in options else TRAIN
    loader = DataLoader(ImageFolder(folder, transform), 5, device="cuda", num_workers=2, **options)
    list(loader)
    cuda.set_sync_debug_mode("error")
    try:
        assert sum(1 for _ in loader) == len(loader)
    finally:
        cuda.set_sync_debug_mode("default")


def test_the_doctor_times_augmentations_on_the_device(folder: Path) -> None:
    augmented = v1.Compose([v1.RandomResizedCrop(64), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor()])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 3)).cuda()
    seen = doctor(model, DataLoader(ImageFolder(folder, augmented), 4, shuffle=True, num_workers=1), seconds=4.0).seen
    assert seen.facts.device == "cuda"
    assert seen.changed["augment_on_device"].images_per_s > 0
