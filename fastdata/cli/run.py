"""`fastdata run`: an unchanged program, with torch's DataLoader replaced by fastdata's."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from fastdata.cli.check import CHECK_VALUES, split_or_tell
from fastdata.cli.doctor import DOCTOR_VALUES
from fastdata.run import startup
from fastdata.run.program import run_named
from fastdata.system import interrupts

__all__ = ["add_run", "run_program", "split_program"]

# Commands that run a program, and their options that take a value.
_WITH_VALUES = {"run": (), "check": CHECK_VALUES, "doctor": DOCTOR_VALUES}


def add_run(commands: Any) -> None:
    """Adds the command to the parser; `given.is_program` is True for it."""
    run = commands.add_parser(
        "run",
        help="run an unchanged training program with torch's DataLoader replaced",
        usage="fastdata run [-h] [--quiet] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description="Runs SCRIPT or MODULE as python would, with fastdata's DataLoader in place of "
        "torch.utils.data.DataLoader.  Prints which path each loader takes, and at the end images/s, the share of time "
        "spent waiting for data and CPU time per image.  Python processes that the program starts do the same, "
        "since FASTDATA_RUN=1 and PYTHONPATH are set for them.",
        epilog="With torchrun or accelerate: torchrun --nproc-per-node 8 -m fastdata run SCRIPT; accelerate launch -m "
        "fastdata run SCRIPT.  Pythons that are started with -S, -I or -E, or with a PYTHONPATH of their own, are not "
        "followed.",
        allow_abbrev=False,
    )
    run.add_argument("--quiet", action="store_true", help="print nothing")
    run.set_defaults(is_program=True, parser=run, run_program=run_program)


def split_program(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Splits off, after a command that runs one and its options, the program with its own arguments."""
    with_values = _WITH_VALUES.get(arguments[0]) if arguments else None
    if with_values is None:
        return arguments, []
    begin = 1
    while begin < len(arguments) and arguments[begin][:1] == "-" and arguments[begin][:2] != "-m":
        begin += 2 if arguments[begin] in with_values else 1
    return arguments[:begin], arguments[begin:]


def run_program(given: argparse.Namespace, program: list[str]) -> int:
    """Runs the program; its exceptions and its exit status pass through."""
    is_module, program = split_or_tell(given, program)
    if not program:
        return 2
    if setting := startup.forbidden_by():
        print(f"fastdata: {setting} is set, so torch's DataLoader is not replaced", file=sys.stderr)
    else:
        startup.follow_children(quiet=given.quiet)
        startup.install()
    interrupts.raise_again()  # the program's own, from here on
    run_named(program, is_module=is_module)
    return 0
