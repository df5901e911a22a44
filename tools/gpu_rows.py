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
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout; in a bundle the package is installed

import torch
from gpu_row import CLASSES, ROOT, Failed, Row, run
from gpu_rows_of_decoding import coefficients, few_cores, indexed, small_model
from gpu_rows_of_epochs import contexts, epochs
from gpu_rows_of_own_code import own_code
from gpu_rows_of_ranks import nccl, ranks
from gpu_rows_of_speed import augmentations, decoding, resnet50
from torch import nn

from fastdata import DataLoader, DevicePrefetcher, FastdataError, ImageFolder, doctor, transforms
from fastdata.models import small_resnet
from fastdata.native import available
from fastdata.system import cuda
from fastdata.system.cpus import usable_cpus
from fastdata.train import TrainOptions, fit
from fastdata.train.searches import find_batch_size

TOLERANCES = {"bf16": 0.15, "fp16": 0.1, "compile": 0.02}  # of losses against float32's, relative


def environment(row: Row) -> dict[str, Any]:
    """What this machine is, and that the core loads."""
    core = available()
    if core is None:
        raise Failed("the native core cannot be loaded")
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "core": core.description,
        "cores": usable_cpus(),
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

    def most_in_memory(given: Iterable[Any]) -> float:
        if not row.dry:
            row.wait()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        total = torch.zeros((), device=row.device)
        for batch in given:
            if not row.dry:
                torch.cuda._sleep(50_000_000)  # type: ignore[no-untyped-call]  # about 30 ms, not waited for
            total += batch.sum()
            del batch
        row.wait()
        return 0.0 if row.dry else cuda.peak_memory(row.device) / (megabyte << 20)

    def without_waiting() -> Iterable[Any]:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        for number in range(count):
            with torch.cuda.stream(side):
                batch = batches[number % 2].to(row.device, non_blocking=True)
            torch.cuda.current_stream().wait_stream(side)
            batch.record_stream(torch.cuda.current_stream())
            yield batch
            del batch

    waits = most_in_memory(DevicePrefetcher((batches[n % 2] for n in range(count)), row.device, depth=depth))
    if row.dry:
        return {"batches": count}
    found = {"batches": count, "most_in_memory": waits, "reserved_mb": torch.cuda.max_memory_reserved() / 1e6}
    found["most_without_waiting"] = most_in_memory(without_waiting())  # shows that this row can fail
    if waits > 2 * depth + 4:
        raise Failed(f"{waits:.1f} batches were in memory at once, of {count}: {found}")
    if found["most_without_waiting"] < 2 * waits:
        return {"outcome": "skipped", "why": "memory does not grow here without the wait: nothing is proven", **found}
    return found


