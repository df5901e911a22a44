"""The doctor on ten programs of which it is known what is wrong (situations.py), and what watching costs them.

Setup: each program is run by `fastdata doctor` in a process of its own, which ends it; `oversized` gets the second
folder.  Right means that the cause the verdict names is the one that the program was made with.  Overhead: steps of two
of the programs by themselves and watched take turns in one process, the same number of steps; the ratio is taken within
a pair, of the median time of a step, and of the CPU time that the training thread takes for it.  "between" is where the
median of such ratios lies with 95 % confidence, by order statistics.
Result: benchmarks/results/doctor.json.

    python benchmarks/doctor.py FOLDER FOLDER_OF_LARGE_IMAGES
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from harness import benchmark
from situations import EXPECTED

from fastdata.measuring.rounds import spread

PROGRAM = Path(__file__).with_name("situations.py")
LEAST_PAIRS = 6  # fewer say nothing with 95 % confidence
STEPS = {"compute_bound": 24, "anomaly_mode": 100}  # of which watching is timed


def examined(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """What the doctor says of one program, and how long that took."""
    with tempfile.TemporaryDirectory() as scratch:
        out, began = Path(scratch) / "doctor.json", time.perf_counter()
        options = ["--seconds", str(seconds), "--json", str(out)]
        command = [sys.executable, "-m", "fastdata", "doctor", *options, str(PROGRAM), name, str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took_s, told = time.perf_counter() - began, json.loads(out.read_text().replace(f"{PROGRAM.parents[1]}/", ""))
    return {"verdict": told["verdict"], "cause": told["cause"], "took_s": took_s, "advice": told["advice"]}


def rank_below_median(count: int) -> int:
    """Of sorted values the number of the one that, with its mirror image, has the median between with 95 % confidence.

    Fewer values than that many lie below the median with a probability of at most 2.5 % (a binomial distribution).
    """
    below = np.cumsum([math.comb(count, number) for number in range(count + 1)]) / 2**count
    return int(np.searchsorted(below, 0.025, side="right")) - 1


def overhead(name: str, folder: Path, pairs: int) -> dict[str, Any]:
    """Milliseconds of a step and of its thread's CPU time, as the program itself measures them, and their ratios."""
    command = [sys.executable, str(PROGRAM), name, str(folder), "--steps", str(STEPS[name]), "--pairs", str(pairs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured = np.array(json.loads(done.stdout.splitlines()[-1]))  # [pair, alone or watched, wall or CPU]
    told = {}
    for number, kind in enumerate(("wall", "cpu")):
        alone, watched = measured[:, 0, number], measured[:, 1, number]
        ratios, first = np.sort(watched / alone), rank_below_median(pairs)
        told[kind] = {
            "alone_ms": spread(alone.tolist()),
            "watched_ms": spread(watched.tolist()),
            "times": spread((watched / alone).tolist()),
            "between": [round(float(ratios[first]), 4), round(float(ratios[-1 - first]), 4)],
        }
        print(name, kind, told[kind]["times"]["median"], told[kind]["between"], flush=True)
    return told


def measured(given: Namespace) -> dict[str, Any]:
    """The verdict on every program, and what watching costs."""
    if given.pairs < LEAST_PAIRS:
        raise SystemExit(f"--pairs {given.pairs}: fewer than {LEAST_PAIRS} say nothing with 95 % confidence")
    results: dict[str, Any] = {}
    measured_by: dict[str, Any] = {}
    if given.only_overhead:
        before = json.loads(given.out.read_text())
        results = before["results"]["situations"]
        measured_by = {"situations_by": {key: before[key] for key in ("command", "date", "commit")}}
    small, large = given.folders
    for make, expected in () if given.only_overhead else EXPECTED.items():
        name = make.__name__
        told = examined(name, large if name == "oversized" else small, given.seconds)
        results[name] = {"expected": expected, "right": told["cause"] == expected, **told}
        print(f"{name}: {told['cause']} ({told['took_s']:.0f} s): {told['verdict']}", flush=True)
    costs = {name: overhead(name, small, given.pairs) for name in STEPS}
    return {"situations": results, **measured_by, "overhead": costs}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--only-overhead", action="store_true", help="keep the situations of the result that is there")


if __name__ == "__main__":
    benchmark(__file__, measured, folders="photographs, and large ones", count=2, add=arguments, seconds=20.0, pairs=60)
