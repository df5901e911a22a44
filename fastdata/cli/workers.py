"""The argument --workers, which several commands have."""

from __future__ import annotations

import argparse
from functools import partial

from fastdata.system.cpus import auto_threads, parse_workers
from fastdata.terminal.flags import argument

__all__ = ["add_workers"]


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds the argument."""
    parser.add_argument(
        "--workers",
        type=argument(partial(parse_workers, least=1)),
        default=auto_threads(),
        help="number of worker processes (default: one per usable CPU)",
    )
