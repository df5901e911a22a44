"""A warning shows the line of the user's program, however deep in fastdata or torch it is given."""

from __future__ import annotations

import re
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from places import ROOT

from fastdata import DataLoader
from fastdata.system.stack_level import users_level

# Functions of modules that bear the package's and torch's names.
_PACKAGE = {"__name__": "fastdata.somewhere", "users_level": users_level, "warnings": warnings}
exec(
    "def warn():\n    warnings.warn('told', stacklevel=users_level())\ndef deeper(call):\n    return call()\n",
    _PACKAGE,
)
_TORCH: dict[str, Any] = {"__name__": "torch.utils.somewhere"}
exec("def between(call):\n    return call()\n", _TORCH)


def place_of(call: Callable[[], object]) -> tuple[str, int]:
    """File and line that the one warning shows."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        call()
    (one,) = warned
    return one.filename, one.lineno


def test_frames_of_the_package_and_of_torch_are_passed_over() -> None:
    warn, deeper, between = _PACKAGE["warn"], _PACKAGE["deeper"], _TORCH["between"]
    for call in (lambda: warn(), lambda: deeper(warn), lambda: deeper(lambda: between(lambda: warn()))):
        assert place_of(call)[0] == __file__


def test_a_warning_while_a_module_is_imported_shows_the_module(tmp_path: Path) -> None:
    """Importing puts frames between, which Python's warnings do not count."""
    (tmp_path / "users.py").write_text("\n\nwarn()\n")
    script = tmp_path / "main.py"
    script.write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport builtins\nimport users\n")
    import builtins

    builtins.warn = _PACKAGE["warn"]  # type: ignore[attr-defined]
    try:
        assert place_of(lambda: runpy.run_path(str(script))) == (str(tmp_path / "users.py"), 3)
    finally:
        del builtins.warn  # type: ignore[attr-defined]


class Own(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("made", [iter, list, enumerate, lambda loader: [*loader]], ids=["iter", "list", "for", "star"])
def test_a_loaders_warning_shows_the_line_that_iterates(made: Callable[[Any], Any]) -> None:
    loader = DataLoader(Own(), 2, backend="pil")  # has no effect: the dataset's own code makes the samples
    assert place_of(lambda: [*made(loader)])[0] == __file__


def test_no_warning_counts_its_frames_by_hand() -> None:
    for path in (ROOT / "fastdata").rglob("*.py"):
        assert not re.search(r"stacklevel=\d", path.read_text()), path
