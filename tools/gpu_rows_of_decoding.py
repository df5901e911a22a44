"""Rows of gpu_check.py about decoding on the device: the same pixels, and its speed beside the core's and DALI's.

Without a GPU (--dry) the CPU decodes everywhere; the kernels have tests in Triton's interpreter (tests/interpreted).
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu_row import CLASSES, Failed, Row
from gpu_rows_of_speed import dali_by_hand, has_dali
from torch import nn
from torch.utils.data import ConcatDataset

from fastdata import DataLoader, ImageFolder, ShardDataset, transforms
from fastdata.jpeg_index.make import images_below, make_index
from fastdata.models import small_resnet
from fastdata.shards.conversion.convert import ConvertOptions, convert
from fastdata.shards.conversion.recode import Recoding
from fastdata.system.cpus import usable_cpus

__all__ = ["coefficients", "few_cores", "indexed", "small_model"]

ROUNDS, BATCHES, LONGEST_S = 5, 200, 4.0  # of a measurement
WINDOWS = 2000


def coefficients(row: Row) -> dict[str, Any]:
    """Unpacked JPEGs decoded on the device: bits, and speed with 1, 4 and 16 cores, beside the CPU and DALI."""
    dataset = _unpacked(row)
    found: dict[str, Any] = {"differing values": _differing(row, dataset)}
    for cores in (1, 4, 16):
        if cores <= usable_cpus() and not (row.dry and cores > 1):
            found[f"{cores} cores, images/s"] = _rates(row, cores, _ways(row, dataset, cores))
    found["gpu us per image"] = _gpu_us(row, dataset)
    short = [f"{found['differing values']} values differ"] if found["differing values"] else []
    if found["gpu us per image"] > 8:
        short.append(f"{found['gpu us per image']:.1f} us of the GPU an image, more than 8")
    for cores, times_cpu, times_dali in ((1, 3.5, 4.0), (4, 3.5, 3.0), (16, 2.0, 2.0)):
        rates = found.get(f"{cores} cores, images/s", {})
        for other, least in (("cpu", times_cpu), ("dali by hand", times_dali)):
            if other in rates and rates["device"] < least * rates[other]:
                short.append(f"{cores} cores: {rates['device'] / rates[other]:.2f} of {other}, less than {least}")
    return _judged(row, found, short)


def indexed(row: Row) -> dict[str, Any]:
    """Plain files with an index: the same bits as the CPU's, and nearly the speed of unpacked JPEGs."""
    cores = min(16, usable_cpus())
    plain, unpacked = _plain(row), _unpacked(row)
    ways = {name: _ways(row, each, cores)["device"] for name, each in (("indexed", plain), ("unpacked", unpacked))}
    found: dict[str, Any] = {"differing values": _differing(row, plain), "images/s": _rates(row, cores, ways)}
    short = [f"{found['differing values']} values differ"] if found["differing values"] else []
    share = found["images/s"]["indexed"] / found["images/s"]["unpacked"]
    if share < 0.85:
        short.append(f"{share:.2f} of unpacked JPEGs, less than 0.85")
    return _judged(row, found, short)


def few_cores(row: Row) -> dict[str, Any]:
    """A ResNet-50 in bfloat16 on two cores: on batches without loading, decoded on the device, by the CPU, by DALI."""
    found = _training(row, "resnet50", 64 if row.dry else 256, 2)
    share = found["images/s"]["device"] / found["images/s"]["synthetic"]
    return _judged(row, found, [f"{share:.2f} of synthetic, less than 0.95"] if share < 0.95 else [])


def small_model(row: Row) -> dict[str, Any]:
    """A ResNet-18 in bfloat16, batches of 512, sixteen cores: the share that each way of loading leaves."""
    return _training(row, "resnet18", 64 if row.dry else 512, min(16, usable_cpus()))


def _judged(row: Row, found: dict[str, Any], short: list[str]) -> dict[str, Any]:
    if short and not row.dry:
        raise Failed(f"{'; '.join(short)}: {found}")
    return found


def _steps(row: Row) -> transforms.Compose:
    size = 24 if row.dry else 224
    floats = transforms.ToTensor(), transforms.Normalize(transforms.IMAGENET_MEAN, transforms.IMAGENET_STD)
    return transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *floats])


def _unpacked(row: Row) -> Any:
    shards = Path(tempfile.mkdtemp(dir=row.scratch)) / "shards"
    convert(str(row.images()), shards, ConvertOptions(recoding=Recoding(unpacked=True)), workers=min(8, usable_cpus()))
    return ShardDataset(shards, transform=_steps(row))


def _plain(row: Row) -> Any:
    make_index(row.images(), images_below(row.images()), to=row.scratch, threads=min(8, usable_cpus()))
    os.environ["FASTDATA_INDEX_DIR"] = row.scratch
    return ImageFolder(row.images(), _steps(row))


