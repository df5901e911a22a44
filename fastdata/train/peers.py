"""The processes behind the ranks: whether one on this machine has ended, so that errors can name it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Peer", "ended_ranks", "this_peer"]

_PATIENCE_S = 2.0  # a process closes its connections shortly before it ends


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The process of a rank.

    Attributes:
        host: name of its machine, for messages.
        space: scope in which process ids are unique: the machine since it was started, and the container.
        pid: process id in that scope.
        started: start time of the process, in seconds since 1970; ids are used again.
    """

    host: str
    space: str
    pid: int
    started: float

    def has_ended(self) -> bool:
        """True if the process is gone, or a zombie; only for one of this space."""
        try:
            process = psutil.Process(self.pid)
            return bool(process.create_time() != self.started or process.status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False


def this_peer() -> Peer:
    """Describes this process as a Peer."""
    space = socket.gethostname()
    with suppress(OSError):  # not on Linux
        space += Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return Peer(host=socket.gethostname(), space=space, pid=os.getpid(), started=psutil.Process().create_time())


def ended_ranks(peers: Sequence[Peer], patience_s: float = _PATIENCE_S) -> list[int]:
    """Ranks on this machine whose process has ended; looks again for a moment while there is none."""
    until, here = time.monotonic() + patience_s, this_peer().space
    near = [(rank, peer) for rank, peer in enumerate(peers) if peer.space == here and peer.pid != os.getpid()]
    while not (ended := [rank for rank, peer in near if peer.has_ended()]) and time.monotonic() < until:
        time.sleep(0.05)
    return ended
