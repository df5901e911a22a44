"""`fastdata doctor`: says what holds a training program, or a folder's loader, back, and what to change."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn

from fastdata.cli.folders import open_folder
from fastdata.errors import FastdataError, OptionError
from fastdata.run.program import run_named, split_module
from fastdata.system import interrupts

__all__ = ["DOCTOR_VALUES", "add_doctor", "run_doctor"]

_BATCH_SIZE = 64
_SELDOM_PROGRAMS = ("--json", "--html")  # options that training programs seldom have
_TO_END_S = 10.0  # for the threads and processes of a program that was stopped
DOCTOR_VALUES = ("--data", "--seconds", "--budget", "--json", "--html", "--workers", "--batch-size", "--backend")


def add_doctor(commands: Any) -> None:
    """Adds the command to the parser; `given.is_program` is True for it."""
    doctor = commands.add_parser(
        "doctor",
        help="say what holds a training program back, and what to change",
        usage="fastdata doctor [OPTION ...] (SCRIPT | -m MODULE | --data FOLDER) [ARGUMENT ...]",
        description="Runs SCRIPT or MODULE as python would, unchanged, and times its steps, and what of them is "
        "computing; then stops it and times its loader alone (data only).  Prints a verdict, the measurements, and "
        "advice with the gain to be expected.  The program is stopped in the middle of its training: let it write "
        "where nothing can be lost.",
        epilog="On several GPUs: torchrun --nproc-per-node 8 -m fastdata doctor SCRIPT.",
        allow_abbrev=False,
    )
    doctor.add_argument(
        "--data", metavar="FOLDER", help="no program: the loader alone, over FOLDER/CLASS/IMAGE or shards"
    )
    doctor.add_argument(
        "--seconds", type=_seconds, default=20.0, help="for all steps that are timed (default: %(default)s)"
    )
    doctor.add_argument(
        "--budget",
        type=_seconds,
        metavar="SECONDS",
        help="for all of it at most, from the first batch on (default: six times --seconds, at least 120)",
    )
    doctor.add_argument("--json", metavar="FILE", type=Path, help="write all figures to FILE, - for standard output")
    doctor.add_argument("--html", metavar="FILE", type=Path, help="write a page to FILE")
    doctor.add_argument("--workers", help="with --data: threads (default: auto)")
    doctor.add_argument("--batch-size", type=int, help=f"with --data (default: {_BATCH_SIZE})")
    doctor.add_argument("--backend", help="with --data: decode backend (default: auto)")
    doctor.set_defaults(is_program=True, parser=doctor, run_program=run_doctor)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def run_doctor(given: argparse.Namespace, program: list[str]) -> int:
    """Measures and tells; the program's own exit status if it ended by itself."""
    given.out = sys.stdout  # which the program may replace
    _check_what(given, program)
    try:
        _check_output(given)
        if given.data is not None:
            seen = _examine_folder(given)
            is_written = _tell(given, seen)
            return 130 if seen.is_interrupted else int(not is_written)
        is_module, program = split_module(program)
        if not program:
            given.parser.error("name a MODULE after -m")
    except (FastdataError, OSError) as error:
        print(f"fastdata: {given.parser.in_options(error)}", file=sys.stderr)
        return 2
    with _budgeted(given) as budget:
        return _watch_program(given, program, budget, is_module=is_module)


@contextmanager
def _budgeted(given: argparse.Namespace) -> Iterator[Any]:
    """The time that all of it may take; the first rank tells of it."""
    from fastdata.diagnosis.budget import Budget, budget_for, progress_told
    from fastdata.run.report import is_first_rank

    budget = Budget(budget_for(given.seconds, given.budget))
    with progress_told(budget) if is_first_rank() else nullcontext():
        yield budget


def _check_what(given: argparse.Namespace, program: list[str]) -> None:
    """Exits with a message if what is to be examined is not clear, or if an option would be without effect."""
    if given.data is None and not program:
        given.parser.error("name a SCRIPT, a module with -m MODULE, or a folder with --data")
    if given.data is not None and program:
        given.parser.error(f"--data examines a folder without a program, but {program[0]} was named, too")
    if given.data is not None:
        return
    for option in ("workers", "batch_size", "backend"):
        if getattr(given, option) is not None:
            name = "--" + option.replace("_", "-")
            given.parser.error(f"{name} is for --data; a program's loaders stay as they are")
    if Path(program[0]).is_dir() and not (Path(program[0]) / "__main__.py").exists():
        given.parser.error(f"{program[0]} is a folder without __main__.py; for a folder of images: --data {program[0]}")
    for option in _SELDOM_PROGRAMS:
        if option in program[1:]:
            before = "-m" if program[0].startswith("-m") else program[0]
            print(
                f"fastdata: the program gets {option}; write it before {before} if it is meant for the doctor",
                file=sys.stderr,
            )


