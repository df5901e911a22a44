"""Who makes shards: processes of this machine, or a Ray cluster.  Results come as they are finished.

Life cycle of a worker process; any deviation is a bug: it starts with the first job, ends when the last result has been
taken or the consumer stops, and ends by itself when its parent is no more, for which a thread waits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, TypeVar

from fastdata.errors import ConversionError, OptionError
from fastdata.optional import need

__all__ = ["ENGINES", "run_jobs"]

ENGINES = ("processes", "ray")

Job = TypeVar("Job")
Done = TypeVar("Done")

_TRIES = 4  # how often Ray begins a shard anew whose worker was lost


def run_jobs(
    work: Callable[[Job], Done], jobs: Iterable[Job], *, workers: int, engine: str = "processes"
) -> Iterator[Done]:
    """Runs jobs and yields their results in any order; jobs are drawn as workers become free.

    Args:
        work: a function of a module, which another process can import.
        jobs: what to run.
        workers: processes, or Ray tasks at once; 1 process works right here.
        engine: one of `ENGINES`.

    Raises:
        ConversionError: a worker was killed.
        OptionError: an engine that is not known or not installed.
    """
    if engine not in ENGINES:
        raise OptionError(f"engine={engine!r} is not accepted; use one of {', '.join(ENGINES)}")
    if engine == "ray":
        return _on_ray(work, jobs, workers)
    return map(work, jobs) if workers <= 1 else _in_processes(work, jobs, workers)


def _in_processes(work: Callable[[Job], Done], jobs: Iterable[Job], workers: int) -> Iterator[Done]:
    # Started afresh rather than forked, which threads of the caller could not survive.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with_parent)
    running: set[Future[Done]] = set()
    try:
        for job in jobs:
            running.add(pool.submit(work, job))
            if len(running) > workers:
                yield from _take(running)
        while running:
            yield from _take(running)
    except BrokenProcessPool as error:
        raise ConversionError(
            "a worker process was killed, perhaps for lack of memory (use fewer --workers); finished shards stay: run "
            "the same command again, which continues"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_the_end() -> None:
        connection.wait([parent.sentinel])
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
