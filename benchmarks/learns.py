"""The small ResNet learns the sample dataset through the whole pipeline, in a few minutes on a CPU.

Setup: 4,000 drawn images in ten classes, 400 more for validation; 15 epochs of 112-pixel crops, AdamW, one cycle.
Result: benchmarks/results/learns.json.

    python benchmarks/learns.py FOLDER        # where the sample dataset is, or is to be drawn
"""

from __future__ import annotations

import json
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from harness import benchmark

from fastdata.demo.sample import SampleOptions, make_sample_dataset
from fastdata.train.__main__ import main as train

FLAGS = ["--model", "small", "-b", "32", "--epochs", "15", "--opt", "adamw", "--lr", "0.004", "--weight-decay", "0.01"]
FLAGS += ["--lr-scheduler", "onecycle", "--min-scale", "0.5", "--train-crop-size", "112"]
FLAGS += ["--val-resize-size", "128", "--val-crop-size", "112"]


def measured(given: Namespace) -> dict[str, Any]:
    """The epochs of one run."""
    make_sample_dataset(given.folder, SampleOptions(train=4000, val=400))
    given.setup = " ".join(FLAGS)
    with tempfile.TemporaryDirectory() as output:
        began = time.perf_counter()
        if train(["--data-path", str(given.folder), *FLAGS, "--output-dir", output]) != 0:
            raise SystemExit(1)
        seconds = time.perf_counter() - began
        epochs = json.loads((Path(output) / "result.json").read_text())["epochs"]
    return {"seconds": seconds, "val_accuracy": epochs[-1]["val_accuracy"], "epochs": epochs}


if __name__ == "__main__":
    drawn = "4,000 drawn images in ten classes, 400 held out"
    benchmark(__file__, measured, folder="the sample dataset; drawn if it is not there", data=drawn)
