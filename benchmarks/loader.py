"""The whole pipeline against torch's DataLoader with torchvision.

Setup: RandomResizedCrop(224) and flip, as float32 after ToTensor and Normalize and as uint8 after PILToTensor; batches
of 64, shuffled; threads and worker processes equal in number; torch with persistent workers; the folder repeated to at
least 1000 images.  All loaders take turns in every round.  Result: benchmarks/results/loader.json.

    python benchmarks/loader.py FOLDER
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch.utils.data
from torch.utils.data import ConcatDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.diagnosis.measure import Contender, Measurement, measure, ratios, table, write_json
from fastdata.loaders import available_backends

TORCH = "torch + torchvision"
ENDS = {
    "float32": [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
    "uint8": [transforms.PILToTensor()],
}


def repeated(folder: Path, transform: Any, at_least: int = 1000) -> ConcatDataset[Any]:
    """The folder's images, repeated to at least `at_least`."""
    dataset = ImageFolder(folder, transform)
    return ConcatDataset([dataset] * -(-at_least // len(dataset)))


def run(folder: Path, end: str, workers: int, rounds: int) -> list[Measurement]:
    """Measures every available backend and torch for one kind of output."""
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *ENDS[end]]
    dataset = repeated(folder, transforms.Compose(steps))
    options: dict[str, Any] = {"batch_size": 64, "shuffle": True, "num_workers": workers}
    loaders: dict[str, Any] = {TORCH: torch.utils.data.DataLoader(dataset, persistent_workers=True, **options)}
    for name in available_backends():
        loaders[f"fastdata, {name}"] = DataLoader(dataset, backend=name, **options)
    contenders = [
        Contender(name=name, epoch=partial(iter, loader), images=len(dataset)) for name, loader in loaders.items()
    ]
    return measure(contenders, rounds=rounds)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="one folder of images per class")
    parser.add_argument("--workers", type=int, default=2, help="threads, and worker processes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured passes of each (%(default)s)")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "loader.json")
    given = parser.parse_args()
    results = {}
    for end in ENDS:
        measured = run(given.folder, end, given.workers, given.rounds)
        print(f"\n{end}\n\n{table(measured, TORCH)}\n")
        results[end] = {"loaders": [m.to_dict() for m in measured], "times_better": ratios(measured, TORCH)}
    setup = f"RandomResizedCrop(224), flip; batch 64, shuffled; {given.workers} threads or worker processes"
    write_json(given.out, setup=setup, data=given.data or given.folder.name, results=results)


if __name__ == "__main__":
    main()
