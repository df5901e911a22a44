"""Work in threads whose results are wanted in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

__all__ = ["in_order"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_AHEAD = 64  # items for each thread


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int, name: str, ahead: int = _AHEAD
) -> Iterator[Result]:
    """Yields results in the order of the items and works on some of them ahead; no more are begun after an error.

    Args:
        work: called in threads.
        items: arguments of `work`, one for each call; drawn as they are needed.
        threads: number of threads, at least 1.
        name: prefix of the threads' names.
        ahead: items that each thread may be ahead.
    """
    waiting, count = iter(items), max(1, threads)
    with ThreadPoolExecutor(count, thread_name_prefix=name) as pool:
        running: deque[Future[Result]] = deque(pool.submit(work, item) for item in islice(waiting, ahead * count))
        try:
            while running:
                yield running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
        finally:
            pool.shutdown(cancel_futures=True)
