"""Threads that run one at a time, in an order and by a clock that follow from a seed.

A `Simulation` stands in for the modules `threading` and `time` of the code under test.  Each of its threads is a real
one, but only one has the baton.  It is handed on wherever a thread takes or leaves a lock, waits, sleeps, starts or
joins another, and, by chance, between two lines of the files under test.  A condition wakes only those that were
notified, so a forgotten notification is a deadlock here, every time.  Time stands still while anything can run.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

LINE = 0.05  # probability of a switch between two lines


class Deadlock(Exception):
    """Nothing can run any more."""


class Ended(BaseException):
    """Ends the threads of a simulation that is over."""


class Thread:
    """As threading.Thread, as far as it is used."""

    def __init__(self, simulation: Simulation, target: Callable[[], None] | None = None, name: str = "main") -> None:
        self.name, self.error = name, None
        self.simulation, self._target = simulation, target
        self.baton = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.until: float | None = None
        self.started, self.ended = target is None, False

    def start(self) -> None:
        self.started = True
        self.simulation.threads.append(self)
        threading.Thread(target=self._run, daemon=True).start()
        self.simulation.switch()

    def is_alive(self) -> bool:
        return self.started and not self.ended

    def join(self, timeout: float | None = None) -> None:
        self.simulation.switch(lambda: self.ended, timeout)

    def _run(self) -> None:
        assert self._target is not None
        self.baton.acquire()
        self.simulation.trace()
        try:
            if not self.simulation.over:
                self._target()
        except Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - for whoever asks
            self.error = error
        finally:
            sys.settrace(None)
            self.ended = True
            self.simulation.hand_on()


class Condition:
    """As threading.Condition with a lock that its owner may take again."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._owner: Thread | None = None
        self._times = 0
        self._waiting: list[list[bool]] = []

    def __enter__(self) -> bool:
        own = self._simulation.running
        if self._owner is not own:
            self._simulation.switch(lambda: self._owner is None)
            self._owner = own
        self._times += 1
        return True

    def __exit__(self, *_: object) -> None:
        self._times -= 1
        if self._times == 0:
            self._owner = None
            self._simulation.switch()

    def wait(self, timeout: float | None = None) -> bool:
        assert self._owner is self._simulation.running
        times, self._owner, self._times = self._times, None, 0
        notified: list[bool] = []
        self._waiting.append(notified)
        self._simulation.switch(lambda: bool(notified) and self._owner is None, timeout)
        if self._owner is not None:  # in time or not, the lock is taken again
            self._simulation.switch(lambda: self._owner is None)
        self._owner, self._times = self._simulation.running, times
        if not notified:
            self._waiting = [each for each in self._waiting if each is not notified]
        return bool(notified)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else self._simulation.now + timeout
        while not (found := predicate()):
            left = None if until is None else until - self._simulation.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify_all(self) -> None:
        assert self._owner is self._simulation.running
        for each in self._waiting:
            each.append(True)
        self._waiting.clear()


class Simulation:
    """Stands in for the modules `threading` and `time`.

    Args:
        rng: decides who runs next.
        files: names of the files of which every line may be interrupted.
    """

    local = threading.local

    def __init__(self, rng: Random, files: set[str]) -> None:
        self.rng, self._files = rng, files
        self.now = 0.0
        self.switches = 0
        self.over = False
        self.running = Thread(self)
        self.threads = [self.running]
        self._stopped: str | None = None

    # ---- what the code under test asks

    def Thread(self, *, target: Callable[[], None], name: str = "", daemon: bool = True) -> Thread:
        return Thread(self, target, name)

    def Condition(self) -> Condition:
        return Condition(self)

    def current_thread(self) -> Thread:
        return self.running

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.switch(lambda: False, seconds)

    # ---- the simulation itself

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Within it the calling thread is one of the simulation's; afterwards those that are left are ended.

        The garbage collector waits: a finalizer of an earlier simulation would be followed line by line in the middle
        of this one's own code, and switch threads there.
        """
        gc.disable()
        self.trace()
        try:
            yield
        finally:
            sys.settrace(None)
            gc.enable()
            self.over = True
            for each in self.threads[1:]:
                each.baton.release()

    def trace(self) -> None:
        """Has lines of the files under test switch by chance in the calling thread."""
        sys.settrace(self._call)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and self.rng.random() < LINE:
            self.switch()
        return self._line

    def switch(self, ready: Callable[[], bool] = lambda: True, timeout: float | None = None) -> None:
        """Lets another thread run, until `ready` or, in seconds of the simulation's clock, for `timeout`."""
        if self.over:
            raise Ended
        own = self.running
        own.ready, own.until = ready, None if timeout is None else self.now + timeout
        self.hand_on()
        if self.running is not own or self._stopped:
            own.baton.acquire()
        if self.over:
            raise Ended
        if self._stopped:
            told, self._stopped = self._stopped, None
            raise Deadlock(told)

    def hand_on(self) -> None:
        """Gives the baton to a thread that can run."""
        self.switches += 1
        if self.over:
            return
        alive = [each for each in self.threads if not each.ended]
        able = [each for each in alive if each.ready() or self._is_late(each)]
        if not able:
            times = [each.until for each in alive if each.until is not None]
            if times:
                self.now = min(times)
                able = [each for each in alive if self._is_late(each)]
            else:
                self._stopped = "nothing can run: " + ", ".join(each.name for each in alive)
                able = self.threads[:1]
        before, self.running = self.running, self.rng.choice(able)
        if self.running is not before or self._stopped:
            self.running.baton.release()

    def _is_late(self, thread: Thread) -> bool:
        return thread.until is not None and thread.until <= self.now
