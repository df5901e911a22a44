"""What training gets from each backend: images per second, share of the time spent waiting, ratio to free data.

Setup: a model of fastdata.train or torchvision, channels_last, on a GPU AMP bf16, RandomResizedCrop and flip; every
backend in turn in every round, torch's DataLoader with torchvision beside them, all through the same loop.  "synthetic"
decodes nothing: it is what the model alone allows.  On a CPU model and decoders share the cores, so its ratios are a
lower bound; on a GPU they do not, and the utilisation is read where the driver tells it.  Also what the loop itself
adds to a step, and on a GPU the share of copy time that kernels hide.  Result: benchmarks/results/train.json.

    python benchmarks/train.py FOLDER --model resnet50 --batch-size 256
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.data
from harness import benchmark, hidden_share
from torch import nn
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.loaders import available_backends
from fastdata.measuring.rounds import spread
from fastdata.models import create_model
from fastdata.train import Training, TrainOptions, train_epoch
from fastdata.train.monitor import Monitor

TORCH, SYNTHETIC = "torch + torchvision", "synthetic"
NOT_MEASURED = "not measured: no CUDA device"


def make_loaders(given: Namespace, device: torch.device) -> dict[str, Callable[[], Any]]:
    """One function per contender that makes its loader."""
    steps = [transforms.RandomResizedCrop(given.size), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    normalise = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    once = ImageFolder(given.folder, transforms.Compose([*steps, normalise]))
    dataset: Any = ConcatDataset([once] * -(-given.images // len(once)))
    options: dict[str, Any] = {"batch_size": given.batch_size, "shuffle": True, "drop_last": True}
    options |= {"num_workers": given.workers}
    ours = {"device": device, "memory_format": torch.channels_last, **options}
    pinned = {"pin_memory": device.type == "cuda", "persistent_workers": True, **options}
    made: dict[str, Callable[[], Any]] = {
        name: partial(DataLoader, dataset, backend=name, **ours) for name in available_backends()
    }
    made[TORCH] = partial(torch.utils.data.DataLoader, dataset, **pinned)
    return made


def by_backend(given: Namespace, options: TrainOptions) -> dict[str, Any]:
    """Trains with every loader in turn and returns rounds by name."""
    device = options.torch_device()
    loaders = {name: make() for name, make in make_loaders(given, device).items()}
    torch.manual_seed(0)
    training = Training(create_model(given.model, 1000), options, batches_per_epoch=1 << 30)
    names = ("images_per_s", "wait_share", "gpu_utilisation")
    rows: dict[str, dict[str, list[float]]] = {name: {each: [] for each in names} for name in loaders}
    for round_ in range(1 + given.rounds):  # the first warms up
        for name, loader in loaders.items():
            monitor, used = Monitor(training), _Utilisation(device)
            began = time.perf_counter()
            train_epoch(training, used.monitored(loader), monitor=monitor)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - began
            if round_ > 0:
                images = len(loader) * given.batch_size
                rows[name]["images_per_s"].append(images / seconds)
                rows[name]["wait_share"].append(monitor.seconds["wait"] / seconds)
                rows[name]["gpu_utilisation"] += used.mean()
        print(f"round {round_} of {given.rounds} done")
    ceiling = rows[SYNTHETIC]["images_per_s"]
    results: dict[str, Any] = {}
    for name, row in rows.items():
        ratio = [a / b for a, b in zip(row["images_per_s"], ceiling, strict=True)]
        results[name] = {key: spread(values) for key, values in row.items() if values}
        results[name]["ratio_to_synthetic"] = spread(ratio)
        results[name].setdefault("gpu_utilisation", NOT_MEASURED)
    return results


class _Utilisation:
    """Reads the GPU's utilisation with every batch, where the driver tells it."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._values = device, list[float]()

    def monitored(self, loader: Any) -> Any:
        for number, batch in enumerate(loader):
            if self._device.type == "cuda" and number % 10 == 5:
                with contextlib.suppress(ImportError, RuntimeError):  # pynvml is not installed
                    self._values.append(torch.cuda.utilization(self._device) / 100)
            yield batch

    def mean(self) -> list[float]:
        return [sum(self._values) / len(self._values)] if self._values else []


