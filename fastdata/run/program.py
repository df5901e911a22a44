"""Runs a script or module as `__main__`, as the interpreter itself would."""

from __future__ import annotations

import io
import os
import runpy
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from fastdata.errors import OptionError

__all__ = ["run_named", "split_module"]


def split_module(program: list[str]) -> tuple[bool, list[str]]:
    """Returns if a program is named by -m, and its name with its arguments; the list is empty if no name was given.

    Raises:
        OptionError: a script cannot be opened, in Python's own words.
    """
    if program and program[0].startswith("-m"):
        return True, [*filter(None, [program[0][2:]]), *program[1:]]
    try:
        if program and not Path(program[0]).is_dir():
            io.open_code(os.path.abspath(program[0])).close()
    except OSError as error:
        raise OptionError(f"can't open file {program[0]!r}: [Errno {error.errno}] {error.strerror}") from error
    return False, program


def run_named(program: list[str], *, is_module: bool) -> None:
    """Runs what `split_module` returned, as python would."""
    (_run_module if is_module else _run_script)(program[0], program[1:])


def _run_script(script: str, arguments: list[str]) -> None:
    """Runs a file as `python SCRIPT ARGUMENTS` does; a folder or zip file runs its `__main__.py`."""
    sys.argv[:] = [script, *arguments]
    path = os.path.abspath(script)
    main = _new_main()
    if not _is_source(path):
        _set_first_path(path)
        _run(lambda: runpy._run_module_as_main("__main__", alter_argv=False))  # type: ignore[attr-defined]
        return
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        source = file.read()
    _run(lambda: exec(compile(source, path, "exec", dont_inherit=True), main.__dict__))


def _run_module(name: str, arguments: list[str]) -> None:
    """Runs a module as `python -m NAME ARGUMENTS` does."""
    sys.argv[:] = ["-m", *arguments]
    _new_main()
    _set_first_path(os.getcwd())
    _run(lambda: runpy._run_module_as_main(name))  # type: ignore[attr-defined]


def _is_source(path: str) -> bool:
    """False for what Python imports `__main__` from: folders and zip files."""
    import zipfile

    return not os.path.isdir(path) and not zipfile.is_zipfile(path)


def _new_main() -> ModuleType:
    """An empty `__main__`; the module that was there, which is running, is kept alive by its frame."""
    main = ModuleType("__main__")
    names: dict[str, Any] = {"__builtins__": sys.modules["builtins"]}
    if sys.version_info < (3, 14):  # since then a module makes them when it is asked
        names["__annotations__"] = {}
    main.__dict__.update(names)
    sys.modules["__main__"] = main
    return main


def _set_first_path(folder: str) -> None:
    """Sets what the interpreter puts first in sys.path, unless it was told not to (-P, PYTHONSAFEPATH)."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder


def _run(program: Any) -> None:
    """Runs the program; an exception is reported as if fastdata's frames were not below it."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        _report_without_ours(error, traceback)
        raise


def _report_without_ours(error: BaseException, theirs: TracebackType | None) -> None:
    """Makes the hook that reports uncaught exceptions, the program's own or Python's, see only its frames."""
    report = sys.excepthook

    def report_theirs(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
        traceback = theirs if value is error else traceback
        report(kind, value.with_traceback(traceback), traceback)

    sys.excepthook = report_theirs
