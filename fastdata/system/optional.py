"""Packages that only some options need."""

from __future__ import annotations

import importlib
from typing import Any

from fastdata.errors import FastdataError, OptionError

__all__ = ["need"]


def need(module: str, what: str, *, package: str | None = None, error: type[FastdataError] = OptionError) -> Any:
    """Imports a module.

    Args:
        module: its dotted name.
        what: the option that needs it, for the message.
        package: what to install, if it is called otherwise than the module's first part.
        error: what is raised.

    Raises:
        OptionError, or another if one is given: the package is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = package or module.partition(".")[0]
        raise error(f"{what} needs {package}; install it with: pip install {package}") from missing
