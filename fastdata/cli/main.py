"""The `fastdata` command."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastdata import __version__
from fastdata.cli.check import add_check
from fastdata.cli.doctor import add_doctor
from fastdata.cli.folders import open_folder, refuse_splits
from fastdata.cli.output import add_output, log, tell
from fastdata.cli.problems import add_options, left_out_of, summary_of
from fastdata.cli.run import add_run, split_program
from fastdata.cli.shards import add_commands
from fastdata.errors import BackendUnavailable, DatasetError, DecodeError, FastdataError, OptionError
from fastdata.run import startup
from fastdata.system import interrupts
from fastdata.system.cpus import parse_workers
from fastdata.system.disk_space import no_space
from fastdata.system.switches import check_compares
from fastdata.terminal.flags import argument, positive
from fastdata.terminal.help import Parser
from fastdata.terminal.wrap import wrapped

__all__ = ["main"]

_BACKEND = 10  # columns
# What a command needs beyond what fastdata itself does.
_PACKAGES = {"bench": ("torchvision",), "demo": ("matplotlib", "torchvision")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one `fastdata` command and returns its exit status."""
    own, program = split_program(list(sys.argv[1:] if arguments is None else arguments))
    if own and (meant := _what_is_meant(own[0])):
        print(f"fastdata: {own[0]!r} is no command; {meant}", file=sys.stderr)
        return 2
    given = _parser().parse_args(own)
    given.command_line = shlex.join(["fastdata", *own, *program])
    if hasattr(given, "is_program"):  # whose errors are its own
        return int(given.run_program(given, program))
    try:
        with interrupts.raised():
            given.run(given)
    except (FastdataError, OSError) as error:
        told = no_space(error, ".") if isinstance(error, OSError) else None
        advice = f"{told}; free some space and run the command again" if told else given.parser.in_options(error)
        print(f"fastdata: {advice}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"fastdata: interrupted{getattr(given, 'when_interrupted', '')}", file=sys.stderr)
        return interrupts.STATUS
    return 0


def _what_is_meant(name: str) -> str | None:
    """Command to use in place of a name that is none, but easily taken for one; None for all others."""
    if name == "train":
        return "the training loop is started by: python -m fastdata.train --help"
    if name.endswith(".py"):
        return f"to run a program with its DataLoader replaced: fastdata run {shlex.quote(name)}"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastdata",
        description="Fast image loading for PyTorch training: check the installation, measure its speed on this "
        "machine, explain what a loader does, run a program with its loaders replaced, convert datasets to shards.",
        epilog="In Python: replace `from torch.utils.data import DataLoader` by `from fastdata import DataLoader`.",
    )
    parser.add_argument("--version", action="version", version=f"fastdata {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    info = commands.add_parser(
        "info", help="list decode backends with their versions, and what to install for missing ones"
    )
    info.add_argument("--require-native", action="store_true", help="fail if the native core is missing")
    info.set_defaults(run=_info)

    _add_bench(commands)

    explain = commands.add_parser(
        "explain",
        help="say what a loader would do with your images, and why",
        description="Makes a loader over FOLDER/CLASS/IMAGE or shards with the usual training transform, reads one "
        "batch, and prints loader.explain(), which you can also call on your own loaders.",
    )
    _add_folder(explain, ", or shards")
    explain.add_argument("--backend", default="auto", help="decode backend (default: auto)")
    add_options(explain, on_error="skip")
    explain.set_defaults(run=_explain)

    add_commands(commands)
    add_run(commands)
    add_check(commands)
    add_doctor(commands)

    demo = commands.add_parser(
        "demo",
        help="draw sample images, measure loaders, train one epoch, write report.html",
        description="Draws a sample dataset (unless a folder is named), measures every backend against torch's "
        "DataLoader with torchvision, trains a small ResNet for one epoch, and writes a self-contained report.",
    )
    demo.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help="a folder with one folder of images per class, to use instead of the sample dataset",
    )
    demo.add_argument(
        "--output", type=Path, default=Path("demo-output"), help="folder for the results (default: %(default)s)"
    )
    demo.add_argument(
        "--quick", action="store_true", help="use fewer images and rounds, only to check that everything works"
    )
    demo.set_defaults(run=_demo)
    return parser


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure every backend against torch's DataLoader on your images",
        description="Measures interleaved rounds over FOLDER/CLASS/IMAGE with RandomResizedCrop(224), flip, ToTensor "
        "and Normalize.  CPU time is summed over the whole process tree.",
    )
    _add_folder(bench)
    bench.add_argument(
        "--workers",
        type=argument(parse_workers),
        default="auto",
        help="number of threads, and of torch's worker processes (default: auto)",
    )
    bench.add_argument("--html", type=Path, help="also write a self-contained page")
    bench.add_argument("--batch-size", type=positive, default=64, help="images per batch (default: %(default)s)")
    bench.add_argument(
        "--rounds", type=positive, default=3, help="measured passes over the data per loader (default: %(default)s)"
    )
    add_options(bench, on_error="raise")
    add_output(bench)
    bench.set_defaults(run=_bench)


