"""FASTDATA_RUN and PYTHONPATH: replace the DataLoader in the Python processes that a program starts.

`follow_children` puts the folder `site` first in PYTHONPATH.  Its `sitecustomize.py` is read by interpreters that start
with this PYTHONPATH, by no others, and calls `install`.  Nothing more is imported until the program itself imports
torch, so processes without torch stay as they are.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from fastdata.system.switches import is_off, is_on

__all__ = [
    "QUIET",
    "SITE",
    "VARIABLE",
    "follow_children",
    "follow_children_to_check",
    "forbidden_by",
    "install",
    "replaces",
]

VARIABLE = "FASTDATA_RUN"
_CHECK = "check:"  # the value that compares begins so
QUIET = "quiet"  # the value that replaces without printing; every other one prints
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")  # comes first in children's PYTHONPATH


def replaces() -> bool:
    """True if the environment asks for the replacement.

    Raises:
        OptionError: the value is none that is accepted.
    """
    value = os.environ.get(VARIABLE, "")
    return value == QUIET or value.startswith(_CHECK) or is_on(VARIABLE, by_default=False)


def forbidden_by() -> str | None:
    """The setting that keeps torch's class, as in "FASTDATA=0"; None if there is none."""
    if is_off():
        return f"FASTDATA={os.environ['FASTDATA']}"
    value = os.environ.get(VARIABLE, "")
    return None if not value or replaces() else f"{VARIABLE}={value}"


def follow_children(*, quiet: bool) -> None:
    """Sets the environment of the processes that this one starts: Pythons among them replace the DataLoader, too.

    They are not followed where Python is told to ignore PYTHONPATH (-E, -I) or `site` (-S).
    """
    _follow(QUIET if quiet else "1")


def follow_children_to_check(*, batches: int, folder: str) -> None:
    """Like `follow_children`, for `fastdata check`: they compare the first `batches`, and leave results in `folder`."""
    _follow(f"{_CHECK}{batches}:{folder}")


def _follow(value: str) -> None:
    os.environ[VARIABLE] = value
    former = os.environ.get("PYTHONPATH")
    if not former:
        os.environ["PYTHONPATH"] = SITE  # an empty entry behind it would mean the current folder
    elif former.split(os.pathsep)[0] != SITE:
        os.environ["PYTHONPATH"] = SITE + os.pathsep + former


def install() -> None:
    """Replaces the DataLoader as soon as torch has been imported, or immediately if it already is."""
    if forbidden_by() is not None:
        return
    if "torch" in sys.modules:
        _replace()
    elif not any(isinstance(finder, _AfterTorch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


class _AfterTorch:
    """Finds torch as the other finders do, and waits for the end of its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of torch, whose loader replaces the DataLoader afterwards; None for other modules."""
        if name != "torch":
            return None
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._wait_for(spec.loader)
        return spec

    def _wait_for(self, loader: Any) -> None:
        import_torch = loader.exec_module

        def import_and_replace(module: Any) -> None:
            del loader.exec_module  # which leaves the loader's own
            import_torch(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _replace()

        loader.exec_module = import_and_replace


def _replace() -> None:
    """Replaces, or says why that is not possible; the program goes on in either case."""
    asked = os.environ.get(VARIABLE, "")
    if asked.startswith(_CHECK):
        from pathlib import Path

        from fastdata.run.check_program import compare_when_read

        batches, _, folder = asked.removeprefix(_CHECK).partition(":")
        compare_when_read(int(batches), Path(folder))
        return
    try:
        from fastdata.run.replace import replace_dataloader
    except ImportError as error:
        print(f"fastdata: torch's DataLoader is not replaced: {error}", file=sys.stderr)
        return
    replace_dataloader(quiet=asked == QUIET)
