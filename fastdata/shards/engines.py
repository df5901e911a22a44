"""Engines that run jobs: processes of this machine, or a Ray cluster.  Results are yielded as they finish.

Life cycle of a worker process; any deviation is a bug: it starts with the first job and ends when the last result has
been taken.  After an error it finishes its current job.  When the consumer stops, is interrupted or dies, the worker
ends at once, in the middle of its job: a thread in it watches the consumer.  Ctrl-C reaches only the consumer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, resource_tracker
from typing import Any, Literal, TypeAlias, TypeVar

from fastdata.errors import ConversionError, OptionError
from fastdata.system.optional import need

__all__ = ["ENGINES", "run_jobs"]

Engine: TypeAlias = Literal["processes", "ray"]
ENGINES: tuple[Engine, ...] = ("processes", "ray")

Job = TypeVar("Job")
Done = TypeVar("Done")

_TRIES = 4  # how often Ray retries a shard whose worker was lost


def run_jobs(
    work: Callable[[Job], Done], jobs: Iterable[Job], *, workers: int, engine: Engine = "processes"
) -> Iterator[Done]:
    """Runs jobs and yields their results in any order; jobs are drawn as workers become free.

    Args:
        work: a module-level function, which other processes can import.
        jobs: the arguments of `work`, one per call.
        workers: number of processes, or of Ray tasks at once; with 1 process the jobs run in this process.
        engine: one of `ENGINES`.

    Raises:
        ConversionError: a worker was killed.
        OptionError: the engine is unknown or not installed.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not accepted; use one of {', '.join(ENGINES)}")
    if engine == "ray":
        return _on_ray(work, jobs, workers)
    return map(work, jobs) if workers <= 1 else _in_processes(work, jobs, workers)


def _in_processes(work: Callable[[Job], Done], jobs: Iterable[Job], workers: int) -> Iterator[Done]:
    # Started afresh rather than forked, which threads of the caller could not survive.
    context = multiprocessing.get_context("spawn")
    wanted, stop = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(wanted,))
    running: set[Future[Done]] = set()
    try:
        for job in jobs:
            with _without_ctrl_c():
                running.add(pool.submit(work, job))
            if len(running) > workers:
                yield from _take(running)
        while running:
            yield from _take(running)
    except (KeyboardInterrupt, GeneratorExit):
        stop.close()
        raise
    except BrokenProcessPool as error:
        raise ConversionError(
            "a worker process was killed, perhaps because memory ran out (then use fewer --workers); finished shards "
            "are kept: run the same command again to continue"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        stop.close()
        wanted.close()


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Keeps Ctrl-C back while processes are started, which would be left half begun; it comes afterwards.

    The processes never get one, not even before they can say that they ignore it.
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    holds_back = callable(handler) and threading.current_thread() is threading.main_thread()
    if holds_back:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with _blocked():
            yield
    finally:
        if holds_back:
            signal.signal(signal.SIGINT, handler)
    if came and callable(handler):
        handler(signal.SIGINT, None)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Processes that start meanwhile inherit that Ctrl-C is blocked; Windows has no such thing."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would be started now, and let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(wanted: connection.Connection) -> None:
    """Prepares a worker process, which ends when nobody holds the other end of `wanted`, or with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_the_end() -> None:
        connection.wait([parent.sentinel, wanted])
        os._exit(1)

    threading.Thread(target=wait_for_the_end, daemon=True).start()


def _take(running: set[Future[Done]]) -> Iterator[Done]:
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    running -= finished
    for future in finished:
        yield future.result()


def _on_ray(work: Callable[[Job], Done], jobs: Iterable[Job], workers: int) -> Iterator[Done]:
    ray = need("ray", "engine='ray'")
    with contextlib.ExitStack() as stack:
        if not ray.is_initialized():
            ray.init(log_to_driver=False)
            stack.callback(ray.shutdown)
        remote: Any = ray.remote(max_retries=_TRIES, scheduling_strategy="SPREAD")(work)
        running: list[Any] = []
        for job in jobs:
            running.append(remote.remote(job))
            if len(running) > workers:
                finished, running = ray.wait(running)
                yield ray.get(finished[0])
        while running:
            finished, running = ray.wait(running)
            yield ray.get(finished[0])
