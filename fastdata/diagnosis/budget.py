"""The time that a diagnosis may take: who measures asks how much is left, and an alarm ends what takes longer.

Two limits.  Between steps, batches and measurements `is_past` is asked, and what does not fit any more is named as not
measured.  What takes long in one piece (a batch that other programs hold up, a step of the program) is ended by an
exception that is raised from outside.  A call of C is not ended before it returns.  Ranks of one run must all take the
same number of steps, so nothing of both applies to their steps.

Life cycle of the two threads; any deviation is a bug:
  Alarm     begins with each piece of work that is limited.  It raises in the thread that made it alone, until
            `stop()`, behind which nothing is raised any more; the thread ends within half a second.
  Progress  tells on stderr until its block is left.
  Both are daemons, so they keep no program alive; a forked child has neither.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from fastdata.diagnosis.loader_facts import ranks

__all__ = ["PROGRAM", "PROGRAM_AT_MOST", "UNTRAINED", "Alarm", "Budget", "OverBudget", "budget_for", "progress_told"]

UNTRAINED, PROGRAM = 0.4, 0.6  # shares of it: until the program trains, and for all of its steps
PROGRAM_AT_MOST = 0.75  # after which a step is not waited for any more
_LEAST_S, _TIMES = 120.0, 6.0  # at least, and of the seconds for the steps that are timed
_AGAIN_S = 1.0  # an exception may be lost, as in a destructor
_LOOKS_S = 0.5
_FLUSH = 100
_TELL_S = 10.0


class OverBudget(BaseException):
    """Ends what takes longer than the budget."""


class Budget:
    """Seconds from `begin()` on.

    Attributes:
        seconds: total time; infinite for no limit.
        phase: description for people of what is done now.

    Args:
        clock: seconds.
    """

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds, self._clock = seconds, clock
        self.phase = "waiting for the program's first batch"
        self._began_at: float | None = None

    def begin(self) -> bool:
        """Begins the budget, when the program asks for its first batch or without a program; False if begun before."""
        if self._began_at is not None:
            return False
        self._began_at, self.phase = self._clock(), "waiting until the program trains"
        return True

    @property
    def taken_s(self) -> float:
        """Seconds so far."""
        return self._clock() - self._began_at if self._began_at is not None else 0.0

    @property
    def left_s(self) -> float:
        """Seconds until its end; 0 behind it."""
        return max(0.0, self.seconds - self.taken_s)

    def is_past(self, share: float = 1.0) -> bool:
        """True if this share of it is over."""
        return self.taken_s >= share * self.seconds

    def is_past_for_steps(self, share: float = PROGRAM) -> bool:
        """True if this share of it is over and the process is not one of several ranks."""
        return self.is_past(share) and ranks() < 2

    def missed(self, what: str) -> str:
        """A line for what is not measured."""
        return f"{what}: the time budget of {self.seconds:g} s was used up; a larger one gives more"


def budget_for(seconds: float, chosen: float | None) -> float:
    """Seconds of the budget: those chosen, else enough for so many seconds of steps that are timed."""
    return chosen if chosen is not None else max(_LEAST_S, _TIMES * seconds)


class Alarm:
    """Raises an exception in the thread that makes it, again and again, from so many seconds on until it is stopped.

    Args:
        seconds: until then; infinite for never.
        raised: the exception's class.
        before: called in a thread of the alarm's own each time; False if nothing shall be raised.
    """

    def __init__(self, seconds: float, raised: type[BaseException], before: Callable[[], bool] = lambda: True) -> None:
        self._raised, self._before = raised, before
        self._thread = ctypes.c_ulong(threading.get_ident())
        self._is_off = False
        self._lock = threading.RLock()
        if math.isfinite(seconds):
            threading.Thread(target=self._ring, args=(seconds,), name="fastdata-doctor-alarm", daemon=True).start()

    def _ring(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        while not self._is_off:
            if (left := at - time.monotonic()) > 0:
                time.sleep(min(_LOOKS_S, left))
                continue
            at = time.monotonic() + _AGAIN_S
            if self._before():
                with self._lock:
                    if not self._is_off:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._thread, ctypes.py_object(self._raised))

    def stop(self) -> None:
        """Stops the alarm; nothing is raised from then on, even if it has rung already."""
        while True:
            try:
                with self._lock:
                    self._is_off = True
                for _ in range(_FLUSH):  # Python raises what has rung in between; to cancel it can hang profilers
                    pass
                return
            except self._raised:  # in the last moment
                continue


@contextmanager
def progress_told(budget: Budget, *, every_s: float = _TELL_S) -> Iterator[None]:
    """Says on stderr at the beginning how long it may take, and every ten seconds what is done."""
    ended, began, stream = threading.Event(), time.perf_counter(), sys.stderr
    _say(stream, f"measuring takes up to {budget.seconds:g} s from the first batch on (--budget SECONDS)")

    def tell() -> None:
        while not ended.wait(every_s):
            seconds = f"{budget.taken_s:.0f} of up to {budget.seconds:g} s"
            if not budget.taken_s:
                seconds = f"{time.perf_counter() - began:.0f} s"
            _say(stream, f"{seconds}: {budget.phase}")

    threading.Thread(target=tell, name="fastdata-doctor-progress", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _say(stream: object, line: str) -> None:
    """Writes a line by the system if possible: a process that is forked meanwhile must not inherit a stream's lock."""
    with suppress(OSError, ValueError, AttributeError):  # closed, or None
        number = stream.fileno()  # type: ignore[attr-defined]
        os.write(number, f"fastdata: {line}\n".encode())
