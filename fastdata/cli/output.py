"""Arguments of several commands: `--json` and `--quiet`, how a command prints what it came to, and `--workers`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from fastdata.system.cpus import auto_threads, parse_workers
from fastdata.terminal.flags import argument

__all__ = ["add_output", "add_workers", "log", "tell", "wants_text"]


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the two flags."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document on stdout; progress and errors go to stderr",
    )
    either.add_argument("--quiet", action="store_true", help="print errors only; the exit status says the rest")


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Adds the argument --workers."""
    parser.add_argument(
        "--workers",
        type=argument(partial(parse_workers, least=1)),
        default=auto_threads(),
        help="number of worker processes (default: one per usable CPU)",
    )


def wants_text(given: argparse.Namespace) -> bool:
    """True where people read what is printed."""
    return not (given.json or given.quiet)


def tell(given: argparse.Namespace, text: str, document: dict[str, Any]) -> None:
    """Prints the outcome: the text, or the document, or nothing.

    Args:
        given: the parsed flags.
        text: text for people.
        document: the result in plain values, for programs.
    """
    if given.json:
        print(json.dumps(document, indent=1, allow_nan=False))
    elif not given.quiet:
        print(text)


def log(given: argparse.Namespace) -> Callable[[str], None]:
    """Prints one line of progress: to stderr with --json, not at all with --quiet."""
    if given.quiet:
        return lambda line: None
    return partial(print, file=sys.stderr if given.json else sys.stdout)
