"""What all benchmarks share: their command line, and the JSON file with what was measured and how.

A benchmark is a file with a docstring, whose paragraphs behind the first tell the setup, a function `measured` that
returns the results, and one call of `benchmark`.
"""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastdata.measuring.record import write_json

__all__ = ["RESULTS", "benchmark", "setup_in"]

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
