"""The rows of gpu_check.py: each function makes one, and returns its figures or raises `Failed`.

python tools/gpu_rows.py ROW --out FILE [--images FOLDER] [--dry]
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout; in a bundle the package is installed

import torch
from torch import nn

from fastdata import DataLoader, DevicePrefetcher, ImageFolder, doctor, transforms
from fastdata.models import small_resnet
from fastdata.native import available
from fastdata.testing import synthetic_dataset
from fastdata.train import TrainOptions, fit
from fastdata.train.ranks import SHARE_GPU
from fastdata.train.searches import find_batch_size

ROOT = Path(__file__).resolve().parents[1]
CLASSES = 8
BATCHES = 40  # measured for a speed
TOLERANCES = {"bf16": 0.15, "fp16": 0.1, "fp8": 0.5, "compile": 0.02}  # of losses against float32's, relative


class Failed(Exception):
    """A row has not found what it must."""


class Row:
    """Options of a row, and what rows share."""

    def __init__(self, images: Path | None, dry: bool) -> None:
        self.dry, self.device = dry, torch.device("cpu" if dry else "cuda")
        self._scratch = tempfile.TemporaryDirectory()
        self._images = images

    def images(self) -> Path:
        """A folder of JPEGs by class."""
        if self._images is None:
            many, size = (8, (96, 72)) if self.dry else (160, (500, 375))
            self._images = synthetic_dataset(
                Path(self._scratch.name) / "images", classes=CLASSES, images_per_class=many, size_px=size
            )
        return self._images

    def wait(self) -> None:
        """Waits for the device."""
        if not self.dry:
            torch.cuda.synchronize()


def environment(row: Row) -> dict[str, Any]:
    """What this machine is, and that the core loads."""
    core = available()
    if core is None:
        raise Failed("the native core cannot be loaded")
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "core": core.description,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "DALI": _version("nvidia-dali-cuda120") or _version("nvidia-dali-cuda130") or "missing",
    }
    if not row.dry:
        found["gpu"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["memory_gb"] = torch.cuda.mem_get_info()[1] / 1e9
    return found


def memory(row: Row) -> dict[str, Any]:
    """Device memory stays that of a few batches while the host runs ahead of slow kernels."""
    depth, megabyte, count = 2, 16, 4 if row.dry else 60
    batches = [torch.zeros(megabyte << 18) for _ in range(2)]
    if not row.dry:
        batches = [batch.pin_memory() for batch in batches]
        torch.cuda.reset_peak_memory_stats()
    total = torch.zeros((), device=row.device)
    for batch in DevicePrefetcher((batches[n % 2] for n in range(count)), row.device, depth=depth):
        if not row.dry:
            torch.cuda._sleep(50_000_000)  # about 30 ms, which the host does not wait for
        total += batch.sum()
        del batch
    row.wait()
    if row.dry:
        return {"batches": count}
    # Not max_memory_allocated, which leaves out memory that waits for its stream.
    most = torch.cuda.memory_stats()["active_bytes.all.peak"] / (megabyte << 20)
    if most > 2 * depth + 4:
        raise Failed(f"{most:.1f} batches were in memory at once, of {count}")
    return {"batches": count, "most_in_memory": most}


def copies(row: Row) -> dict[str, Any]:
    """Copies are hidden by computing: at least nine tenths of their time."""
    size = 64 if row.dry else 4096
    matrix = torch.ones((size, size), device=row.device)
    batch = torch.zeros(1 << (10 if row.dry else 25))
    batch = batch if row.dry else batch.pin_memory()
    count = 5 if row.dry else 40

    def compute() -> None:
        for _ in range(2 if row.dry else 8):
            torch.mm(matrix, matrix)

    def seconds(batches: Iterable[Any], computes: bool) -> float:
        row.wait()
        began = time.perf_counter()
        for _ in batches:
            if computes:
                compute()
        row.wait()
        return time.perf_counter() - began

    given = [batch] * count
    seconds(DevicePrefetcher(given, row.device), True)
    only_compute = min(seconds(range(count), True) for _ in range(3))
    only_copy = min(seconds(DevicePrefetcher(given, row.device), False) for _ in range(3))
    both = min(seconds(DevicePrefetcher(given, row.device), True) for _ in range(3))
    hidden = 1 - max(0.0, both - only_compute) / only_copy
    found = {"compute_ms": 1e3 * only_compute, "copy_ms": 1e3 * only_copy, "both_ms": 1e3 * both, "hidden": hidden}
    if not row.dry and hidden < 0.9:
        raise Failed(f"only {hidden:.0%} of the copies' time was hidden: {found}")
    return found


def precision(row: Row) -> dict[str, Any]:
    """Every precision and the compiler train as float32 does."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(96, 3, 32, 32, generator=generator)
    labels = torch.randint(0, CLASSES, (96,), generator=generator)
    data = torch.utils.data.TensorDataset(images + 0.3 * labels.view(-1, 1, 1, 1), labels)
    kind = row.device.type

    def losses(model: nn.Module, **more: Any) -> list[float]:
        options = TrainOptions(batch_size=16, epochs=2, lr=0.02, device=kind, tf32=False, print_freq=100, **more)
        return fit(copy.deepcopy(model), DataLoader(data, 16), options=options).losses

    torch.manual_seed(0)
    conv, dense = (
        small_resnet(CLASSES),
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 16)),
    )
    trials: dict[str, tuple[nn.Module, dict[str, Any]]] = {"bf16": (conv, {"amp": "bf16"})}
    if not row.dry:
        trials["fp16"] = (conv, {"amp": "fp16"})
        trials["compile"] = (conv, {"compile": "default"})
        if torch.cuda.get_device_capability() >= (8, 9) and importlib.util.find_spec("torchao") is not None:
            trials["fp8"] = (dense, {"amp": "fp8"})
    found: dict[str, Any] = {}
    for name, (model, more) in trials.items():
        ours, exact = losses(model, **more), losses(model)
        found[name] = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, exact, strict=True))
        if not all(map(math.isfinite, ours)) or found[name] > TOLERANCES[name]:
            raise Failed(f"{name}: losses differ from float32's by {found[name]:.3f}, more than {TOLERANCES[name]}")
    return {"differences": found}