def _long(dataset: Any, images: int) -> Any:
    return ConcatDataset([dataset] * -(-images // len(dataset)))


def _on_device(row: Row) -> dict[str, Any]:
    return {} if row.dry else {"device": row.device, "decode_device": "cuda"}


def _differing(row: Row, dataset: Any) -> int:
    """How many values of windows differ between the device and the host."""
    windows, batch = (6, 3) if row.dry else (WINDOWS, 100)
    some = torch.utils.data.Subset(_long(dataset, windows), range(windows))
    options: dict[str, Any] = {"seed": 7, "num_workers": min(8, usable_cpus())}
    host = DataLoader(some, batch, **options)
    device = DataLoader(some, batch, **options, **_on_device(row))
    pairs = zip(host, device, strict=True)
    return sum(int((ours[0] != theirs[0].cpu()).sum()) for ours, theirs in pairs)


def _ways(row: Row, dataset: Any, cores: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """Loaders by name; each makes an epoch of BATCHES."""
    batch = 8 if row.dry else 128
    longer = _long(dataset, batch * (4 if row.dry else BATCHES))
    common: dict[str, Any] = {"batch_size": batch, "num_workers": cores, "drop_last": True, "shuffle": True}
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "device": lambda: DataLoader(longer, **common, **_on_device(row)),
        "cpu": lambda: DataLoader(longer, **common, device=row.device),
    }
    if has_dali():
        ways["dali by hand"] = lambda: dali_by_hand(row, 24 if row.dry else 224, batch, cores, fancy=True)
    return ways


def _rates(row: Row, cores: int, ways: dict[str, Callable[[], Iterable[Any]]]) -> dict[str, float]:
    """Images/s of each way on so many cores: medians of interleaved rounds."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    with _on_cores(cores):
        for _ in range(1 if row.dry else ROUNDS):
            for name, make in ways.items():
                found[name].append(_rate(row, make()))
    return {name: statistics.median(rates) for name, rates in found.items()}


@contextmanager
def _on_cores(cores: int) -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[:cores]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _rate(row: Row, batches: Iterable[Any], train: Callable[[Any, Any], None] | None = None) -> float:
    """Images per second behind the first batches, for a few seconds."""
    images, began, skipped = 0, 0.0, 1 if row.dry else 8
    for number, (pixels, labels) in enumerate(batches):
        if number == skipped:
            row.wait()
            began = time.perf_counter()
        if train is not None:
            train(pixels.to(row.device), labels.to(row.device))
        images += len(pixels) if number >= skipped else 0
        if began and time.perf_counter() - began > LONGEST_S:
            break
    row.wait()
    return images / (time.perf_counter() - began)


def _gpu_us(row: Row, dataset: Any) -> float:
    """Microseconds of the device's work for an image, copies left out."""
    if row.dry:
        return 0.0
    batches = _ways(row, dataset, min(16, usable_cpus()))["device"]()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        images = sum(len(pixels) for pixels, _ in batches)
        row.wait()
    kernels = [each for each in profile.key_averages() if not each.key.lower().startswith("memcpy")]
    return float(sum(each.self_device_time_total for each in kernels) / images)


def _training(row: Row, name: str, batch: int, cores: int) -> dict[str, Any]:
    """Images/s of training with each way to load."""
    model = _model(row, name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train(pixels: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(row.device.type, torch.bfloat16):
            loss = nn.functional.cross_entropy(model(pixels), labels % CLASSES)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    dataset = _long(_unpacked(row), batch * (3 if row.dry else BATCHES))
    common: dict[str, Any] = {"num_workers": cores, "drop_last": True, "shuffle": True}
    common |= {"memory_format": torch.channels_last, "device": row.device}
    ways: dict[str, dict[str, Any]] = {
        "synthetic": {"backend": "synthetic"},
        "device": _on_device(row),
        "cpu": {},
    }
    if has_dali() and not row.dry:
        ways["dali"] = {"backend": "dali"}
    rates: dict[str, list[float]] = {each: [] for each in (*ways, "torch")}
    with _on_cores(cores):
        for _ in range(1 if row.dry else 3):
            for each, more in ways.items():
                rates[each].append(_rate(row, DataLoader(dataset, batch, **common, **more), train))
            theirs: Any = torch.utils.data.DataLoader(
                dataset, batch, num_workers=cores, drop_last=True, shuffle=True, pin_memory=not row.dry
            )
            rates["torch"].append(_rate(row, theirs, train))
    return {"images/s": {each: statistics.median(found) for each, found in rates.items()}, "batch": batch}


def _model(row: Row, name: str) -> nn.Module:
    if row.dry:
        return small_resnet(CLASSES).to(row.device)
    import torchvision

    torch.backends.cudnn.benchmark = True
    model: Any = getattr(torchvision.models, name)(num_classes=CLASSES)
    made: nn.Module = model.to(row.device, memory_format=torch.channels_last)
    return made
