"""`fastdata check` in the processes of a program: compares its loaders when one is read, and ends the process."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fastdata.system import interrupts

__all__ = ["DIFFERENT", "EQUAL", "UNKNOWN", "compare_when_read", "joint", "results_in"]

EQUAL, DIFFERENT, UNKNOWN = 0, 1, 2  # exit statuses


def compare_when_read(batches: int, folder: Path) -> None:
    """Compares all loaders as soon as one of them is iterated in this process, and ends the process then.

    Args:
        batches: of each loader.
        folder: gets a file with the exit status.
    """
    from fastdata.dataloader.loader import StatelessDataLoader
    from fastdata.run.replace import replace_dataloader

    begun: list[Any] = []

    def compare(loader: Any) -> None:
        if not begun:  # else one that is made for comparing
            begun.append(loader)
            status = UNKNOWN
            try:
                status = _compare_all(loader, StatelessDataLoader, batches)
            finally:  # whatever the program's own code raised
                with suppress(OSError):
                    (folder / str(os.getpid())).write_text(str(status))
                interrupts.exit_at_once(status)

    # Both: a class derived from ours may have an __iter__ that only calls the latter.
    for name in ("__iter__", "_get_iterator"):
        setattr(StatelessDataLoader, name, _comparing(getattr(StatelessDataLoader, name), compare))
    replace_dataloader(quiet=True)


def joint(results: list[int]) -> int:
    """The exit status of several comparisons: one that is different decides, then one that is unknown."""
    return DIFFERENT if DIFFERENT in results else max(results, default=EQUAL)


def results_in(folder: Path) -> list[int]:
    """The exit statuses of the processes that have compared."""
    return [int(path.read_text()) for path in folder.iterdir()]


def _comparing(original: Any, compare: Any) -> Any:
    def iterate(self: Any) -> Any:
        compare(self)
        return original(self)

    return iterate


def _compare_all(first: Any, kind: type[Any], batches: int) -> int:
    """Compares the loader that is read, then all others that the program has made; returns the exit status."""
    from fastdata.run.check import check
    from fastdata.run.report import is_first_rank

    gc.collect()  # loaders that nobody has any more
    others = [each for each in gc.get_objects() if issubclass(type(each), kind) and each is not first]
    statuses: list[int] = []
    for loader in [first, *others]:
        try:
            found = check(loader, batches=batches)
        except KeyboardInterrupt:
            print("fastdata: interrupted", file=sys.stderr)
            return interrupts.STATUS
        except BaseException as error:  # noqa: BLE001 - of the user's dataset, sampler or class of loaders
            line, seen = f"cannot be compared: {type(loader.dataset).__name__}: {error}", UNKNOWN
        else:
            line = str(found)
            seen = DIFFERENT if not found.equal else EQUAL
            if not found.repeatable or not found.batches:
                seen = UNKNOWN
        if is_first_rank() or seen != EQUAL:
            print(f"fastdata: {line}", flush=True)
        statuses.append(seen)
    return joint(statuses)
