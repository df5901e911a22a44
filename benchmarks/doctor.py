"""The doctor on ten programs of which it is known what is wrong (situations.py), and what watching costs them.

Setup: each program is run by `fastdata doctor` in a process of its own, which ends it; `oversized` gets the second
folder.  Right means that the cause the verdict names is the one that the program was made with.  Overhead: steps of two
of the programs by themselves and watched take turns, the same number of steps; the ratio is taken within a round, of
the median time of a step, and of the CPU time that the training thread takes for it, which varies less.
Result: benchmarks/results/doctor.json.

    python benchmarks/doctor.py FOLDER FOLDER_OF_LARGE_IMAGES
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from situations import EXPECTED

from fastdata.diagnosis.measure import spread, write_json

PROGRAM = Path(__file__).with_name("situations.py")
STEPS = {"compute_bound": 60, "anomaly_mode": 400}  # of which watching is timed


def examined(name: str, folder: Path, seconds: float) -> dict[str, Any]:
    """What the doctor says of one program, and how long that took."""
    with tempfile.TemporaryDirectory() as scratch:
        out, began = Path(scratch) / "doctor.json", time.perf_counter()
        options = ["--seconds", str(seconds), "--json", str(out)]
        command = [sys.executable, "-m", "fastdata", "doctor", *options, str(PROGRAM), name, str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took_s, told = time.perf_counter() - began, json.loads(out.read_text().replace(f"{PROGRAM.parents[1]}/", ""))
    return {"verdict": told["verdict"], "cause": told["cause"], "took_s": took_s, "advice": told["advice"]}


def step_ms(name: str, folder: Path, *, watched: bool) -> tuple[float, float]:
    """Milliseconds of a step, and of its thread's CPU time, as the program itself measures them."""
    watching = ["--watched"] if watched else []
    command = [sys.executable, str(PROGRAM), name, str(folder), "--steps", str(STEPS[name]), *watching]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall, _, _, cpu, *_ = done.stdout.split()
    return float(wall), float(cpu)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0, help="as the doctor's (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="of the overhead (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "doctor.json")
    given = parser.parse_args()
    results: dict[str, Any] = {}
    for make, expected in EXPECTED.items():
        name = make.__name__
        told = examined(name, given.large if name == "oversized" else given.folder, given.seconds)
        results[name] = {"expected": expected, "right": told["cause"] == expected, **told}
        print(f"{name}: {told['cause']} ({told['took_s']:.0f} s): {told['verdict']}", flush=True)
    overhead = {}
    for name in STEPS:
        rounds = [
            {kind: step_ms(name, given.folder, watched=kind) for kind in (False, True)} for _ in range(given.rounds)
        ]
        overhead[name] = {}
        for number, kind in enumerate(("wall", "cpu")):
            overhead[name][kind] = {
                "alone_ms": spread([each[False][number] for each in rounds]),
                "watched_ms": spread([each[True][number] for each in rounds]),
                "times": spread([each[True][number] / each[False][number] for each in rounds]),
            }
            print(name, kind, overhead[name][kind]["times"])
    setup = str(__doc__).partition("Setup: ")[2].partition("Result:")[0].strip()
    data = f"{given.folder.name}, {given.large.name}"
    write_json(given.out, setup=setup, data=data, results={"situations": results, "overhead": overhead})


if __name__ == "__main__":
    main()
