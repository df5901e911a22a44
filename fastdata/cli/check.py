"""`fastdata check`: the batches of a program's loaders beside those that torch's DataLoader makes."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError
from fastdata.run import startup
from fastdata.run.check_program import UNKNOWN, joint, results_in
from fastdata.run.program import run_named, split_module
from fastdata.system import interrupts
from fastdata.system.switches import check_compares
from fastdata.terminal.flags import positive

__all__ = ["CHECK_VALUES", "add_check", "run_check", "split_or_tell"]

CHECK_VALUES = ("--batches",)  # options that take a value


def add_check(commands: Any) -> None:
    """Adds the command to the parser; `given.is_program` is True for it."""
    check = commands.add_parser(
        "check",
        help="compare the batches of an unchanged program's loaders with those of torch's DataLoader",
        usage="fastdata check [-h] [--batches N] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description="Runs SCRIPT or MODULE up to where it begins to read from its first loader.  Then makes the first "
        "batches of every loader that it has made, once with torch's class and once with fastdata's, compares values, "
        "types, dtypes, shapes, strides, order and exceptions, prints one line per loader, and ends the process before "
        "it gets a batch, so that it trains and saves nothing.  Python processes that the program starts do the same; "
        "where these read from the loaders, the program itself goes on when they have ended.",
        epilog="Exit status: 0 if all batches are equal, 1 if one is different, 2 if nothing could be compared.",
        allow_abbrev=False,
    )
    check.add_argument("--batches", type=positive, default=50, help="batches of each loader (default: %(default)s)")
    check.set_defaults(is_program=True, parser=check, run_program=run_check)


def split_or_tell(given: argparse.Namespace, program: list[str]) -> tuple[bool, list[str]]:
    """Splits off the program, as `split_module`; tells the error of a script that cannot be opened: then it is []."""
    try:
        is_module, program = split_module(program)
    except OptionError as error:
        print(f"fastdata: {given.parser.in_options(error)}", file=sys.stderr)
        return False, []
    if not program:
        given.parser.error("name a SCRIPT, or a module with -m MODULE")
    return is_module, program


def run_check(given: argparse.Namespace, program: list[str]) -> int:
    """Runs the program until it reads from a loader, which compares and ends the process; returns if it reads none."""
    is_module, program = split_or_tell(given, program)
    if not program:
        return UNKNOWN
    try:
        check_compares("fastdata check")
    except OptionError as error:
        print(f"fastdata: {given.parser.in_options(error)}", file=sys.stderr)
        return UNKNOWN
    with tempfile.TemporaryDirectory(prefix="fastdata-check-") as folder:
        startup.follow_children_to_check(batches=given.batches, folder=folder)
        startup.install()
        interrupts.raise_again()  # the program's own, from here on
        try:
            run_named(program, is_module=is_module)
        except SystemExit as left:
            if isinstance(left.code, str):
                print(left.code, file=sys.stderr)
        except Exception:  # noqa: BLE001 - told as Python would; the status says what was compared
            sys.excepthook(*sys.exc_info())
        results = results_in(Path(folder))  # of processes that it started
    if not results:
        told = "the program has ended without reading from a DataLoader: nothing was compared"
        print(f"fastdata: {told}", file=sys.stderr)
        return UNKNOWN
    return joint(results)
