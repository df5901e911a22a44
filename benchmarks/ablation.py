"""Every technique of the training loop, on and off around a common base: speed, memory, accuracy at equal epochs.

Setup: the small ResNet of fastdata.train on the project's sample dataset (4,000 drawn images in ten classes), four
epochs of 64-pixel crops, each run in a process of its own with one option changed; images per second of the fastest
epoch but the first, peak resident memory of the largest process, validation
accuracy at the end.  Repeated with other seeds, since accuracy after four epochs varies.  What means nothing on a CPU
is marked as not measured where there is no GPU.  Result: benchmarks/results/ablation.json.

    python benchmarks/ablation.py FOLDER        # where the sample dataset is, or is to be drawn
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from harness import benchmark

from fastdata.demo.sample import SampleOptions, make_sample_dataset
from fastdata.measuring.rounds import spread
from fastdata.shards.conversion.convert import ConvertOptions, convert

BASE = ["--model", "small", "-b", "32", "--opt", "adamw", "--lr", "0.004"]
BASE += ["--lr-scheduler", "onecycle", "--epochs", "4"]
BASE += ["--train-crop-size", "64", "--val-resize-size", "72", "--val-crop-size", "64", "--min-scale", "0.5"]
BASE += ["--workers", "2"]
SGD = ["--opt", "sgd", "--lr", "0.05"]

# name → flags added to the base.
EVERYWHERE: dict[str, list[str]] = {
    "base": [],
    "decoded by Pillow": ["--data-backend", "pil"],
    "from shards": ["--data-path", "SHARDS"],
    "2 processes of 16 (DDP, gloo)": ["-b", "16", "--workers", "1"],
    "channels_last off": ["--no-channels-last"],
    "AMP bf16": ["--amp", "bf16"],
    "torch.compile": ["--compile", "default"],
    "accumulation of 2 × 16": ["-b", "16", "--accumulate", "2"],
    "activation checkpointing": ["--checkpoint-every-k", "1"],
    "classes padded to 8": ["--pad-classes"],
    "gradient norm clipped at 1": ["--clip-grad-norm", "1"],
    "gradient values clipped at 0.1": ["--clip-grad-value", "0.1"],
    "batch 128": ["-b", "128"],
    "batch 128, rate by root": ["-b", "128", "--lr-scaling", "sqrt", "--base-batch", "32"],
    "batch 128, rate linear": ["-b", "128", "--lr-scaling", "linear", "--base-batch", "32"],
    "SGD with Nesterov": SGD,
    "LARS": ["--opt", "lars", "--lr", "0.3"],
    "LAMB": ["--opt", "lamb", "--lr", "0.01"],
    "cosine with warm-up": ["--lr-scheduler", "cosine", "--lr-warmup-epochs", "0.5"],
    "cyclic rate": ["--lr-scheduler", "cyclic", "--lr-step-size", "1"],
    "step": ["--lr-scheduler", "step", "--lr-step-size", "1.5"],
    "constant rate": ["--lr-scheduler", "constant"],
    "no weight decay": ["--weight-decay", "0"],
    "EMA 0.99": ["--model-ema", "0.99"],
    "label smoothing 0.1": ["--label-smoothing", "0.1"],
    "mixup 0.2": ["--mixup-alpha", "0.2"],
    "cutmix 1": ["--cutmix-alpha", "1"],
    "RandAugment on batches": ["--auto-augment", "randaugment"],
    "random erasing 0.25": ["--random-erase", "0.25"],
    "progressive resizing from 32": ["--smallest-crop", "32"],
    "validation at 80 pixels": ["--val-resize-size", "80", "--val-crop-size", "80"],
    "checkpoint every 20 updates": ["--save-every", "20"],
    "profile of steps": ["--profile", "steps"],
    "cProfile": ["--profile", "cprofile"],
    "trace of torch.profiler": ["--profile", "trace"],
    "sync detection": ["--detect-syncs"],
    "anomaly detection": ["--detect-anomaly"],
}
CUDA_ONLY: dict[str, list[str]] = {
    "AMP fp16": ["--amp", "fp16"],
    "cudnn.benchmark off": ["--no-cudnn-benchmark"],
    "TF32 off": ["--no-tf32"],
    "CUDA graphs": ["--compile", "reduce-overhead"],
    "SyncBatchNorm, 2 processes": ["--sync-bn", "-b", "16"],
}


def run(folder: Path, shards: Path, name: str, seed: int) -> dict[str, float]:
    """One training in a process of its own, or in two."""
    flags = [str(shards) if flag == "SHARDS" else flag for flag in (EVERYWHERE | CUDA_ONLY)[name]]
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-W", "ignore", "-m"]
        if "2 processes" in name:
            command += ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
        command += ["fastdata.train", "--data-path", str(folder)]
        command += [*BASE, *flags, "--seed", str(seed), "--output-dir", output]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
        epochs: list[dict[str, float]] = json.loads((Path(output) / "result.json").read_text())["epochs"]
    return {
        "images_per_s": max(entry["images_per_s"] for entry in epochs[1:]),
        "wait_share": min(entry["wait_share"] for entry in epochs[1:]),
        "peak_mb": max((entry.get("device_peak_mb", 0.0) for entry in epochs), default=0.0) or usage.ru_maxrss / 1024,
        "val_accuracy": epochs[-1]["val_accuracy"],
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Every run of each technique."""
    make_sample_dataset(given.folder, SampleOptions(train=4000, val=400))
    techniques = {**EVERYWHERE, **(CUDA_ONLY if torch.cuda.is_available() else {})}
    chosen = [name for name in techniques if not given.only or name in ("base", *given.only)]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    shards = given.folder.with_name(f"{given.folder.name}-shards")
    convert(str(given.folder), shards, ConvertOptions())
    done = given.log.read_text().splitlines() if given.log is not None and given.log.exists() else []
    for line in map(json.loads, done):
        if line["name"] in runs:
            runs[line["name"]].append(line["run"])
    for seed, name in itertools.product(range(given.seeds), chosen):
        if seed < len(runs[name]):
            continue
        began = time.perf_counter()
        runs[name].append(run(given.folder, shards, name, seed))
        if given.log is not None:
            with given.log.open("a") as log:
                log.write(json.dumps({"name": name, "run": runs[name][-1]}) + "\n")
        told = "  ".join(f"{key} {value:.4g}" for key, value in runs[name][-1].items())
        print(f"{name:<32} {told}  ({time.perf_counter() - began:.0f} s)", flush=True)
    given.setup = " ".join(BASE)
    results: dict[str, Any] = {
        name: {key: spread([each[key] for each in some]) for key in some[0]} for name, some in runs.items()
    }
    return results | {name: "not measured: no CUDA device" for name in CUDA_ONLY if name not in runs}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--only", nargs="*", help="names of techniques, besides the base")
    parser.add_argument(
        "--log", type=Path, help="keeps every run, a JSON line each; those already in it are not repeated"
    )


if __name__ == "__main__":
    drawn = "4,000 drawn images in ten classes, 400 held out"
    benchmark(
        __file__, measured, folder="the sample dataset; drawn if it is not there", data=drawn, add=arguments, seeds=2
    )
