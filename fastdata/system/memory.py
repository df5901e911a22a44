"""Memory that this process may still take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["available_memory"]

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")
_OWN = Path("/proc/self/cgroup")
_WHERE_UNKNOWN = 4 << 30


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP, own: Path = _OWN) -> int:
    """Bytes available to this process: the least of the system's and the cgroups'; 4 GiB if nothing is known.

    Args:
        meminfo: the system's file of that name.
        cgroup: folder in which cgroups are mounted.
        own: file that names the cgroups of this process.
    """
    known = [amount for amount in (_of_system(meminfo), *_of_cgroups(cgroup, own)) if amount is not None]
    return max(0, min(known)) if known else _WHERE_UNKNOWN


def _of_system(meminfo: Path) -> int | None:
    try:
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _of_cgroups(root: Path, own: Path) -> Iterator[int | None]:
    """Yields the bytes left in the cgroup of this process and in each around it, under both versions of cgroups."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        lines = []
    inside = {kind: path.strip("/") for _, kind, path in (line for line in lines if len(line) == 3)}
    for base, path, limit, used in (
        (root, inside.get("", ""), "memory.max", "memory.current"),
        (root / "memory", inside.get("memory", ""), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        for folder in (base / path, *(base / parent for parent in Path(path).parents)):
            yield _left_in(folder, limit, used)


def _left_in(folder: Path, limit: str, used: str) -> int | None:
    """Bytes left in one cgroup, with cached files that the system can drop; None if that is not known."""
    try:
        left = int((folder / limit).read_text()) - int((folder / used).read_text())
    except (OSError, ValueError):  # another version of cgroups, or "max"
        return None
    try:
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return left + int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return left
