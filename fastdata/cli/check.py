"""`fastdata check`: the batches of a program's loaders beside those that torch's DataLoader makes."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from fastdata.errors import OptionError
from fastdata.run.program import check_script, run_module, run_script
from fastdata.system import interrupts

__all__ = ["CHECK_VALUES", "add_check", "run_check"]

CHECK_VALUES = ("--batches",)  # options that take a value
_EQUAL, _DIFFERENT, _UNKNOWN = 0, 1, 2  # exit statuses


def add_check(commands: Any) -> None:
    """Adds the command to the parser; `given.is_program` is True for it."""
    check = commands.add_parser(
        "check",
        help="compare the batches of an unchanged program's loaders with those of torch's DataLoader",
        usage="fastdata check [-h] [--batches N] (SCRIPT | -m MODULE) [ARGUMENT ...]",
        description="Runs SCRIPT or MODULE up to where it begins to read from its first loader.  Then makes the first "
        "batches of every loader that it has made, once with torch's class and once with fastdata's, compares values, "
        "types, dtypes, shapes, strides, order and exceptions, prints one line per loader, and ends the program before "
        "it gets a batch: nothing is trained or saved.",
        epilog="Exit status: 0 if all batches are equal, 1 if one is different, 2 if nothing could be compared.",
        allow_abbrev=False,
    )
    check.add_argument("--batches", type=_count, default=50, help="batches of each loader (default: %(default)s)")
    check.set_defaults(is_program=True, parser=check, run_program=run_check)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def run_check(given: argparse.Namespace, program: list[str]) -> int:
    """Runs the program until it reads from a loader, compares, and ends it; its exceptions pass through."""
    is_module = program[:1] != [] and program[0].startswith("-m")
    if is_module:
        program = [*filter(None, [program[0][2:]]), *program[1:]]
    if not program:
        given.parser.error("name a SCRIPT, or a module with -m MODULE")
    try:
        if not is_module:
            check_script(program[0])
    except OptionError as error:
        print(f"fastdata: {error}", file=sys.stderr)
        return _UNKNOWN
    _compare_when_read(given.batches)
    interrupts.raise_again()  # the program's own, from here on
    (run_module if is_module else run_script)(program[0], program[1:])
    print("fastdata: the program has ended without reading from a DataLoader: nothing was compared", file=sys.stderr)
    return _UNKNOWN


def _compare_when_read(batches: int) -> None:
    """Compares all loaders as soon as one of them is iterated, and ends the process then."""
    from fastdata.dataloader import loader as loaders
    from fastdata.run.replace import replace_dataloader

    begun: list[Any] = []

    def compare(loader: Any, _: Any) -> None:
        if not begun:  # else one that is made for comparing
            begun.append(loader)
            _end(_compare_all(loader, loaders.StatelessDataLoader, batches))

    loaders.observers.append(compare)
    replace_dataloader(quiet=True)


def _compare_all(first: Any, kind: type[Any], batches: int) -> int:
    """Compares the loader that is read, then all others that the program has made; returns the exit status."""
    from fastdata.run.check import check
    from fastdata.run.report import is_first_rank

    others = [each for each in gc.get_objects() if issubclass(type(each), kind) and each is not first]
    status = _EQUAL
    for loader in [first, *others]:
        try:
            found = check(loader, batches=batches)
        except KeyboardInterrupt:
            print("fastdata: interrupted", file=sys.stderr)
            return interrupts.STATUS
        except Exception as error:  # noqa: BLE001 - of the user's dataset, sampler or class of loaders
            line, seen = f"cannot be compared: {type(loader.dataset).__name__}: {error}", _UNKNOWN
        else:
            line = str(found)
            seen = _EQUAL if found.equal else _DIFFERENT if found.repeatable else _UNKNOWN
        if is_first_rank() or seen != _EQUAL:
            print(f"fastdata: {line}", flush=True)
        status = _DIFFERENT if _DIFFERENT in (status, seen) else max(status, seen)
    return status


def _end(status: int) -> NoReturn:
    """Ends the process at once: what a program does when it is stopped, such as saving a model, is not done."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed by the program
            stream.flush()
    os._exit(status)
