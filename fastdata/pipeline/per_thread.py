"""A user's callables, once for each thread, as each of torch's worker processes has its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any, Generic, TypeVar

__all__ = ["PerThread"]

Called = TypeVar("Called", bound=Callable[..., Any])


class PerThread(Generic[Called]):
    """Hands each thread callables of its own, so that one that keeps a state on itself is never in two threads at once.

    Copies are made here and now, so that all are of what the user had when the epoch began.  Functions are their own
    copies.  What cannot be copied is shared and called by one thread at a time; so are methods of an object, which may
    be the whole dataset.

    Args:
        callables: the callables; an object in several of them stays one object in each copy.
        threads: number of threads that will ask; with 0 the caller's own thread gets the originals.
    """

    def __init__(self, callables: Sequence[Called], threads: int) -> None:
        self._callables, self._threads = tuple(callables), threads
        self._shared: dict[int, _OneAtATime] = {}
        self._spare = [self._copied() for _ in range(threads)]
        self._this_thread = threading.local()

    def of_this_thread(self) -> tuple[Called, ...]:
        """The calling thread's own copies, always the same."""
        if self._threads == 0:
            return self._callables
        own: tuple[Called, ...] | None = getattr(self._this_thread, "own", None)
        if own is None:
            try:
                own = self._spare.pop()
            except IndexError:  # a thread in the place of one that has ended
                own = self._copied()
            self._this_thread.own = own
        return own

    def _copied(self) -> tuple[Called, ...]:
        if any(isinstance(each, MethodType) for each in self._callables):
            return tuple(map(self._copied_or_shared, self._callables))
        try:
            return copy.deepcopy(self._callables)
        except Exception:  # noqa: BLE001 - locks, open files, generators: each type has its own error
            return tuple(map(self._copied_or_shared, self._callables))

    def _copied_or_shared(self, each: Called) -> Called:
        if isinstance(each, MethodType):
            return self._shared_one(each)
        try:
            return copy.deepcopy(each)
        except Exception:  # noqa: BLE001 - locks, open files, generators: each type has its own error
            return self._shared_one(each)

    def _shared_one(self, each: Called) -> Called:
        return self._shared.setdefault(id(each), _OneAtATime(each))  # type: ignore[return-value]


class _OneAtATime:
    """A callable that is called by one thread after the other."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self._called, self._turn = called, threading.Lock()
        self.__name__ = getattr(called, "__name__", type(called).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._turn:
            return self._called(*args, **kwargs)