def _check_output(given: argparse.Namespace) -> None:
    """Checks the output paths before anything is measured, and before the program may go to another folder."""
    for option in ("json", "html"):
        path = getattr(given, option)
        if path is None or str(path) == "-":
            continue
        path = path.absolute()
        setattr(given, option, path)
        if not path.parent.is_dir():
            raise OptionError(f"{path.parent} is no folder; {path.name} cannot be written there")
        if path.is_dir():
            raise OptionError(f"{path} is a folder; name a file for --{option}")


def _watch_program(given: argparse.Namespace, program: list[str], budget: Any, *, is_module: bool) -> int:
    from fastdata.diagnosis.examine import examine_watched
    from fastdata.diagnosis.loop_monitor import LoopMonitor, Stopped

    watch = LoopMonitor(seconds=given.seconds, budget=budget)
    name, status = " ".join([*(["-m"] if is_module else []), *program]), 0
    ended: BaseException | None = None
    found: list[Any] = []
    watch.when_done = lambda: found.append(examine_watched(watch, name))
    watch.when_ignored = lambda: _tell_and_end(given, found)
    aside = redirect_stdout(sys.stderr) if str(given.json) == "-" else nullcontext()
    with watch.watching(), aside:
        try:
            run_named(program, is_module=is_module)
        except Stopped:
            pass
        except SystemExit as left:
            ended, status = left, left.code if isinstance(left.code, int) else int(left.code is not None)
            if isinstance(left.code, str):
                print(left.code, file=sys.stderr)
        except BaseException as error:  # noqa: BLE001 - it is raised again, once what was seen has been told
            ended, status = error, 1
    if found and not isinstance(ended, KeyboardInterrupt):
        ended, status = None, 0  # whatever it made of being stopped
    if not found:
        found.append(examine_watched(watch, name, failure=_failure(ended) if status else ""))
    if not _tell_on_first_rank(given, found[0]):
        status = status or 1
    if isinstance(ended, KeyboardInterrupt) or found[0].is_interrupted:
        print("fastdata: interrupted", file=sys.stderr)
        ended, status = None, 130
    if watch.is_done:
        _end_soon(status)
    if status and ended is not None and not isinstance(ended, SystemExit):
        raise ended
    return status


def _failure(ended: BaseException | None) -> str:
    """Describes how a program ended."""
    if isinstance(ended, KeyboardInterrupt):
        return "the program was interrupted"
    if isinstance(ended, SystemExit):
        return f"the program ended by sys.exit({ended.code!r})"
    return f"the program ended by {type(ended).__name__}: {ended}"


def _tell_and_end(given: argparse.Namespace, found: list[Any]) -> None:
    """Tells the result and ends a program that goes on, or whose main thread does not hear of the end."""
    is_told = not found or _tell_on_first_rank(given, found[0])
    _end(0 if is_told else 1)


def _end_soon(status: int) -> None:
    """A stopped program's threads and processes may end by themselves, or wait for what does not come any more."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    if others or multiprocessing.active_children():
        timer = threading.Timer(_TO_END_S, _end, (status,))
        timer.daemon = True
        timer.start()


def _end(status: int) -> NoReturn:
    for child in multiprocessing.active_children():
        child.terminate()
    interrupts.exit_at_once(status)


def _tell_on_first_rank(given: argparse.Namespace, seen: Any) -> bool:
    from fastdata.run.report import is_first_rank

    return not is_first_rank() or _tell(given, seen)


def _examine_folder(given: argparse.Namespace) -> Any:
    from fastdata import DataLoader
    from fastdata.diagnosis.examine import examine_loader
    from fastdata.system.cpus import parse_workers

    batch_size = given.batch_size if given.batch_size is not None else _BATCH_SIZE
    if batch_size < 1:
        raise OptionError(f"batch_size={batch_size}; use an integer of at least 1")
    dataset = open_folder(given.data)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size,
        shuffle=True,
        num_workers=parse_workers(given.workers if given.workers is not None else "auto"),
        backend=given.backend if given.backend is not None else "auto",
        on_error="skip",
    )
    with _budgeted(given) as budget:
        program = f"--data {Path(given.data).name}"
        return examine_loader(loader, seconds=given.seconds, program=program, budget=budget)


def _tell(given: argparse.Namespace, seen: Any) -> bool:
    """Prints the report, then writes what was asked for; False if a file could not be written."""
    from fastdata.diagnosis.html_report import as_html
    from fastdata.diagnosis.verdict import diagnose
    from fastdata.measuring.record import machine

    told, here = diagnose(seen), machine()
    text = json.dumps({**told.to_dict(), "machine": here}, indent=1) + "\n"
    out = sys.stderr if given.out.closed else given.out
    print(text if str(given.json) == "-" else f"\n{told}\n", end="", file=out, flush=True)
    is_written = True
    for path, content in (
        (given.json, text),
        (given.html, as_html(told, here, command=given.command_line) if given.html is not None else ""),
    ):
        if path is None or str(path) == "-":
            continue
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            print(f"fastdata: {path} could not be written: {error.strerror}", file=sys.stderr)
            is_written = False
    return is_written
