"""What fastdata's interface costs: its DALI backend against a pipeline written by hand, both on the CPU.

Setup: random window, resize to 224, flip; float32 normalised with channels first, and uint8 with channels last; batches
of 64, two of them on their way; equal numbers of DALI threads.  The hand-written pipeline reads files by itself and
draws windows in C++; fastdata reads in Python's threads, draws in NumPy and hands everything over.  Both take turns in
every round.  The hand-written pipeline begins each pass with two batches ready, so passes are 5,000 images long.
Result: benchmarks/results/dali.json.

    python benchmarks/dali.py FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rivals import Work, dali_loader, our_loader

from fastdata.diagnosis.measure import Contender, Measurement, measure, ratios, table, write_json

BY_HAND = "DALI by hand"


def run(folder: Path, *, as_float: bool, workers: int, rounds: int) -> list[Measurement]:
    """Measures both for one kind of output."""
    work = Work(folder=folder, as_float=as_float, images=5000)
    layout = torch.contiguous_format if as_float else torch.channels_last
    loaders = {
        BY_HAND: dali_loader(work, workers),
        "fastdata, dali": our_loader(work, workers, backend="dali", memory_format=layout),
    }
    images = len(work.files())
    return measure([Contender(name=name, epoch=epoch, images=images) for name, epoch in loaders.items()], rounds=rounds)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="one folder of images per class")
    parser.add_argument("--workers", type=int, default=2, help="threads of DALI, and of Python (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="measured passes of each (%(default)s)")
    parser.add_argument("--data", default="", help="what the images are, for the record")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "dali.json")
    given = parser.parse_args()
    results = {}
    for name, as_float in (("float32", True), ("uint8", False)):
        measured = run(given.folder, as_float=as_float, workers=given.workers, rounds=given.rounds)
        print(f"\n{name}\n\n{table(measured, BY_HAND)}\n")
        results[name] = {"loaders": [m.to_dict() for m in measured], "times_better": ratios(measured, BY_HAND)}
    setup = f"RandomResizedCrop(224), flip; batch 64, shuffled; {given.workers} threads; CPU"
    write_json(given.out, setup=setup, data=given.data or given.folder.name, results=results)


if __name__ == "__main__":
    main()