def copies(row: Row) -> dict[str, Any]:
    """Copies are hidden by computing: at least nine tenths of their time."""
    size = 64 if row.dry else 4096
    matrix = torch.ones((size, size), device=row.device)
    batch = torch.zeros(1 << (10 if row.dry else 25))
    batch = batch if row.dry else batch.pin_memory()
    count = 5 if row.dry else 40

    def seconds(batches: Iterable[Any], products: int) -> float:
        row.wait()
        began = time.perf_counter()
        for _ in batches:
            for _ in range(products):
                torch.mm(matrix, matrix)
        row.wait()
        return time.perf_counter() - began

    def loader() -> Iterable[Any]:
        return DevicePrefetcher([batch] * count, row.device)

    seconds(loader(), 1)
    product_s, copy_s = seconds(range(count), 1), seconds(loader(), 0)
    products = max(1, math.ceil(1.2 * copy_s / product_s))  # so that computing takes slightly longer than copying
    rounds = [(seconds(range(count), products), seconds(loader(), 0), seconds(loader(), products)) for _ in range(5)]
    only_compute, only_copy, both = map(min, zip(*rounds, strict=True))
    only_compute += only_copy / count  # nothing can hide the first copy
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
    conv = small_resnet(CLASSES)
    trials: dict[str, tuple[nn.Module, dict[str, Any]]] = {"bf16": (conv, {"amp": "bf16"})}
    found: dict[str, Any] = {}
    if not row.dry:
        trials["fp16"] = (conv, {"amp": "fp16"})
        if shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang"):
            trials["compile"] = (conv, {"compile": "default"})
        else:
            found["compile"] = "skipped: it needs a C compiler"
    wrong = []
    for name, (model, more) in trials.items():
        try:
            ours, exact = losses(model, **more), losses(model)
        except (FastdataError, RuntimeError, ImportError, OSError) as error:  # the other trials' figures are kept
            found[name] = f"{type(error).__name__}: {error}"[:300]
            wrong.append(name)
            continue
        if name == "fp16":  # the gradient scaler passes over updates until it has found its scale
            ours, exact = ([sum(each[len(each) // 2 :])] for each in (ours, exact))
        found[name] = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(ours, exact, strict=True))
        if not all(map(math.isfinite, ours)) or found[name] > TOLERANCES[name]:
            wrong.append(name)
    if wrong:
        raise Failed(f"{', '.join(wrong)}: not within {TOLERANCES} of float32's losses: {found}")
    return {"differences": found}


def tests(row: Row) -> dict[str, Any]:
    """The tests of GPUs: none fails, and those that skip say why."""
    folder = ROOT / "tests" / "gpu"
    if not folder.exists() or importlib.util.find_spec("pytest") is None:
        raise Failed(f"{folder} or pytest is missing")
    command = [sys.executable, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", str(folder)]
    done = run(command, env={} if row.dry else {"FASTDATA_REQUIRE_CUDA": "1"}, cwd=ROOT)
    print(done.stdout, done.stderr, sep="\n")  # into the row's log
    last = next((line for line in reversed(done.stdout.splitlines()) if re.search(r"\d+ (passed|skipped)", line)), "")
    if done.returncode != 0 or not last:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        raise Failed("; ".join(failed) or done.stdout[-500:] + done.stderr[-500:])
    skips = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    return {"tests": last.strip("= "), "skips": skips}


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
    seconds = 1.0 if row.dry else 4.0
    starved = doctor(tiny, DataLoader(dataset, 8, num_workers=1), seconds=seconds)
    data = torch.utils.data.TensorDataset(torch.randn(512, 3, 32, 32), torch.zeros(512, dtype=torch.int64))
    wide = [nn.Conv2d(3, 512, 3, padding=1), *(nn.Conv2d(512, 512, 3, padding=1) for _ in range(24))]  # 11 TFLOP a step
    model = small_resnet(CLASSES) if row.dry else nn.Sequential(*wide, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    busy = doctor(model.to(row.device), DataLoader(data, 32), seconds=seconds)
    found: dict[str, Any] = {}
    for name, each in (("starved", starved), ("busy", busy)):
        found |= {name: each.cause, f"{name} waits": each.to_dict()["wait_share"]}
        print(each)  # into the row's log
    if not row.dry and (starved.cause == "compute" or found["starved waits"] < 0.5 or busy.cause != "compute"):
        raise Failed(f"a loop that waits for 10 ms a sample, or one that only computes, is judged wrongly: {found}")
    return found


class _Slow:
    """A step of one's own that takes time."""

    def __call__(self, image: Any) -> Any:
        time.sleep(0.01)
        return image


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


ROWS: dict[str, Callable[[Row], dict[str, Any]]] = {
    "environment": environment,
    "tests": tests,
    "memory": memory,
    "epochs": epochs,
    "contexts": contexts,
    "copies": copies,
    "nccl": nccl,
    "precision": precision,
    "ranks": ranks,
    "resnet50": resnet50,
    "decoding": decoding,
    "augmentations": augmentations,
    "coefficients": coefficients,
    "indexed": indexed,
    "few_cores": few_cores,
    "small_model": small_model,
    "own_code": own_code,
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
