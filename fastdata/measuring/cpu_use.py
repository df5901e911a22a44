"""Cores that this program and the others on the machine use while something is measured."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from fastdata.measuring.cpu_time import tree_cpu_s
from fastdata.system.cpus import local_processes, usable_cpus

__all__ = ["CROWDED", "CpuMeter", "Load", "load_now", "others_of"]

CROWDED = 0.25  # share of the cores: if other programs use more of them, times are theirs, too

_CGROUP = Path("/sys/fs/cgroup")
_SHORTEST_S = 0.5  # for which the system's counters, of 10 ms, are fine enough
_NOT_BUSY = {"idle", "iowait", "guest", "guest_nice", "interrupt", "dpc"}  # or counted in another field


@dataclass(frozen=True)
class Load:
    """The load average of the last minute, and the most that this program can have added to it.

    Attributes:
        average: threads that ran, or wanted to; None where the system does not tell.
        own_threads: number of threads of this process and its children.
    """

    average: float | None = None
    own_threads: int = 0


class CpuMeter:
    """Measures from its creation on.

    Args:
        cgroup: folder in which the cgroups are mounted.
    """

    def __init__(self, cgroup: Path = _CGROUP) -> None:
        self._cgroup = cgroup
        self._began = self._now()

    def use(self) -> tuple[float, float | None]:
        """Mean cores since the meter was made: (own, others), of this process with its children, and of other programs.

        Others count on the cores that this process may use; None where the system does not tell.
        """
        before, now = self._began, self._now()
        wall_s, own_s, family_s, machine_s, container_s = (
            None if old is None or new is None else new - old for old, new in zip(before, now, strict=True)
        )
        wall_s, own_s = max(1e-9, wall_s or 0.0), own_s or 0.0
        if wall_s < _SHORTEST_S or machine_s is None or family_s is None:
            return own_s / wall_s, None
        usable = usable_cpus(self._cgroup)
        of_container = (container_s - family_s) / wall_s if container_s is not None else 0.0
        beyond = others_of(machine_s / wall_s, family_s / wall_s, cores=_cores(), usable=usable)
        return own_s / wall_s, min(float(usable), max(beyond, of_container))

    def _now(self) -> tuple[float | None, ...]:
        """Wall time, and CPU seconds: own, of all ranks, of the cores that may be used, and of the container."""
        own = tree_cpu_s()
        family = own if local_processes() < 2 else _family_s()
        return time.perf_counter(), own, family, _machine_s(), _container_s(self._cgroup)


def others_of(machine: float, own: float, *, cores: int, usable: int) -> float:
    """Cores that other programs take from this one: what they use beyond the cores that it may not use anyway."""
    return max(0.0, machine - own - max(0, cores - usable))


def load_now() -> Load:
    """The machine's load average, as a second witness."""
    threads = 0
    for each in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            threads += each.num_threads()
    try:
        return Load(psutil.getloadavg()[0], threads)
    except (OSError, AttributeError):
        return Load(None, threads)


def _cores() -> int:
    """Cores on which the system lets this process run, whatever its quota."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine_s() -> float | None:
    """CPU seconds of all programs on these cores; None where the system does not tell."""
    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError, ValueError):
        return None
    if hasattr(os, "sched_getaffinity"):
        times = [times[core] for core in os.sched_getaffinity(0) if core < len(times)]
    total = sum(getattr(each, name) for each in times for name in each._fields if name not in _NOT_BUSY)
    return float(total) or None  # counters that stand still at 0 tell nothing


def _container_s(cgroup: Path) -> float | None:
    """CPU seconds of all that shares this container's quota; None without one."""
    if not (cgroup / "cpu.max").exists() or usable_cpus(cgroup) >= _cores():
        return None
    try:
        lines = (cgroup / "cpu.stat").read_text().splitlines()
        return next(int(line.split()[1]) / 1e6 for line in lines if line.startswith("usage_usec"))
    except (OSError, ValueError, StopIteration):
        return None


def _family_s() -> float:
    """CPU seconds of all ranks that were started together: a rank is no other program to the next one."""
    total, launcher = 0.0, psutil.Process().parent() or psutil.Process()
    for each in [launcher, *launcher.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(each.cpu_times()[:2])
    return total
