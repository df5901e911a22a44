"""The open benchmark: it runs, leaves out what gives something else, and its tables can be made."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT

PEERS = ROOT / "benchmarks" / "peers"
LOADERS = ["torch + torchvision", "fastdata, indexed"]

TABLES = """
import json, sys
from peers import tables
record = json.load(open(sys.argv[1]))
for make in (tables.cost, tables.losses, tables.details, tables.model, tables.absent, tables.variants):
    print(make(record))
"""


# Without a device DALI defines the graph, where wrong operators and arguments show, and refuses to build it.
DALI_ON_THE_GPU = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from programs import Job, dali
from workloads import WORKLOADS
images, name = Path(sys.argv[1]), sys.argv[2]
work = replace(WORKLOADS[name], count=32, batch=8)
job = Job(work=work, option="gpu", images=images, stored=images, threads=1)
try:
    for views, labels in dali.loader(job).epoch():
        for view in views if isinstance(views, list) else [views]:
            assert view.is_cuda and view.shape == (8, 3, work.size, work.size)
        assert len(labels) == 8
except RuntimeError as error:
    assert not torch.cuda.is_available() and "CUDA is not available" in str(error), error
"""


@pytest.mark.parametrize("name", ["train", "val", "randaugment", "simclr", "png"])
def test_dalis_pipeline_for_a_gpu(name: str, folder: Path) -> None:
    pytest.importorskip("nvidia.dali")
    command = [sys.executable, "-c", DALI_ON_THE_GPU, str(folder), name]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(PEERS)}
    )
    assert done.returncode == 0, done.stderr


def test_what_needs_a_gpu_is_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PEERS)
    peers, workloads = importlib.import_module("peers"), importlib.import_module("workloads")
    named = {name for name, one in peers.VARIANTS.items() if one.needs_gpu}
    assert named == {"fastdata, GPU", "fastdata, GPU augments", "fastdata, DALI on the GPU", "DALI, GPU"}
    for variant in (peers.VARIANTS[name] for name in named):
        assert variant.refusal(workloads.WORKLOADS["train"], has_gpu=True) is None
        assert "CUDA" in variant.refusal(workloads.WORKLOADS["train"], has_gpu=False)
        assert variant.refusal(workloads.WORKLOADS["cifar"], has_gpu=False) == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peers' costs from /proc")
def test_it_measures_and_its_tables_can_be_made(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    options = ["--only", LOADERS[1], "--workloads", "train", "--images", "64", "--rounds", "1", "--out", out]
    done = subprocess.run(
        [sys.executable, PEERS / "run.py", folder, *options], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr + done.stdout
    results = json.loads(out.read_text())["results"]
    work = results["workloads"]["train"]
    assert work["absent"] == {}
    for threads in ("1", "2"):
        assert [row["name"] for row in work["threads"][threads]["loaders"]] == LOADERS
        for row in work["threads"][threads]["loaders"]:
            for key in ("cpu_ms_per_image", "images_per_s", "first_batch_s", "peak_mb"):
                assert row[key]["median"] > 0, (row["name"], key)
            assert ("cold_images_per_s" in row) is (threads == "2")
            assert row["peak_mb"]["median"] > row["resting_mb"] / 2
    told = subprocess.run(
        [sys.executable, "-c", TABLES, out], check=True, capture_output=True, text=True, cwd=PEERS.parent
    ).stdout
    assert all(f"| {name} |" in told for name in LOADERS)
    assert "192 cores" in told


def test_a_number_of_images_that_gives_other_batches_is_refused(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, PEERS / "run.py", folder, "--images", "65"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--images 65 is no multiple" in done.stderr


RIGHT: dict[str, Any] = {
    "shapes": {"float32 [3, 224, 224]": 64},
    "labels": {"0": 32, "1": 32},
    "mean": [120.0, 110.0, 100.0],
    "std": [60.0, 60.0, 60.0],
}


@pytest.mark.parametrize(
    ("name", "changes", "levels", "told"),
    [
        ("train", {}, 0.0, None),
        ("val", {}, 6.0, None),
        ("train", {"shapes": {"float16 [3, 224, 224]": 64}}, 0.0, "float16"),
        ("train", {"shapes": {"float32 [3, 224, 224]": 63}}, 0.0, "63"),
        ("train", {"labels": {"0": 64}}, 0.0, "labels of a pass differ"),
        ("train", {"mean": [0.0, 0.0, 0.0]}, 0.0, "mean differs by 120.0 levels"),
        ("train", {"std": [1.0, 1.0, 1.0]}, 0.0, "std differs by 59.0 levels"),
        ("val", {}, 40.0, "pixels differ by 40.0 levels"),
    ],
)
def test_what_gives_something_else_is_not_timed(
    name: str, changes: dict[str, Any], levels: float, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(PEERS)
    checks, workloads = importlib.import_module("checks"), importlib.import_module("workloads")
    found = checks.problem(workloads.WORKLOADS[name], {**RIGHT, **changes}, RIGHT, levels)
    assert (found is None) if told is None else (told in found)


def test_pixels_are_compared_in_levels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PEERS)
    checks = importlib.import_module("checks")
    one, other, short = (tmp_path / name for name in ("one.npy", "other.npy", "short.npy"))
    np.save(one, np.full((4, 3, 8, 8), 250, np.uint8))
    np.save(other, np.full((4, 3, 8, 8), 253, np.uint8))
    np.save(short, np.full((3, 3, 8, 8), 250, np.uint8))
    assert checks.difference(one, other) == 3.0
    assert checks.difference(one, short) == float("inf")