def copies_hidden(given: Namespace, options: TrainOptions) -> Any:
    """Share of host-to-device copy time during which kernels run, from a profiler's trace of ten steps."""
    device = options.torch_device()
    if device.type != "cuda":
        return NOT_MEASURED
    loader = make_loaders(given, device)["native"]()
    training = Training(create_model(given.model, 1000), options, batches_per_epoch=1 << 30)
    batches = iter(loader)
    train_epoch(training, [next(batches) for _ in range(3)])
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as trace:
        train_epoch(training, (batch for _, batch in zip(range(10), batches, strict=False)))
        torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        trace.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    timed = [event for event in events if "dur" in event]
    copies = [(e["ts"], e["ts"] + e["dur"]) for e in timed if "HtoD" in e["name"]]
    kernels = [(e["ts"], e["ts"] + e["dur"]) for e in timed if e.get("cat") == "kernel"]
    return {"copies": len(copies), "hidden_share": hidden_share(copies, kernels)}


def loop_overhead(rounds: int) -> dict[str, Any]:
    """What the loop adds to a step of a plain one, on the CPU: measured with a model that costs next to nothing."""
    images, labels = torch.randn(8, 3, 8, 8), torch.zeros(8, dtype=torch.int64)
    batches = [(images.contiguous(memory_format=torch.channels_last), labels)] * 400
    options = TrainOptions(batch_size=8, device="cpu", lr=1e-4, print_freq=100, lr_scheduler="constant")
    added = []
    for _ in range(rounds):
        training = Training(nn.Sequential(nn.Flatten(), nn.Linear(192, 8)), options, batches_per_epoch=len(batches))
        began = time.perf_counter()
        train_epoch(training, batches)
        middle = time.perf_counter()
        for x, y in batches:
            loss = training.criterion(training.model(x), y)
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad(set_to_none=True)
        added.append((middle - began - (time.perf_counter() - middle)) / len(batches))
    resnet = Training(create_model("resnet18", 1000), options, batches_per_epoch=8)
    x, y = (
        torch.randn(32, 3, 224, 224).contiguous(memory_format=torch.channels_last),
        torch.zeros(32, dtype=torch.int64),
    )
    steps = []
    for _ in range(4):
        began = time.perf_counter()
        train_epoch(resnet, [(x, y)])
        steps.append(time.perf_counter() - began)
    return {
        "added_s_per_step": spread(added),
        "resnet18_step_s": spread(steps[1:]),
        "share_of_step": spread([value / min(steps) for value in added]),
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Training with every backend, and what the loop costs."""
    options = TrainOptions(
        batch_size=given.batch_size,
        amp="bf16" if torch.cuda.is_available() else "none",
        lr=1e-3,
        lr_scheduler="constant",
        print_freq=10**6,
        epochs=1,
    )
    results = {
        "backends": by_backend(given, options),
        "copies_hidden_behind_compute": copies_hidden(given, options),
        "loop_overhead": loop_overhead(5),
    }
    for name, row in results["backends"].items():
        told = {key: value["median"] if isinstance(value, dict) else value for key, value in row.items()}
        print(
            f"{name:<22}" + "  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in told.items())
        )
    device = options.torch_device()
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, shared by model and decoders"
    given.setup = (
        f"{given.model}, batch {given.batch_size}, amp {options.amp}, channels_last, crops of {given.size}; "
        f"device: {where}"
    )
    return results


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--model", default="small", help="of fastdata.train, torchvision or timm (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="side of the crops (%(default)s)")


if __name__ == "__main__":
    told = "one folder of images per class"
    benchmark(__file__, measured, folder=told, add=arguments, images=1000, workers=2, rounds=3)