def _add_folder(parser: argparse.ArgumentParser, more: str = "") -> None:
    parser.add_argument("folder", type=Path, help=f"a folder with one folder of images per class{more}")


def _info(given: Any) -> None:
    from fastdata.loaders import describe_backends, native_problem
    from fastdata.measuring.record import machine

    here = machine()
    print(wrapped(f"fastdata {__version__}, torch {here['torch']}, Python {here['python']}, {here['system']}"))
    print(wrapped(f"CPUs usable: {here['usable_cpus']} ({here['cpu']}); GPU: {here['gpu'] or 'none'}"))
    for backend in describe_backends():
        told = backend.version or f"missing: {backend.problem}"
        print(wrapped(f"  {backend.name:{_BACKEND}} {told}", hanging=_BACKEND + 3))
    if given.require_native and (problem := native_problem()) is not None:
        raise BackendUnavailable(f"the native core is missing: {problem}")


def _check_can_run(command: str) -> None:
    """Says what is to be installed, or would spoil the comparison with torch, before any work is done."""
    check_compares(f"fastdata {command}")
    if startup.replaces():
        raise OptionError(
            f"fastdata {command} measures torch's DataLoader, which {startup.VARIABLE} replaces; unset it"
        )
    from fastdata.system.installed import installed

    if missing := [package for package in _PACKAGES[command] if not installed(package)]:
        raise OptionError(
            f"fastdata {command} needs {' and '.join(missing)}; install with: pip install {' '.join(missing)}"
        )


def _bench(given: Any) -> None:
    _check_can_run("bench")
    from fastdata.demo.compare import compare_loaders
    from fastdata.demo.report import write_report
    from fastdata.demo.results import as_text, verdict
    from fastdata.measuring.record import machine
    from fastdata.shards.open_images import holds_shards

    refuse_splits(given.folder)
    if holds_shards(given.folder):
        raise DatasetError(
            f"{given.folder} holds shards, which torchvision does not read; name a folder with one folder per class"
        )
    problems = left_out_of(given.folder, given)
    try:
        sizes = {"workers": given.workers, "batch_size": given.batch_size, "rounds": given.rounds}
        left_out = {problem.path for problem in problems}
        results = compare_loaders(given.folder, **sizes, left_out=left_out, say=log(given))
    except DecodeError as error:
        raise DatasetError(
            f"{error.location}: {error.reason}; torch's DataLoader, with which this compares, ends at damaged images: "
            "repair or remove the file, or leave out all such files with --check decode --on-error skip"
        ) from error
    told = "\n".join([as_text(results), *([summary_of(problems)] if problems else [])])
    document: dict[str, Any] = {
        "verdict": verdict(results),
        "folder": str(given.folder),
        **sizes,
        "loaders": [each.to_dict() for each in results],
        "left_out": [str(problem.path) for problem in problems],
        "machine": machine(),
        "command": given.command_line,
    }
    if given.html is not None:
        write_report(given.html, results, None, machine(), folder=given.folder, command=given.command_line)
        told, document["page"] = f"{told}\npage: {given.html}", str(given.html)
    tell(given, told, document)


def _explain(given: Any) -> None:
    from fastdata import DataLoader
    from fastdata.image_folder import leave_out
    from fastdata.shards.open_images import holds_shards, slow_to_read

    problems = [] if holds_shards(given.folder) else left_out_of(given.folder, given)
    dataset = open_folder(str(given.folder))
    leave_out(dataset, {problem.path for problem in problems})
    loader: DataLoader[Any] = DataLoader(dataset, 8, num_workers="auto", backend=given.backend, on_error="skip")
    for _ in loader:
        break
    loader.on_error = "raise"  # the default, which a loader without arguments has
    print(loader.explain())
    if problems:
        print(summary_of(problems))
    if (problem := slow_to_read(str(given.folder))) is not None:
        print(wrapped(problem))


def _demo(given: Any) -> None:
    _check_can_run("demo")
    from fastdata.demo.run import run_demo

    run_demo(given.folder, given.output, quick=given.quick)


if __name__ == "__main__":
    raise SystemExit(main())
