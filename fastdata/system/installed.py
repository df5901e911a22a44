"""The command that installs this package again, the way the user installed it; and which modules are there."""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["install_command", "installed"]

DISTRIBUTION = "torch-fastdata"


def install_command(extra: str | None = None, *, options: str = "") -> str:
    """The pip command for a message, and where to run it if that matters.

    A package index is named only if the package came from one; otherwise the checkout, the wheel or the repository.

    Args:
        extra: the optional dependencies to install with it.
        options: further options of `pip install`, such as "--force-reinstall".

    Source: PEP 610, https://peps.python.org/pep-0610/ (direct_url.json).
    """
    pip, brackets = " ".join(filter(None, ["pip install", options])), f"[{extra}]" if extra else ""
    if (checkout := _checkout()) is not None:
        folder, is_editable = checkout
        return f"in the checkout at {folder}: {pip} {'-e ' if is_editable else ''}{_quoted('.' + brackets)}"
    origin = _origin()
    url = str(origin.get("url", ""))
    if not url:
        return f"{pip} {_quoted(DISTRIBUTION + brackets)}"
    if "vcs_info" in origin:
        return f"{pip} '{DISTRIBUTION}{brackets} @ {origin['vcs_info']['vcs']}+{url}'"
    if url.startswith("file:"):
        return f"{pip} '{_path_of(url)}{brackets}'"
    return f"{pip} '{DISTRIBUTION}{brackets} @ {url}'"


def _checkout() -> tuple[Path, bool] | None:
    """The folder of the sources, and whether the package is used there; None for other installations."""
    here = Path(__file__).resolve().parents[2]
    if (here / "pyproject.toml").exists():
        return here, True
    origin = _origin()
    return (_path_of(str(origin["url"])), bool(origin["dir_info"].get("editable"))) if "dir_info" in origin else None


@cache
def _origin() -> dict[str, Any]:
    """The installation's direct_url.json; empty if the package came from an index, or is not installed."""
    try:
        text = distribution(DISTRIBUTION).read_text("direct_url.json")
        found = json.loads(text) if text else {}
    except (PackageNotFoundError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _path_of(url: str) -> Path:
    return Path(url2pathname(urlsplit(url).path))


def _quoted(requirement: str) -> str:
    """Quotes a requirement if a shell would read its brackets as a pattern."""
    return f"'{requirement}'" if "[" in requirement else requirement


def installed(module: str) -> bool:
    """True when a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
