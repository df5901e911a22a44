"""Runs the fault campaigns: many rounds of one promise each, by a seed, in processes of their own.

python tests/faults/long.py                      every campaign, as long as docs/reliability.md says: hours
python tests/faults/long.py --part middle        in minutes
python tests/faults/long.py breaks --rounds 500  one of them
python tests/faults/long.py breaks --chunk-s 7200    a soak: two hours in one process, whose memory must not grow
python tests/faults/long.py breaks --seed 1 --first 37 --rounds 1 --here    one round again, in this process

A campaign is a file in campaigns/, whose docstring is the promise.  `ROUNDS` is how many make its short, middle and
long part.  `prepare(folder)` returns a function that runs one round with a random generator: it returns what came of it
in a word or two, and raises if the promise did not hold.  The generator follows from seed and number alone, so every
round can be repeated.  A process that crashes is a failure, too, and so is a round that takes more than `--limit-s`.
"""

from __future__ import annotations

import argparse
import ast
import collections
import datetime
import faulthandler
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = ("short", "middle", "long")
CHUNK_S = 300.0  # a process is replaced after so long, and what it found is reported


def main() -> int:
    options = _options()
    if options.here:
        return _run_here(options)
    report: dict[str, Any] = {
        "command": "python tests/faults/long.py" + "".join(f" {each}" for each in sys.argv[1:]),
        "date": datetime.datetime.now().strftime("%Y-%m-%d"),
        "seed": options.seed,
        "campaigns": {},
    }
    failed = False
    for name in options.campaigns or names():
        found = report["campaigns"][name] = _run(name, options)
        failed |= "failure" in found
        print(f"{name}: {json.dumps(found)}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


def names() -> list[str]:
    """The campaigns, by their files."""
    return sorted(path.stem for path in (HERE / "campaigns").glob("*.py"))


def rounds(name: str, part: str) -> int:
    """How many rounds make a part, read without running the file."""
    tree = ast.parse((HERE / "campaigns" / f"{name}.py").read_text())
    for each in tree.body:
        if isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "ROUNDS":
            return int(ast.literal_eval(each.value)[PARTS.index(part)])
    raise LookupError(f"campaigns/{name}.py has no ROUNDS")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaigns", nargs="*", choices=[*names(), []], metavar="campaign", help=", ".join(names()))
    parser.add_argument("--part", choices=PARTS, default="long")
    parser.add_argument("--rounds", type=int, help="instead of the part's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one round")
    parser.add_argument("--chunk-s", type=float, default=CHUNK_S, help="for one process; long ones show growing memory")
    parser.add_argument("--json", help="file for what came of it")
    parser.add_argument("--here", action="store_true", help="in this process")
    return parser.parse_args()


def _run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of a campaign, in processes one after the other."""
    began, outcomes = time.monotonic(), collections.Counter[str]()
    number, end = options.first, options.first + (options.rounds or rounds(name, options.part))
    found: dict[str, Any] = {}
    while number < end and not found:
        command = [sys.executable, str(HERE / "long.py"), name, "--here", f"--limit-s={options.limit_s}"]
        command += [
            f"--chunk-s={options.chunk_s}",
            f"--seed={options.seed}",
            f"--first={number}",
            f"--rounds={end - number}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        if done.returncode:
            number = max([number, *(int(line[1:]) for line in lines if line.startswith("#"))])
            again = f"python tests/faults/long.py {name} --seed {options.seed} --first {number} --rounds 1 --here"
            told = done.stderr[-4000:].strip()
            found = {"failure": f"round {number} (exit code {done.returncode}); again: {again}\n{told}"}
        else:
            counts = json.loads(lines[-1])
            outcomes.update(counts)
            number += sum(counts.values())
    seconds = round(time.monotonic() - began, 1)
    return {"rounds": sum(outcomes.values()), "seconds": seconds, "outcomes": dict(sorted(outcomes.items())), **found}


def _run_here(options: argparse.Namespace) -> int:
    """Rounds until all are run or `--chunk-s` are over; prints each number first, and at the end what came of them."""
    sys.path[:0] = [str(HERE.parent / "helpers"), str(HERE / "campaigns")]
    (name,) = options.campaigns
    campaign = importlib.import_module(name)
    number, outcomes = options.first, collections.Counter[str]()
    until = time.monotonic() + options.chunk_s
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="fastdata-faults-") as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        one = campaign.prepare(Path(folder))
        while number < options.first + (options.rounds or 1) and time.monotonic() < until:
            print(f"#{number}", flush=True)
            faulthandler.dump_traceback_later(options.limit_s, exit=True)
            outcomes[one(random.Random(f"{options.seed}/{number}"))] += 1
            number += 1
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
