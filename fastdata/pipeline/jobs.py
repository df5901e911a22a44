"""Threads: bounded, ordered, cancellable.  The only file that starts any.

A `Job` is one batch: tasks that may run in any order in any thread, and a result once all have run.  `OrderedJobs`
keeps up to `depth` jobs in flight and yields their results in order.  All threads share one queue of tasks, so the
oldest batch is always worked on by everybody and the first one is there as soon as possible.

Life cycle; any deviation is a bug:

* Start.  Threads start with the first iterator, never on import or construction of a loader.
* End of epoch.  When the last result has been yielded, threads are joined before StopIteration is raised.
* Error in a task.  The other tasks of its job are dropped; the error is raised at the job's place in the order, after
  the results before it.  Work on later jobs goes on: whoever asks again gets the next result, as from torch; whoever
  drops the iterator leaves nothing running.
* Error in the order (the sampler raised).  Raised at its place; nothing comes after it.
* Consumer stops (`break`, an exception in its loop, Ctrl-C, garbage collection).  Dropping the iterator cancels the
  queue, ends running tasks where they call `stop_if_cancelled` (between two samples), and joins the threads.  A
  thread inside of somebody's transform or read is waited for `PATIENCE_S` at most and then left to end by itself.
  Ctrl-C inside `next()` closes first and is then raised.
* Timeout.  A thread that hangs in a read cannot be joined: the work is cancelled, the threads are left to end by
  themselves, and the error is raised in time.  Nor does interpreter exit wait for them.
* Several threads call `next`.  They take turns, and each result goes to one of them.
* Another thread calls `close` while the consumer waits.  The consumer gets a PipelineError.
* Interpreter exit.  The same, by an exit hook of the iterator.  Threads are daemons, since Python joins others
  before exit hooks run.
* Fork.  Threads do not survive a fork.  A child that goes on with an inherited iterator gets a PipelineError; a new
  iterator works there.  No lock of this file is taken in the child for inherited objects.
* Two iterators at once are independent.
* Memory.  A job's memory belongs to its result; the pipeline keeps no reference once it has yielded it, and never
  writes to it again.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn, Protocol, TypeAlias

from fastdata.errors import PipelineError

__all__ = ["FailedJob", "Job", "OrderedJobs", "SkipResult", "Task", "run_all", "stop_if_cancelled"]

PATIENCE_S = 2.0  # for threads that are inside of a transform or a read when everything is cancelled


Task: TypeAlias = Callable[[], "Sequence[Task] | None"]


class Job(Protocol):
    """One batch of work.

    Attributes:
        tasks: run in any order, in any thread; asked for once.  A task may return further tasks, which belong to the
            job like it.
    """

    @property
    def tasks(self) -> Sequence[Task]: ...  # noqa: D102

    def finish(self) -> None:
        """Called once, in the thread that ran the last task."""

    def result(self) -> Any:
        """Returns the batch; called once, in the consumer's thread, after `finish`.

        Raises:
            SkipResult: there is nothing to yield for this job.
        """


class FailedJob:
    """A job that raises an error at its place; other jobs go on.

    Args:
        error: what is raised.
        tasks: run before that.
    """

    def __init__(self, error: Exception, tasks: Sequence[Task] = ()) -> None:
        self._error: Exception | None = error
        self.tasks = tasks

    def finish(self) -> None:
        """Nothing is left to do."""

    def result(self) -> NoReturn:
        """Raises the error; may be called once."""
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:  # the error remembers this frame
            del error


class SkipResult(Exception):
    """Raised by `Job.result` when a batch has become empty."""


class _Cancelled(Exception):
    """Ends a task whose result nobody will ask for."""


def stop_if_cancelled() -> None:
    """Ends the task if its pipeline is closing; tasks call it between two steps that may take long."""
    shared: _Shared | None = getattr(_of_this_thread, "shared", None)
    if shared is not None and shared.closing:
        raise _Cancelled


def run_all(tasks: Sequence[Task]) -> None:
    """Runs tasks, and those that they return, in the calling thread."""
    waiting = deque(tasks)
    while waiting:
        waiting.extend(waiting.popleft()() or ())


_of_this_thread = threading.local()  # in a decode thread, whose it is


def _nothing() -> None:
    """The task of a job that has none, so that `finish` runs where it does for the others."""


class _InFlight:
    """A job and how far it is."""

    def __init__(self, job: Job | None, error: BaseException | None = None) -> None:
        self.job = job
        self.error = error
        self.tasks = (list(job.tasks) or [_nothing]) if job is not None else []  # until they are queued
        self.tasks_left = len(self.tasks)
        self.finished = False

    @property
    def done(self) -> bool:
        return self.finished or self.error is not None

    def outcome(self) -> Any:
        """The job's result, or its error raised, which only its traceback then refers to: no cycle keeps it alive."""
        error, self.error, self.finished = self.error, None, True
        if error is None:
            assert self.job is not None
            return self.job.result()
        try:
            raise error
        finally:
            del error

    def run_here(self) -> None:
        """Runs all tasks in the calling thread; an error of theirs becomes `error`."""
        if self.job is None:
            return
        tasks, self.tasks = self.tasks, []
        try:
            run_all(tasks)
            self.job.finish()
        except Exception as error:  # noqa: BLE001 - handed over to the consumer, whatever it is
            self.error = error

    def run(self, task: Task, lock: AbstractContextManager[object]) -> Sequence[Task]:
        """Runs one task, and `finish` after the last; whatever goes wrong becomes `error`.

        Returns:
            What must run, too, before the job is finished.
        """
        assert self.job is not None
        further: Sequence[Task] = ()
        try:
            if not self.done:  # else its error is known, or was raised already
                further = task() or ()
            with lock:
                self.tasks_left += len(further) - 1
                last = self.tasks_left == 0
            if last and not self.done:
                self.job.finish()
                self.finished = True
        except BaseException as error:  # noqa: BLE001 - handed over to the consumer, whatever it is
            self.error = self.error or error
        return further


