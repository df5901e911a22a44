"""Runs `fastdata demo` from end to end."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from fastdata.demo.compare import TORCH, compare_loaders
from fastdata.demo.report import write_report
from fastdata.demo.results import as_text
from fastdata.demo.sample import SampleOptions, make_sample_dataset
from fastdata.demo.train import train_one_epoch
from fastdata.image_folder import ImageFolder
from fastdata.measuring.record import machine, write_json
from fastdata.measuring.rounds import ratios, spread
from fastdata.system.cpus import auto_threads
from fastdata.terminal.progress import progress

__all__ = ["run_demo"]


def run_demo(folder: Path | None, output: Path, *, quick: bool = False) -> None:
    """Measures, trains, prints a table, and writes OUTPUT/report.html and OUTPUT/results.json.

    Args:
        folder: a folder with one folder of images per class; None draws a sample dataset.
        output: folder for the results.
        quick: use fewer images and rounds.
    """
    data = folder if folder is not None else _sample(output, quick)
    workers = auto_threads()
    print(f"comparing loaders on {data} with {workers} threads or worker processes")
    measurements = compare_loaders(data, workers=workers, rounds=1 if quick else 3)
    print("training a small ResNet for one epoch through fastdata.DataLoader")
    epoch = train_one_epoch(data)
    results = {
        "loaders": [measurement.to_dict() for measurement in measurements],
        "times_better": ratios(measurements, TORCH),
        "epoch": {**vars(epoch), "total_s": epoch.total_s, "wait_share": epoch.share("wait")},
    }
    write_json(
        output / "results.json",
        setup=f"RandomResizedCrop(224), flip, float32 normalised; batch 64; {workers} threads or worker processes",
        data=f"{len(ImageFolder(data))} images of {'the drawn sample' if folder is None else folder}",
        results=results,
    )
    write_report(output / "report.html", measurements, epoch, machine(), folder=folder)
    print(f"\n{as_text(measurements)}\n")
    if folder is None:
        print(
            "The images were drawn by this command, and are no photographs; to measure your own: fastdata demo FOLDER"
        )
    rate = spread(measurements[0].images_per_s)["median"]
    print(
        f"torch + torchvision loads {rate:.0f} images/s here; share of the trained epoch spent waiting for data: "
        f"{epoch.share('wait'):.1%}; loss {epoch.loss_first:.2f} → {epoch.loss_last:.2f}"
    )
    print(f"report: {output / 'report.html'}, figures: {output / 'results.json'}")
    if (Path(sys.prefix) / "pyvenv.cfg").exists() and os.environ.get("VIRTUAL_ENV") != sys.prefix:
        print(f"to activate this environment: source {Path(sys.prefix) / 'bin' / 'activate'}")


def _sample(output: Path, quick: bool) -> Path:
    options = SampleOptions(train=120, val=20) if quick else SampleOptions()
    root = output / ("sample-quick" if quick else "sample")
    print(f"drawing {options.train + options.val} sample images into {root}")
    shown = partial(progress, unit="image", what="drawing sample images")
    make_sample_dataset(root, options, progress=shown)
    return root / "train"