def ranks(row: Row) -> dict[str, Any]:
    """Two processes on one GPU: accumulation, statistics over both with recomputation, and one that is killed."""
    base = ["--model", "small", "--epochs", "1", "-b", "8", "--train-crop-size", "32", "--val-resize-size", "32"]
    base += ["--val-crop-size", "32", "--device", row.device.type, "--workers", "1", "--data-path", str(row.images())]
    runs = {"no_sync": ["--accumulate", "2"], "recomputation": ["--checkpoint-every-k", "1"]}
    if not row.dry:
        runs["SyncBatchNorm with recomputation"] = ["--checkpoint-every-k", "1", "--sync-bn"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found: dict[str, Any] = {}
    for name, more in runs.items():
        began = time.monotonic()
        done = _run([*launcher, "-m", "fastdata.train", *base, *more])
        if done.returncode != 0:
            raise Failed(f"{name}: {_said(done.stderr)}")
        found[name] = f"{time.monotonic() - began:.0f} s"
    program = Path(row._scratch.name) / "killed.py"
    program.write_text(_KILLED.format(device=row.device.type))
    began = time.monotonic()
    done = _run([*launcher, str(program)])
    if done.returncode == 0 or "lost rank 1" not in done.stderr:
        raise Failed(f"a killed rank: exit status {done.returncode}, {_said(done.stderr)}")
    found["killed rank noticed in"] = f"{time.monotonic() - began:.0f} s"
    return found


_KILLED = """
import os, signal, sys, torch
from fastdata import TrainError
from fastdata.train.ranks import end_at_once, join_ranks

ranks = join_ranks(torch.device("{device}"), 120.0)
try:
    with ranks.together():
        values = torch.ones(1000, device="{device}")
        for step in range(1000):
            ranks.sum(values)
            if step == 5 and ranks.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        values.sum().item()
except TrainError as error:
    end_at_once(f"TrainError: {{error}}")
"""


def tests(row: Row) -> dict[str, Any]:
    """The tests of GPUs: none fails, and those that skip say why."""
    folder = ROOT / "tests" / "gpu"
    if not folder.exists() or importlib.util.find_spec("pytest") is None:
        raise Failed(f"{folder} or pytest is missing")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)]
    done = _run(command, env={} if row.dry else {"FASTDATA_REQUIRE_CUDA": "1"}, cwd=ROOT)
    last = next((line for line in reversed(done.stdout.splitlines()) if re.search(r"\d+ (passed|skipped)", line)), "")
    if done.returncode != 0 or not last:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        raise Failed("; ".join(failed[:5]) or done.stdout[-500:] + done.stderr[-500:])
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    return {"tests": last.strip("= "), "skips": skips}


