"""What a change of the native core gains: the same windows by two builds of it, taking turns.

Setup: one thread, RandomResizedCrop(224) to uint8 of every image from the page cache, from its file, from its file by
the index and from its record of open coefficients; each round starts a process for each build, in which of each image
the least of some passes counts; ratios are taken within a round.
Result: benchmarks/results/builds.json.

    python benchmarks/builds.py FOLDER [FOLDER ...] --old OLD.so --new NEW.so --names OLD NEW
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from harness import benchmark
from unpacked import KINDS, windows

from fastdata.measuring.rounds import spread


def least_ms(folder: Path, passes: int) -> dict[str, float]:
    """Milliseconds per image of each kind, by the library that this process has loaded."""
    found = windows(folder, passes)["ms"]
    return {kind: float(found[kind]) for kind in KINDS}


def in_a_process(library: Path, folder: Path, passes: int) -> dict[str, float]:
    """The same by another library."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(folder), str(passes)],
        env={**os.environ, "FASTDATA_NATIVE_LIBRARY": str(library)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return {str(kind): float(ms) for kind, ms in json.loads(done.stdout).items()}


def compared(libraries: list[Path], folder: Path, rounds: int, passes: int) -> dict[str, Any]:
    """Both builds' times, and how many times less the new one takes."""
    found: list[list[dict[str, float]]] = [
        [in_a_process(library, folder, passes) for library in libraries] for _ in range(rounds)
    ]
    return {
        kind: {
            "old_ms": spread([old[kind] for old, _ in found]),
            "new_ms": spread([new[kind] for _, new in found]),
            "times_less": spread([old[kind] / new[kind] for old, new in found]),
        }
        for kind in KINDS
    }


def measured(given: Namespace) -> dict[str, Any]:
    """Both builds on every folder."""
    given.setup += f"\nold: {given.names[0]}; new: {given.names[1]}"
    builds = [given.old, given.new]
    results = {folder.name: compared(builds, folder, given.rounds, given.passes) for folder in given.folders}
    for name, result in results.items():
        print(name, {kind: each["times_less"] for kind, each in result.items()})
    return results


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this benchmark alone."""
    parser.add_argument("--old", type=Path, required=True, help="library of the build before the change")
    parser.add_argument("--new", type=Path, required=True, help="library of the changed build")
    parser.add_argument("--names", nargs=2, default=("old", "new"), help="what the builds are, for the record")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(least_ms(Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        benchmark(__file__, measured, folders="folders with JPEGs in them", add=arguments, rounds=5, passes=6)
