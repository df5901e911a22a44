"""Rows of gpu_check.py that measure speed: training, decoding and augmentations, each against its alternatives."""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_row import CLASSES, Failed, Row
from torch import nn

from fastdata import DataLoader, FastdataError, ImageFolder, transforms
from fastdata.loaders import available_backends
from fastdata.models import small_resnet
from fastdata.system.cpus import usable_cpus

BATCHES = 40  # measured for a speed


def resnet50(row: Row) -> dict[str, Any]:
    """A ResNet-50 trains in bfloat16 on batches that cost nothing, the native core's, DALI's, and torch's."""
    model, name = _resnet50(row)
    if not row.dry and name != "ResNet-50":
        return {"outcome": "skipped", "why": "it needs torchvision, which has the model"}
    size, batch = (32, 8) if row.dry else (224, 256)
    workers = min(16, usable_cpus())
    # The first ones, which workers have ready when the epoch begins, are not counted.
    skipped, counted = (2, 2) if row.dry else (2 * workers, max(BATCHES, 4 * workers))
    steps = [
        transforms.RandomResizedCrop(size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(transforms.IMAGENET_MEAN, transforms.IMAGENET_STD),
    ]
    dataset = _repeated(row, steps, batch * (skipped + counted))
    common: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "drop_last": True, "shuffle": True}
    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "synthetic": lambda: DataLoader(dataset, device=row.device, backend="synthetic", **common),
        "native": lambda: DataLoader(dataset, device=row.device, backend="native", **common),
        "torch": lambda: torch.utils.data.DataLoader(dataset, pin_memory=not row.dry, **common),
    }
    if has_dali():
        loaders["dali"] = lambda: DataLoader(dataset, device=row.device, backend="dali", **common)
    rates = {each: _rate(row, model, make(), batch, skipped) for each, make in loaders.items()}
    loading = _rate(row, None, loaders["native"](), batch, skipped)
    share = rates["native"] / rates["synthetic"]
    bound = "decoding" if loading < 1.05 * rates["native"] else "computing"
    found = {"model": name, "images_per_s": rates, "native alone": loading, "share": share, "bound by": bound}
    if not row.dry and share < 0.95 and bound != "decoding":
        raise Failed(f"training has {share:.0%} of the speed that it has without loading: {found}")
    return found


def decoding(row: Row) -> dict[str, Any]:
    """Batches for training, on the device: by the core, by DALI on either and by itself, by torch's processes."""
    size, batch = (32, 8) if row.dry else (224, 128)
    steps = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    steps.append(transforms.Normalize(transforms.IMAGENET_MEAN, transforms.IMAGENET_STD))
    ways: dict[str, dict[str, Any]] = {"native": {"backend": "native"}}
    if has_dali():
        ways["dali, CPU"] = {"backend": "dali", "decode_device": "cpu"}
        if not row.dry:
            ways["dali, GPU"] = {"backend": "dali", "decode_device": "mixed"}
    found = _compared(row, _repeated(row, steps, batch * (4 if row.dry else BATCHES)), batch, ways)
    workers = min(16, usable_cpus())
    skipped = 1 if row.dry else 2 * workers  # what its workers have ready when the epoch begins
    dataset = _repeated(row, steps, batch * (skipped + (2 if row.dry else BATCHES)))
    torchs: Any = torch.utils.data.DataLoader(
        dataset, batch, num_workers=workers, drop_last=True, pin_memory=not row.dry
    )
    if has_dali():
        found["dali by hand"] = {
            "images_per_s": _rate(row, None, dali_by_hand(row, size, batch, min(16, usable_cpus())), batch)
        }
    return {**found, "torch": {"images_per_s": _rate(row, None, torchs, batch, skipped)}}


