"""What benchmarks share: their command line, the JSON file with what was measured and how, and arithmetic.

A benchmark is a file with a docstring, whose paragraphs behind the first tell the setup, a function `measured` that
returns the results, and one call of `benchmark`.
"""

from __future__ import annotations

import argparse
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdata.measuring.record import write_json

__all__ = ["RESULTS", "benchmark", "hidden_share", "setup_in", "taking_turns"]

RESULTS = Path(__file__).parent / "results"
_HELP = {
    "breaks": "epochs that are left early",
    "entries": "entries of the long lists",
    "passes": "times that each window is decoded in a round",
    "pairs": "pairs of runs, plain and watched",
    "repeat": "times that the folder is read in an epoch",
    "seconds": "seconds of each run",
    "size": "side of the training images, in pixels",
    "images": "number of images",
    "rounds": "measured passes of each",
    "seeds": "runs of each, with other seeds",
    "epochs": "epochs of each run",
    "workers": "threads, and worker processes",
}


def benchmark(
    file: str,
    measured: Callable[[Namespace], Any],
    *,
    folder: str | None = None,
    folders: str | None = None,
    count: int | None = None,
    data: str | None = None,
    add: Callable[[argparse.ArgumentParser], Any] | None = None,
    **numbers: float,
) -> None:
    """Reads the command line, measures, and writes benchmarks/results/NAME.json.

    Args:
        file: the benchmark's file.
        measured: called with the arguments; returns the results, and may set `data` and `setup` of the arguments.
        folder: help of a positional argument with a folder; None for none.
        folders: the same for one folder or several.
        count: number of folders; None for any.
        data: the images, for the record; None for the folders' names, or what --data says.
        add: called with the parser, to add arguments.
        numbers: arguments with a number, such as rounds=5, and their defaults.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if folder is not None:
        parser.add_argument("folder", type=Path, help=folder)
    if folders is not None:
        parser.add_argument("folders", type=Path, nargs=count or "+", help=folders)
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{_HELP[name]} (%(default)s)")
    if add is not None:
        add(parser)
    parser.add_argument("--data", default=data, help="description of the images, for the record")
    out = RESULTS / f"{Path(file).stem}.json"
    parser.add_argument("--out", type=Path, default=out, help=f"file for the results (benchmarks/results/{out.name})")
    given = parser.parse_args()
    given.setup = setup_in(str(sys.modules["__main__"].__doc__))
    named = [given.folder] if folder is not None else given.folders if folders is not None else []
    if given.data is None:
        given.data = ", ".join(each.name for each in named)
    results = measured(given)
    used = ", ".join(f"{name} {getattr(given, name)}" for name in numbers)
    setup = f"{given.setup}\n{used}" if used else given.setup
    write_json(given.out, setup=setup, data=given.data, results=results)


def setup_in(doc: str) -> str:
    """The part of a benchmark's docstring that tells how it measures."""
    text = doc.partition("\n\n")[2].partition("\n\n    python ")[0].partition("Result: ")[0]
    return text.strip().removeprefix("Setup: ")


def taking_turns(
    ways: Mapping[str, Callable[[], Any]], *, rounds: int, clock: Callable[[], float] = time.process_time
) -> dict[str, list[float]]:
    """Seconds that functions take, which are called in turn; a first round of calls is not counted.

    Args:
        ways: functions by name.
        rounds: counted calls of each.
        clock: returns seconds; by default CPU seconds of this process.

    Returns:
        The seconds of each round, by name.
    """
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, call in ways.items():
            began = clock()
            call()
            if round_ > 0:
                took[name].append(clock() - began)
    return took


def hidden_share(copies: Sequence[tuple[float, float]], kernels: Sequence[tuple[float, float]]) -> float:
    """Share of the copies' time during which a kernel runs.

    Args:
        copies: (begin, end) of each copy, in any unit of time.
        kernels: (begin, end) of each kernel, in the same unit; they may overlap.
    """
    merged: list[list[float]] = []
    for begin, end in sorted(kernels):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    total = sum(end - begin for begin, end in copies)
    hidden = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in copies for start, stop in merged)
    return hidden / total if total else 0.0
