"""CPUs that this process may use: affinity, cgroup quota, share among processes, and the user's choice."""

from __future__ import annotations

import math
import os
from pathlib import Path

from fastdata.errors import OptionError

__all__ = ["auto_threads", "local_processes", "parse_workers", "usable_cpus"]

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """CPUs this process may run on: the smaller of its affinity mask and its cgroup's quota, at least 1."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota_v2(cgroup) or _quota_v1(cgroup)
    return max(1, min(affinity, math.ceil(quota)) if quota else affinity)


def auto_threads() -> int:
    """`usable_cpus` divided by the number of training processes on this machine (LOCAL_WORLD_SIZE), at least 1."""
    return max(1, usable_cpus() // local_processes())


def local_processes() -> int:
    """The number of training processes on this machine (LOCAL_WORLD_SIZE), at least 1."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(processes) if processes.isdigit() else 1)


def _quota_v2(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(cgroup: Path) -> float | None:
    try:
        quota = int((cgroup / "cpu" / "cpu.cfs_quota_us").read_text())
        return quota / int((cgroup / "cpu" / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def parse_workers(text: str, *, least: int = 0) -> int:
    """Parses a number of workers from the command line: digits, or "auto".

    Raises:
        OptionError: it is neither, or below `least`.
    """
    if text == "auto":
        return auto_threads()
    if not text.isdecimal() or int(text) < least:
        raise OptionError(f"workers={text!r} is not accepted; use an integer of at least {least}, or auto")
    return int(text)
