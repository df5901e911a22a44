"""CPU time of a process tree."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["descendants_cpu_s", "tree_cpu_s", "until_idle"]

_SETTLE_S = 0.03


def tree_cpu_s() -> float:
    """CPU seconds used so far by this process, its living descendants, and ended children they have waited for."""
    import psutil  # not for programs that only load

    return time.process_time() + descendants_cpu_s(psutil.Process())


def descendants_cpu_s(root: Any) -> float:
    """CPU seconds used so far by a psutil.Process's living descendants, and by ended children waited for."""
    import psutil

    waited_for = root.cpu_times()
    total = waited_for.children_user + waited_for.children_system
    for child in root.children(recursive=True):
        with suppress(psutil.Error):  # it ended between the two calls and is counted by its parent
            total += sum(child.cpu_times()[:4])
    return float(total)


def until_idle(cpu_s: Callable[[], float]) -> None:
    """Waits until nothing runs: what a loader prefetches for its next pass is its own cost, not that of the next.

    Args:
        cpu_s: CPU seconds used so far.
    """
    for _ in range(200):
        before = cpu_s()
        time.sleep(_SETTLE_S)
        if cpu_s() - before < 0.1 * _SETTLE_S:
            return
