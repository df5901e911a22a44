"""Ends a process that waits for another one which has ended, since NCCL does not notice that.

Life cycle of the thread; any deviation is a bug:

* It starts when the block of `watching` is entered, and is told to end, and joined, when the block is left.
* Once in `every_s` seconds it looks whether a process has ended.  It blocks nowhere else, so leaving the block takes no
  longer.
* When one has ended, the block has `grace_s` to leave, by an error or by its end; then `lost` is called, once, which
  ends the process.  Nothing that the block holds can be cleaned up: its thread may wait for the device for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

__all__ = ["watching"]


@contextmanager
def watching(
    ended: Callable[[], Sequence[int]],
    lost: Callable[[Sequence[int]], object],
    *,
    grace_s: float,
    every_s: float = 1.0,
) -> Iterator[None]:
    """Looks after other processes during a block.

    Args:
        ended: returns the ranks whose processes have ended.
        lost: called in a thread with these ranks, if the block still runs `grace_s` seconds later; ends this process.
        grace_s: seconds in which the block may notice it by itself, with an error that says more.
        every_s: seconds from one look to the next.
    """
    left = threading.Event()

    def watch() -> None:
        gone: Sequence[int] = ()
        while not gone:
            if left.wait(every_s):
                return
            with suppress(OSError):  # no descriptor left, for example: it looks again
                gone = ended()
        if not left.wait(grace_s):
            lost(gone)

    thread = threading.Thread(target=watch, name="fastdata-ranks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
