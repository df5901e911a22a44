"""Work in threads whose results are wanted in order.

Life of the threads (any deviation is a bug):

1. They begin with the first result that is asked for, no more than there are tasks, and take tasks until there comes a
   None.
2. When the results end, after an error, or when the iterator is closed, tasks that were not begun are dropped, each
   thread gets a None, and all are waited for.
3. An iterator that nobody closes, such as one that a traceback holds, does not keep the interpreter from ending: they
   are daemon threads.
4. Tasks and answers go through queues of C.  Ctrl-C can leave the lock of a threading.Condition held, by which
   concurrent.futures waits; then threads would wait for it, and the program for the threads, for ever.  Where it comes
   while a thread is started, that thread is not waited for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

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
    tasks: SimpleQueue[Any] = SimpleQueue()
    running: deque[SimpleQueue[Any]] = deque()
    crew: list[threading.Thread] = []

    def begin(number: int) -> None:
        for item in islice(waiting, number):
            running.append(SimpleQueue())
            tasks.put((item, running[-1]))
            if len(crew) < count:
                crew.append(
                    threading.Thread(target=_serve, args=(work, tasks), name=f"{name}_{len(crew)}", daemon=True)
                )
                crew[-1].start()

    try:
        begin(ahead * count)
        while running:
            yield _outcome(running.popleft())
            begin(1)
    finally:
        with suppress(Empty):
            while True:
                tasks.get_nowait()
        for _ in crew:
            tasks.put(None)
        for thread in crew:
            if thread.is_alive():  # one whose start failed is not
                thread.join()


def _outcome(answer: SimpleQueue[Any]) -> Any:
    """Returns the result of a task when it is there, or raises its error."""
    result, error = answer.get()
    if error is None:
        return result
    try:
        raise error
    finally:  # the error remembers this frame
        del error


def _serve(work: Callable[[Any], Any], tasks: SimpleQueue[Any]) -> None:
    """Does tasks, each an item with the queue for its answer, until there comes a None."""
    while (task := tasks.get()) is not None:
        item, answer = task
        try:
            answer.put((work(item), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            answer.put((None, error))
        del task, item, answer