class _Shared:
    """State that the threads and the consumer share.  Threads refer to this, never to the iterator."""

    def __init__(
        self, on_close: Callable[[bool], object] | None, wanted: int, begin: Callable[[], object] | None
    ) -> None:
        self.owner_pid, self.begin = os.getpid(), begin
        self.on_close = on_close
        self.changed = threading.Condition()
        self.queue: deque[tuple[_InFlight, Task]] = deque()
        self.closing = False
        self.wanted = wanted  # threads
        self.threads: list[threading.Thread] = []

    def put(self, flight: _InFlight) -> None:
        tasks, flight.tasks = flight.tasks, []
        with self.changed:
            self.queue.extend((flight, task) for task in tasks)
            self.changed.notify_all()

    def work(self) -> None:
        """A decode thread's life."""
        _of_this_thread.shared = self
        if self.begin is not None:
            with suppress(Exception):  # of a device, whose next call tells it at its place
                self.begin()
        while (entry := self._take()) is not None:
            flight, task = entry
            further = flight.run(task, self.changed)
            if flight.done or further:
                with self.changed:
                    if not self.closing:
                        self.queue.extendleft((flight, task) for task in further)
                    self.changed.notify_all()
            del entry, flight, task, further  # an idle thread must not keep a batch alive

    def _take(self) -> tuple[_InFlight, Task] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.queue or self.closing)
            return None if self.closing else self.queue.popleft()

    def wait_for(self, flight: _InFlight, timeout_s: float | None) -> bool:
        with self.changed:
            in_time = self.changed.wait_for(lambda: flight.done or self.closing, timeout_s)
        if in_time and not flight.done:
            raise PipelineError("the iterator was closed by another thread while this one waited for a batch")
        return in_time

    def shut_down(self, patience_s: float = PATIENCE_S) -> None:
        """Cancels everything and joins the threads; does nothing in a forked child.

        Args:
            patience_s: longest wait for threads that do not end.
        """
        if os.getpid() != self.owner_pid:
            return
        with self.changed:
            self.closing = True
            self.queue.clear()
            self.changed.notify_all()
            on_close, self.on_close = self.on_close, None
        deadline = time.monotonic() + patience_s
        own = threading.current_thread()  # garbage collection may run this in a decode thread
        for thread in self.threads:
            if thread is not own:
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = not any(thread.is_alive() for thread in self.threads)
        self.threads.clear()
        if on_close is not None:
            on_close(ended)


