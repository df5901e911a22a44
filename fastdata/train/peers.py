"""Finds out which ranks' processes on this machine have ended, so that an error message can name them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["RankProcess", "ended_ranks", "this_process"]

_PATIENCE_S = 2.0  # others may notice a closed connection shortly before its process has ended


@dataclass(frozen=True, kw_only=True)
class RankProcess:
    """The process of a rank.

    Attributes:
        host: name of its machine, for messages.
        pid_scope: names the scope in which process ids are unique: this boot of the machine, and the PID namespace (a
            container has its own); on systems other than Linux only the machine.
        pid: process id in that scope.
        started: result of `started_at`; tells it from a later process with the same id.
    """

    host: str
    pid_scope: str
    pid: int
    started: float

    def has_ended(self) -> bool:
        """True if the process is gone, or a zombie; only valid if its `pid_scope` is that of the calling process."""
        try:
            process = psutil.Process(self.pid)
            return bool(started_at(self.pid) != self.started or process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def started_at(pid: int) -> float:
    """Returns when a process started: on Linux in ticks since the boot, which the system's clock does not move.

    Raises:
        psutil.NoSuchProcess: there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return float(stat.rpartition(")")[2].split()[19])  # behind the name, which may have spaces: the 22nd field
    except (OSError, IndexError):
        return float(psutil.Process(pid).create_time())


def this_process() -> RankProcess:
    """Describes this process, for the other ranks."""
    host = pid_scope = socket.gethostname()
    with suppress(OSError):  # the files exist only on Linux
        pid_scope += Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return RankProcess(host=host, pid_scope=pid_scope, pid=os.getpid(), started=started_at(os.getpid()))


def ended_ranks(peers: Sequence[RankProcess], patience_s: float = _PATIENCE_S) -> list[int]:
    """Returns the other ranks on this machine whose processes have ended; waits up to `patience_s` seconds for one."""
    until, here = time.monotonic() + patience_s, this_process().pid_scope
    near = [(rank, peer) for rank, peer in enumerate(peers) if peer.pid_scope == here and peer.pid != os.getpid()]
    while not (ended := [rank for rank, peer in near if peer.has_ended()]) and time.monotonic() < until:
        time.sleep(0.05)
    return ended