def resnet50(row: Row) -> dict[str, Any]:
    """A ResNet-50 trains in bfloat16 on batches that cost nothing, the native core's, and those of torch's loader."""
    model, name = _resnet50(row)
    size, batch = (32, 8) if row.dry else (224, 256)
    steps = [
        transforms.RandomResizedCrop(size),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(transforms.IMAGENET_MEAN, transforms.IMAGENET_STD),
    ]
    dataset = _Repeated(ImageFolder(row.images(), transforms.Compose(steps)), batch * (4 if row.dry else BATCHES))
    workers = min(16, os.cpu_count() or 1)
    common: dict[str, Any] = {"batch_size": batch, "num_workers": workers, "drop_last": True, "shuffle": True}
    loaders: dict[str, Callable[[], Iterable[Any]]] = {
        "synthetic": lambda: DataLoader(dataset.whole(), device=row.device, backend="synthetic", **common),
        "native": lambda: DataLoader(dataset.whole(), device=row.device, backend="native", **common),
        "torch": lambda: torch.utils.data.DataLoader(dataset.whole(), pin_memory=not row.dry, **common),
    }
    rates = {each: _rate(row, model, make(), batch) for each, make in loaders.items()}
    loading = _rate(row, None, loaders["native"](), batch)
    share = rates["native"] / rates["synthetic"]
    bound = "decoding" if loading < 1.05 * rates["native"] else "computing"
    found = {"model": name, "images_per_s": rates, "native alone": loading, "share": share, "bound by": bound}
    if not row.dry and share < 0.95 and bound != "decoding":
        raise Failed(f"training has {share:.0%} of the speed that it has without loading: {found}")
    return found


def augmentations(row: Row) -> dict[str, Any]:
    """RandAugment on the host and on the device: images per second without training."""
    size, batch = (32, 8) if row.dry else (224, 64)
    steps = [transforms.RandomResizedCrop(size), transforms.RandAugment(), transforms.ToTensor()]
    dataset = _Repeated(ImageFolder(row.images(), transforms.Compose(steps)), batch * (4 if row.dry else BATCHES))
    common: dict[str, Any] = {"batch_size": batch, "num_workers": min(16, os.cpu_count() or 1), "drop_last": True}
    found = {}
    for where in ("host", "device"):
        loader = DataLoader(dataset.whole(), device=row.device, augment_on=where, **common)
        found[where] = _rate(row, None, loader, batch)
    return {"images_per_s": found}


