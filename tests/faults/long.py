"""Runs the fault campaigns: many rounds of one promise each, by a seed, in processes of their own.

python tests/faults/long.py                      every campaign, as long as docs/reliability.md says: hours
python tests/faults/long.py --part middle        in minutes
python tests/faults/long.py breaks --rounds 500  one of them
python tests/faults/long.py breaks --chunk-s 7200    a soak: two hours in one process, whose memory must not grow
python tests/faults/long.py breaks --seed 1 --first 37 --rounds 1 --here    one round again, in this process

A campaign is a file in campaigns/, whose docstring is the promise.  `ROUNDS` is how many make its short, middle and
long part.  `prepare(folder)` returns a function that runs one `Round`: it returns what came of it in a word or two, and
raises if the promise did not hold.  A round follows from seed and number alone, so it can be repeated, except for what
builds up over many.  A process that crashes is a failure, too, and so is a round that takes more than `--limit-s`.
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
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PARTS = ("short", "middle", "long")
CHUNK_S = 300.0  # a process is replaced after so long, and what it found is reported


class Round(random.Random):
    """The random generator of one round, which knows the round's number."""

    def __init__(self, seed: int, number: int) -> None:
        super().__init__(f"{seed}/{number}")
        self.number = number


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
    try:
        for name in options.campaigns or names():
            found = report["campaigns"][name] = _run(name, options)
            told = dict(found)
            failure = told.pop("failure", None)
            print(f"{name}: {json.dumps(told)}", flush=True)
            if failure is not None:
                print(f"{name} FAILED: {failure}", flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    except KeyboardInterrupt:
        print("stopped; the campaign under way is not in the report", file=sys.stderr)
        return 130
    return int(any("failure" in found for found in report["campaigns"].values()))


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
    parser.add_argument("campaigns", nargs="*", metavar="campaign", help=", ".join(names()))
    parser.add_argument("--part", choices=PARTS, default="long")
    parser.add_argument("--rounds", type=int, help="instead of the part's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--limit-s", type=float, default=120.0, help="for one round")
    parser.add_argument("--chunk-s", type=float, default=CHUNK_S, help="for one process; long ones show growing memory")
    parser.add_argument("--json", help="file for what came of it")
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if unknown := [each for each in options.campaigns if each not in names()]:
        parser.error(f"no campaign is called {', '.join(unknown)}; there are {', '.join(names())}")
    if (options.rounds is not None and options.rounds < 1) or options.first < 0:
        parser.error(f"--rounds {options.rounds} --first {options.first}: at least one round, and none before 0")
    if options.limit_s <= 0:
        parser.error(f"--limit-s {options.limit_s}: a round needs some time")
    if options.here and len(options.campaigns) != 1:
        parser.error("--here needs one campaign")
    if options.json and not os.access(Path(options.json).resolve().parent, os.W_OK):
        parser.error(f"--json {options.json}: its folder is missing, or cannot be written to")
    return options


def _run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """All rounds of a campaign, in processes one after the other, each with a folder of its own."""
    began, outcomes = time.monotonic(), collections.Counter[str]()
    number, end = options.first, options.first + (options.rounds or rounds(name, options.part))
    found: dict[str, Any] = {}
    while number < end and not found:
        always = [sys.executable, str(HERE / "long.py"), name, "--here", "--limit-s", str(options.limit_s)]
        always += ["--seed", str(options.seed)]
        command = [*always, "--chunk-s", str(options.chunk_s), "--first", str(number), "--rounds", str(end - number)]
        with tempfile.TemporaryDirectory(prefix="fastdata-faults-", ignore_cleanup_errors=True) as folder:
            done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": folder})
        lines = done.stdout.splitlines()
        if done.returncode == 0:
            counts = json.loads(lines[-1])
            outcomes.update(counts)
            number += sum(counts.values())
            continue
        failed = max([int(line[1:]) for line in lines if line.startswith("#")], default=None)
        told = done.stderr[-4000:].strip()
        if failed is None:
            found = {"failure": f"it could not be prepared (exit code {done.returncode}):\n{told}"}
        else:
            again = shlex.join([*always, "--first", str(failed), "--rounds", "1"])
            found = {"failure": f"round {failed} (exit code {done.returncode}):\n{told}\nagain: {again}"}
            if failed > number:
                more = shlex.join([*always, "--first", str(number), "--rounds", str(failed - number + 1)])
                found["failure"] += f"\nor, if it builds up: {more}"
            outcomes["held before the failure"] += failed - number
    seconds = round(time.monotonic() - began, 1)
    return {"rounds": sum(outcomes.values()), "seconds": seconds, "outcomes": dict(sorted(outcomes.items())), **found}


def _run_here(options: argparse.Namespace) -> int:
    """Rounds until all are run or `--chunk-s` are over; prints each number first, and at the end what came of them."""
    sys.path[:0] = [str(HERE.parent / "helpers"), str(HERE / "campaigns")]
    (name,) = options.campaigns
    campaign = importlib.import_module(name)
    number, outcomes = options.first, collections.Counter[str]()
    end = options.first + (options.rounds or rounds(name, options.part))
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="fastdata-faults-") as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        one = campaign.prepare(Path(folder))
        until = time.monotonic() + options.chunk_s
        while number < end and (not outcomes or time.monotonic() < until):
            print(f"#{number}", flush=True)
            faulthandler.dump_traceback_later(options.limit_s, exit=True)
            outcomes[one(Round(options.seed, number))] += 1
            number += 1
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