class OrderedJobs:
    """Runs jobs in threads and yields their results in order."""

    def __init__(
        self,
        jobs: Iterable[Job],
        *,
        threads: int,
        depth: int,
        timeout_s: float = 0,
        on_close: Callable[[bool], object] | None = None,
        may_take: Callable[[], bool] | None = None,
        begin: Callable[[], object] | None = None,
    ) -> None:
        """Args:
        jobs: made lazily, in the consumer's thread, at most `depth` ahead of what has been yielded.
        threads: number of threads; 0 runs every task in `next()` itself.
        depth: jobs in flight.
        timeout_s: longest wait for one result; 0 waits for ever.
        on_close: called once, at the end; with False if a thread was left behind that may still work.
        begin: called by each thread first.
        may_take: True if the next job is there; without one no job is waited for while another is in flight.
        """
        # A generator: an error that waits for its turn knows its callers' frames up to it, not this object's.
        self._jobs: Iterator[Job] = (job for job in jobs)
        self._depth = max(1, depth) if threads else 1
        self._timeout_s = timeout_s
        self._flights: deque[_InFlight] = deque()
        self._exhausted = False
        self._may_take = may_take
        self._shared = _Shared(on_close, threads, begin)
        self._close = weakref.finalize(self, _Shared.shut_down, self._shared)
        self.waited_s = 0.0
        if threads:
            self._fill()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if os.getpid() != self._shared.owner_pid:
            raise PipelineError(
                "this iterator was made in another process; after a fork make a new one with iter(loader)"
            )
        began = time.perf_counter()
        try:
            while True:
                try:
                    return self._next_finished().outcome()
                except SkipResult:
                    continue
        finally:
            self.waited_s += time.perf_counter() - began

    def close(self) -> None:
        """Cancels all work and joins the threads.  Harmless when repeated."""
        self._exhausted = True
        self._flights.clear()
        self._jobs = iter(())
        self._close()

    def _next_finished(self) -> _InFlight:
        """The oldest job, finished or failed; whatever is raised here ends the iteration."""
        try:
            self._fill()
            try:
                flight = self._flights[0]
            except IndexError:
                raise StopIteration from None
            if not self._shared.wanted:
                flight.run_here()
            elif not self._shared.wait_for(flight, self._timeout_s or None):
                self._shared.shut_down(patience_s=0)
                raise PipelineError(f"DataLoader timed out after {self._timeout_s} seconds")
            with suppress(IndexError):  # closed by another thread, once this batch was done
                self._flights.popleft()
            if self._shared.wanted:
                self._fill(may_wait=False)  # keep the threads busy while the caller computes
            return flight
        except BaseException:
            self.close()
            raise

    def _fill(self, *, may_wait: bool = True) -> None:
        while not self._exhausted and len(self._flights) < self._depth:
            if self._may_take is not None and (self._flights or not may_wait) and not self._may_take():
                return
            try:
                flight = _InFlight(next(self._jobs))
            except StopIteration:
                self._exhausted = True
                return
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
                # Without this frame, which would keep `self` alive for as long as the error waits for its turn.
                below = error.__traceback__.tb_next if error.__traceback__ else None
                flight, self._exhausted = _InFlight(None, error.with_traceback(below)), True
            if self._shared.closing:  # by another thread, meanwhile
                return
            self._flights.append(flight)
            if self._shared.wanted and flight.job is not None:
                self._start_threads()
                self._shared.put(flight)

    def _start_threads(self) -> None:
        shared = self._shared
        with shared.changed:
            while len(shared.threads) < shared.wanted:  # a new one waits for the lock until it is in the list
                name = f"fastdata-decode-{len(shared.threads)}"
                thread = threading.Thread(target=shared.work, name=name, daemon=True)
                thread.start()
                shared.threads.append(thread)