def batch_size(row: Row) -> dict[str, Any]:
    """The batch size that is found trains without running out of memory."""
    if row.dry:
        return {"outcome": "skipped", "why": "the search needs a CUDA device"}
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 8e9 / total))  # quickly filled
    options = TrainOptions(batch_size=8, epochs=1, lr=0.01, device="cuda", amp="bf16")
    found = find_batch_size(small_resnet(CLASSES), options, 96, CLASSES)
    data = torch.utils.data.TensorDataset(torch.zeros(4 * found, 3, 96, 96), torch.zeros(4 * found, dtype=torch.int64))
    options = TrainOptions(batch_size=found, epochs=1, lr=0.01, device="cuda", amp="bf16")
    fit(small_resnet(CLASSES), DataLoader(data, found, device="cuda", drop_last=True), options=options)
    return {"found": found}


def _doctor_row(row: Row) -> dict[str, Any]:
    """The doctor tells a loop that waits for data from one that does not."""
    size = 32 if row.dry else 128
    dataset = ImageFolder(
        row.images(), transforms.Compose([transforms.RandomResizedCrop(size), _Slow(), transforms.ToTensor()])
    )
    tiny = nn.Sequential(nn.Flatten(), nn.Linear(3 * size * size, CLASSES)).to(row.device)
    starved = doctor(tiny, DataLoader(dataset, 8, num_workers=1), seconds=4.0)
    data = torch.utils.data.TensorDataset(torch.randn(256, 3, size, size), torch.zeros(256, dtype=torch.int64))
    busy = doctor(small_resnet(CLASSES).to(row.device), DataLoader(data, 32), seconds=4.0)
    found = {"starved": starved.cause, "busy": busy.cause}
    if not row.dry and starved.cause == busy.cause:
        raise Failed(f"both loops have the same cause: {found}")
    return found


class _Slow:
    """A step of one's own that takes time."""

    def __call__(self, image: Any) -> Any:
        time.sleep(0.01)
        return image


class _Repeated:
    """A folder's samples again and again, so that an epoch has a given length."""

    def __init__(self, dataset: ImageFolder, count: int) -> None:
        self._dataset, self._count = dataset, count

    def whole(self) -> ImageFolder:
        """The folder with its samples repeated."""
        longer = copy.copy(self._dataset)
        times = -(-self._count // len(longer.samples))
        longer.samples = (list(longer.samples) * times)[: self._count]
        longer.targets = [target for _, target in longer.samples]
        return longer


def _rate(row: Row, model: nn.Module | None, loader: Iterable[Any], batch: int) -> float:
    """Images per second of training, or of loading alone, without the first batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01) if model is not None else None
    skipped, counted, began = 2, 0, 0.0
    for number, (images, labels) in enumerate(loader):
        if number == skipped:
            row.wait()
            began = time.perf_counter()
        counted += number >= skipped
        images, labels = images.to(row.device, non_blocking=True), labels.to(row.device, non_blocking=True)
        if model is not None and optimizer is not None:
            with torch.autocast(row.device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels % CLASSES)
            loss.backward()
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


def _run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> Any:
    paths = [str(ROOT)] if (ROOT / "fastdata" / "__init__.py").exists() else []
    paths += [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    known = {**os.environ, SHARE_GPU: "1", "PYTHONPATH": os.pathsep.join(paths), **(env or {})}
    return subprocess.run(command, env=known, cwd=cwd, capture_output=True, text=True, check=False)


def _said(stderr: str) -> str:
    """The line that names the error, among those of the launcher."""
    named = [line for line in stderr.splitlines() if re.match(r"(\w+\.)*\w+Error: ", line)]
    return named[0] if named else stderr[-800:]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


ROWS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "environment": environment,
    "memory": memory,
    "copies": copies,
    "precision": precision,
    "ranks": ranks,
    "tests": tests,
    "resnet50": resnet50,
    "augmentations": augmentations,
    "batch_size": batch_size,
    "doctor": _doctor_row,
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    try:
        found = {"outcome": "passed", **ROWS[options.row](Row(options.images, options.dry))}
    except Failed as error:
        found = {"outcome": "failed", "why": str(error)}
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
