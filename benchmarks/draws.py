"""draws="torch": what it costs, and that training with it is training with torch's loader, to the last bit.

Setup: the recipes "crop", "RandAugment", "TrivialAugmentWide", "ColorJitter" and "SimCLR" of recipes.py over an
ImageFolder by torch's loader, and by fastdata with its own draws and with draws="torch", in interleaved rounds; then an
epoch of each by torch and with draws="torch" after the same seed, compared bit by bit.  With --sources, checkouts of
pytorch/examples, pytorch/vision and huggingface/pytorch-image-models as OWNER+NAME, their training scripts are run for
100 updates of a small model, as they are and with fastdata's loader in the place of torch's, and all losses compared.

    python benchmarks/draws.py FOLDER [--sources FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import runpy
import subprocess
import sys
import tempfile
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from harness import benchmark
from recipes import RECIPES
from torchvision import datasets

import fastdata
from fastdata.dataloader.loader import observers
from fastdata.measuring.rounds import compare

RESULT = Path(__file__).parent / "results" / "draws.json"
WORKERS, UPDATES, BATCH = 2, 100, 8
SCRIPTS: dict[str, tuple[str, str, list[str]]] = {  # checkout, script, arguments
    "PyTorch's ImageNet example": (
        "pytorch+examples",
        "imagenet/main.py",
        f"DATA -a shufflenet_v2_x0_5 -b {BATCH} -j {WORKERS} --epochs 1 --seed 1".split(),
    ),
    "torchvision's reference": (
        "pytorch+vision",
        "references/classification/train.py",
        f"--data-path DATA --model shufflenet_v2_x0_5 -b {BATCH} -j {WORKERS} --epochs 1 --device cpu "
        "--auto-augment ta_wide --random-erase 0.1 --train-crop-size 176".split(),
    ),
    "timm's script": (
        "huggingface+pytorch-image-models",
        "train.py",
        f"--data-dir DATA --model mobilenetv3_small_050 -b {BATCH} -j {WORKERS} --epochs 1 --device cpu --seed 1 "
        "--aa rand-m7-mstd0.5-inc1 --reprob 0.25 --num-classes 1000 --output OUTPUT".split(),
    ),
}


class _EnoughError(BaseException):
    """Ends a script when its losses have been seen."""


def losses_of(script: str, arguments: list[str]) -> list[str]:
    """The losses of a script's first updates, as hexadecimal numbers; runs it in this process."""
    losses: list[str] = []
    backward = torch.Tensor.backward

    def noting(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        losses.append(float(self.detach()).hex())
        backward(self, *args, **kwargs)
        if len(losses) == UPDATES:
            raise _EnoughError

    torch.Tensor.backward = noting  # type: ignore[assignment, method-assign]
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(_EnoughError):
        runpy.run_path(script, run_name="__main__")
    return losses


def link_often(photographs: Path, folder: Path) -> None:
    """Fills a folder with links to each photograph, as many as an epoch of all updates needs."""
    files = sorted(path for path in photographs.rglob("*") if path.is_file())
    for time in range(-(-UPDATES * BATCH // len(files))):
        for path in files:
            link = folder / path.parent.relative_to(photographs) / f"{time}-{path.name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)


def compared_losses(photographs: Path, sources: Path) -> dict[str, Any]:
    """Runs each script twice in processes of its own, and compares the losses."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for split in ("train", "val"):
            link_often(photographs.resolve(), Path(folder) / split)
        places = {"DATA": folder, "OUTPUT": str(Path(folder) / "output")}
        for name, (checkout, script, arguments) in SCRIPTS.items():
            given = [places.get(each, each) for each in arguments]
            command = [sys.executable, __file__, "--losses-of", str(sources / checkout / script), *given]
            found, verdicts = [], []
            for ours in ("", "1"):
                environment = {**os.environ, "FASTDATA_DRAWS": "torch", "DRAWS_WITH_FASTDATA": ours}
                done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
                lines = [line for line in done.stdout.splitlines() if line.startswith("LOSSES ")]
                if not lines:
                    raise SystemExit(f"{name} has failed: {done.stderr[-2000:]}")
                found.append(json.loads(lines[-1].removeprefix("LOSSES ")))
                verdicts = [
                    line.removeprefix("LOADER ") for line in done.stdout.splitlines() if line.startswith("LOADER ")
                ]
            if not verdicts:
                raise SystemExit(f"{name} has not used fastdata's loader")
            first = next((at for at, (one, other) in enumerate(zip(*found, strict=True)) if one != other), None)
            results[name] = {
                "updates": len(found[0]),
                "equal": first is None,
                "first_difference": first,
                "loader": verdicts[0],
            }
            print(f"{name}: {results[name]}", flush=True)
    return results


def is_equal(dataset: Any, options: dict[str, Any]) -> bool:
    """True if an epoch with draws="torch" has torch's batches in every bit."""
    epochs = []
    for cls, more in ((torch.utils.data.DataLoader, {}), (fastdata.DataLoader, {"draws": "torch"})):
        torch.manual_seed(5)
        epochs.append(list(cls(dataset, **options, **more)))
    pairs = zip(*(torch.utils._pytree.tree_leaves(epoch) for epoch in epochs), strict=True)
    return all(torch.equal(one, other) and one.stride() == other.stride() for one, other in pairs)


def measured(given: Namespace) -> dict[str, Any]:
    """The cost of every recipe, and the losses of public programs."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    options = {"batch_size": 64, "shuffle": True, "num_workers": WORKERS}
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "torch": (torch.utils.data.DataLoader, {}),
        "fastdata": (fastdata.DataLoader, {}),
        'fastdata, draws="torch"': (fastdata.DataLoader, {"draws": "torch"}),
    }
    results: dict[str, Any] = {}
    for name in ("crop", "RandAugment", "TrivialAugmentWide", "ColorJitter", "SimCLR"):
        make, views = RECIPES[name]
        dataset = datasets.ImageFolder(str(given.folder), make())
        dataset.samples = dataset.imgs = dataset.samples * given.repeat
        epochs = {
            kind: lambda cls=cls, more=more, dataset=dataset: iter(cls(dataset, **options, **more))
            for kind, (cls, more) in kinds.items()
        }
        is_same = is_equal(dataset, options)
        print(f"{name}: equal: {is_same}")
        results[name] = compare(epochs, "torch", images=len(dataset) * views, rounds=given.rounds) | {"equal": is_same}
    losses = compared_losses(given.folder, given.sources.resolve()) if given.sources else {}
    return {"recipes": results, "losses": losses}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--sources", type=Path, default=None, help="folder with the checkouts")


def print_losses() -> None:
    """Prints the losses of a public program, in a process of its own."""
    torch.set_num_threads(1)
    seen: list[fastdata.DataLoader[Any]] = []
    if os.environ["DRAWS_WITH_FASTDATA"]:
        fastdata.replace_dataloader()
        observers.append(lambda loader, _: seen.append(loader))
    print("\nLOSSES " + json.dumps(losses_of(sys.argv[2], sys.argv[3:])))
    print("\n".join(f"LOADER {loader.verdict()}" for loader in seen))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--losses-of"]:
        print_losses()
    else:
        benchmark(__file__, measured, folder="folder of the form CLASS/IMAGE", add=arguments, rounds=5, repeat=8)
