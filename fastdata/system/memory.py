"""How much memory this process may still take."""

from __future__ import annotations

from pathlib import Path

__all__ = ["available_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_WHERE_UNKNOWN = 4 << 30


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes: the smaller of what the system has available and what the cgroup leaves; 4 GiB where neither is known."""
    known = [amount for amount in (_of_system(meminfo), _of_cgroup(cgroup)) if amount is not None]
    return max(0, min(known)) if known else _WHERE_UNKNOWN


def _of_system(meminfo: Path) -> int | None:
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _of_cgroup(cgroup: Path) -> int | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            return int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return None
