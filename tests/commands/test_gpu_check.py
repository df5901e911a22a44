"""tools/gpu_check.py: every row in small on the CPU, and what is kept when a row fails, hangs or all is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from places import ROOT

TOOL = ROOT / "tools" / "gpu_check.py"


def check(out: Path, *more: str, limit_s: float = 500.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOL), "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)


QUICK = ["environment", "memory", "epochs", "contexts", "copies", "nccl", "batch_size", "decoding", "augmentations"]
LONG = ["tests", "precision", "ranks", "resnet50", "doctor", "own_code"]
GPU_DECODES = ["coefficients", "indexed", "few_cores", "small_model"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [QUICK, LONG, GPU_DECODES], ids=["quick", "long", "gpu decodes"])
def test_rows_run_in_small(tmp_path: Path, wanted: list[str]) -> None:
    done = check(tmp_path, "--dry", "--budget", "480", "--only", *wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert [name for name, _ in rows] == wanted
    assert {outcome for name, outcome in rows if name != "batch_size"} == {"passed"}
    assert (tmp_path / "table.txt").read_text() == done.stdout
    for name, _ in rows:
        assert json.loads((tmp_path / f"{name}.json").read_text())["outcome"] in ("passed", "skipped")


def test_every_row_is_tried_here() -> None:
    told = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True, check=True).stdout
    names = told.partition("{")[2].partition("}")[0].split(",")
    assert sorted(names) == sorted((*QUICK, *LONG, *GPU_DECODES))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = check(tmp_path / "none")
    assert done.returncode == 2
    assert "torch sees no CUDA device; --dry runs the same code" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_row_that_fails_or_takes_too_long_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    missing = check(tmp_path, "--dry", "--only", "environment", "ranks", "--images", str(tmp_path / "missing"))
    assert missing.returncode == 1
    assert json.loads((tmp_path / "environment.json").read_text())["outcome"] == "passed"
    found = json.loads((tmp_path / "ranks.json").read_text())
    assert found["outcome"] == "failed"
    assert "missing" in found["why"]
    late = check(
        tmp_path, "--dry", "--only", "doctor", "batch_size", "--budget", "5.1"
    )  # the doctor measures for longer
    assert late.returncode == 1
    assert "it ran longer than" in json.loads((tmp_path / "doctor.json").read_text())["why"]
    assert "the budget of 5 s was spent" in json.loads((tmp_path / "batch_size.json").read_text())["why"]


def test_sigterm_prints_the_table_and_ends_the_row(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOL), "--out", str(tmp_path), "--dry", "--only", "environment", "doctor"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (tmp_path / "environment.json").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = [line.split()[:2] for line in told.splitlines()]
    assert lines[1] == ["environment", "passed"]
    assert lines[2][0] == "doctor"
    assert "the command was stopped" in told
    assert (tmp_path / "table.txt").read_text() == told