def dali_by_hand(row: Row, size: int, batch: int, threads: int, *, fancy: bool = False) -> Iterable[Any]:
    """DALI's pipeline as its documentation builds it: it reads, draws, decodes and normalises by itself.

    `fancy`: chroma is upsampled as libjpeg does it, which costs DALI a seventh, and without which pixels are others.
    """
    from nvidia.dali import fn, pipeline_def, types

    device = "cpu" if row.dry else "mixed"

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None if row.dry else 0)  # type: ignore[untyped-decorator, unused-ignore]
    def define() -> Any:
        encoded, labels = fn.readers.file(file_root=str(row.images()), random_shuffle=True)
        images = fn.decoders.image_random_crop(
            encoded,
            device=device,
            random_area=[0.08, 1.0],
            random_aspect_ratio=[3 / 4, 4 / 3],
            jpeg_fancy_upsampling=fancy,
        )
        images = fn.resize(images, size=[size, size], antialias=True)
        mean, std = ([255 * each for each in known] for known in (transforms.IMAGENET_MEAN, transforms.IMAGENET_STD))
        images = fn.crop_mirror_normalize(
            images, crop=(size, size), mirror=fn.random.coin_flip(), dtype=types.FLOAT, mean=mean, std=std
        )
        return images, labels

    pipeline = define()
    pipeline.build()
    for _ in range(4 if row.dry else BATCHES):
        images, labels = (torch.utils.dlpack.from_dlpack(each.as_tensor()) for each in pipeline.run())
        yield images, labels.flatten()


def augmentations(row: Row) -> dict[str, Any]:
    """RandAugment by the core on the host, on the device after the core, and on the device after DALI."""
    size, batch = (32, 8) if row.dry else (224, 64)
    steps = [transforms.RandomResizedCrop(size), transforms.RandAugment(), transforms.ToTensor()]
    ways: dict[str, dict[str, Any]] = {
        "host": {"backend": "native", "augment_on": "host"},
        "device": {"backend": "native", "augment_on": "device"},
    }
    if has_dali():
        ways["device after dali"] = {"backend": "dali", "augment_on": "device"}
    return _compared(row, _repeated(row, steps, batch * (4 if row.dry else BATCHES)), batch, ways)


def _compared(row: Row, dataset: ImageFolder, batch: int, ways: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Figures of each way to load: images/s, and of a batch the host's and the device's milliseconds."""
    common: dict[str, Any] = {"batch_size": batch, "num_workers": min(16, usable_cpus()), "drop_last": True}
    found: dict[str, Any] = {}
    for name, more in ways.items():
        try:
            loader = DataLoader(dataset, device=row.device, **common, **more)
            found[name] = {"images_per_s": _rate(row, None, loader, batch), **_costs(row, loader)}
        except (FastdataError, RuntimeError) as error:  # the other ways' figures are kept
            found[name] = f"{type(error).__name__}: {error}"[:300]
    if wrong := [name for name, each in found.items() if isinstance(each, str)]:
        raise Failed(f"{', '.join(wrong)}: {found}")
    return found


def _costs(row: Row, loader: Iterable[Any]) -> dict[str, float]:
    """Of a batch: the consumer's milliseconds on the host without waiting for data, and those of the device's work."""
    count, begun = 0, time.thread_time()
    for _ in loader:
        count += 1
    found = {"consumer_ms": 1e3 * (time.thread_time() - begun) / count}
    if row.dry:
        return found
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in loader:
            pass
        row.wait()
    return {**found, "gpu_ms": sum(each.self_device_time_total for each in profile.key_averages()) / 1e3 / count}


def _repeated(row: Row, steps: list[Any], count: int) -> ImageFolder:
    """The row's folder with its samples again and again, so that an epoch has a given length."""
    longer = copy.copy(ImageFolder(row.images(), transforms.Compose(steps)))
    times = -(-count // len(longer.samples))
    longer.samples = (list(longer.samples) * times)[:count]
    longer.targets = [target for _, target in longer.samples]
    return longer


def _rate(row: Row, model: nn.Module | None, loader: Iterable[Any], batch: int, skipped: int = 2) -> float:
    """Images per second of training, or of loading alone, without the first batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if model is not None else None
    counted, began = 0, 0.0
    for number, (images, labels) in enumerate(loader):
        if number == skipped:
            row.wait()
            began = time.perf_counter()
        counted += number > skipped
        images, labels = images.to(row.device, non_blocking=True), labels.to(row.device, non_blocking=True)
        if model is not None and optimizer is not None:
            with torch.autocast(row.device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels % CLASSES)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    row.wait()
    return batch * counted / (time.perf_counter() - began)


def _resnet50(row: Row) -> tuple[nn.Module, str]:
    if row.dry or importlib.util.find_spec("torchvision") is None:
        return small_resnet(CLASSES).to(row.device), "small ResNet"
    from torchvision.models import resnet50 as create

    torch.backends.cudnn.benchmark = True
    return create(num_classes=CLASSES).to(row.device, memory_format=torch.channels_last), "ResNet-50"


def has_dali() -> bool:
    """True if DALI is installed."""
    return "dali" in available_backends()
