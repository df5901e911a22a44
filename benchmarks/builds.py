"""What a change of the native core gains: the same windows by two builds of it, taking turns.

Setup: one thread, RandomResizedCrop(224) to uint8 of every image from the page cache, from its file, from its file by
the index and from its record of open coefficients; each round starts a process for each build, in which of each image
the least of some passes counts; ratios are taken within a round.
Result: benchmarks/results/builds.json.

    python benchmarks/builds.py OLD.so NEW.so --names OLD NEW FOLDER [FOLDER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from unpacked import KINDS, windows

from fastdata.diagnosis.measure import spread, write_json


def measured(folder: Path, passes: int) -> dict[str, float]:
    """Milliseconds per image of each kind, by the library that this process has loaded."""
    found = windows(folder, passes)["ms"]
    return {kind: float(found[kind]) for kind in KINDS}


def in_a_process(library: Path, folder: Path, passes: int) -> dict[str, float]:
    """The same by another library."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(folder), "--passes", str(passes)],
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


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("libraries", type=Path, nargs="*", help="two libraries, then folders with JPEGs in them")
    parser.add_argument("--names", nargs=2, default=("old", "new"), help="what the builds are, for the record")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--passes", type=int, default=6, help="times that each window is decoded (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "builds.json")
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(measured(given.one, given.passes)))
        return
    if len(given.libraries) < 3:
        parser.error("two libraries and a folder are needed")
    libraries, folders = given.libraries[:2], given.libraries[2:]
    results = {folder.name: compared(libraries, folder, given.rounds, given.passes) for folder in folders}
    for name, result in results.items():
        print(name, {kind: each["times_less"] for kind, each in result.items()})
    builds = f"old: {given.names[0]}; new: {given.names[1]}"
    setup = f"{str(__doc__).partition('Setup: ')[2].partition('Result:')[0].strip()}\n{builds}"
    write_json(given.out, setup=setup, data=", ".join(results), results=results)


if __name__ == "__main__":
    main()
