"""Results as JSON, with the machine and the command that they were measured with."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fastdata.system import cuda

__all__ = ["machine", "write_json"]


def machine() -> dict[str, Any]:
    """The machine and the software versions that figures were measured with."""
    import torch

    from fastdata import __version__
    from fastdata.loaders import describe_backends
    from fastdata.system.cpus import usable_cpus

    return {
        "cpu": _cpu_name(),
        "usable_cpus": usable_cpus(),
        "gpu": cuda.get_device_name() if cuda.is_available() else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fastdata": __version__,
        "backends": {info.name: info.version for info in describe_backends() if info.version is not None},
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_json(path: Path, *, setup: str, data: str, results: Any) -> None:
    """Writes results to a JSON file, with the command, date, commit, machine and conditions they were measured with.

    Args:
        path: the file; missing folders are created.
        setup: description of the comparison and its conditions.
        data: description of the images used.
        results: anything that JSON can hold.
    """
    record = {
        "command": shlex.join(["python", _script(sys.argv[0]), *map(_without_folders, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "commit": _commit(),
        "setup": setup,
        "data": data,
        "machine": machine(),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


def _script(path: str) -> str:
    """A script as it is called from the root of the checkout."""
    whole = Path(path).resolve()
    root = Path(__file__).parents[2]
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else "/".join(whole.parts[-2:])


def _without_folders(argument: str) -> str:
    """Keeps only the last part of a path: where files lie on the measuring machine is not published."""
    return Path(argument).name if os.sep in argument else argument


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or None
