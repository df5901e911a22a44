"""Imports of optional packages."""

from __future__ import annotations

import importlib
from typing import Any

from fastdata.errors import FastdataError, OptionError

__all__ = ["need"]


def need(module: str, what: str, *, package: str | None = None, error: type[FastdataError] = OptionError) -> Any:
    """Imports a module of an optional package.

    Args:
        module: its dotted name.
        what: the option that needs it, for the message.
        package: the package to install, if its name is not the first part of the module's name.
        error: the class of the error to raise.

    Raises:
        OptionError, or `error`: the package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = package or module.partition(".")[0]
        raise error(f"{what} needs {package}; install it with: pip install {package}") from missing
