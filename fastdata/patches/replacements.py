"""Replaces entries of namespaces while somebody needs it, and puts back what was there."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Replacements"]

_all: weakref.WeakSet[Replacements] = weakref.WeakSet()

_Owner: TypeAlias = dict[Any, Any] | type


class Replacements:
    """Replacements that are in force while they have users.

    What is there when the first user comes is replaced, so functions that others have put there go on being called.
    When the last user leaves, what was there is put back, unless somebody has replaced it meanwhile.  Threads may come
    and leave at once; a forked process has the users that its parent had.

    Args:
        replace_all: calls `replace` for everything.
        also: called when everything has been put back.
    """

    def __init__(self, replace_all: Callable[[Replacements], None], also: Callable[[], None] = lambda: None) -> None:
        self._replace_all, self._also = replace_all, also
        self._users = 0
        self._replaced: list[tuple[_Owner, Any, Any, Any]] = []  # owner, name, original, ours
        # What was made for an owner's entry, with all it was made of: users come and go with every batch.
        self._made: dict[tuple[int, Any], tuple[_Owner, Any, Callable[[Any], Any], Any]] = {}
        self._lock = threading.Lock()
        _all.add(self)

    def install(self) -> None:
        """Counts one more user."""
        with self._lock:
            self._users += 1
            if not self._replaced:
                self._replace_all(self)

    def uninstall(self) -> None:
        """Counts one user less."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for owner, name, original, ours in self._replaced:
                    if _entries(owner).get(name) is ours:
                        _put(owner, name, original)
                self._replaced.clear()
                self._also()

    def replace(self, owner: _Owner, name: Any, replacement_for: Callable[[Any], Any]) -> None:
        """Replaces one entry.

        Args:
            owner: `vars` of a module, another dictionary, or a class, whose own methods are meant.
            name: key of the entry.
            replacement_for: makes the replacement of what it is given; the same one is used again for the same.
        """
        original, made = _entries(owner)[name], self._made.get((id(owner), name))
        if made is not None and made[0] is owner and made[1] is original and made[2] is replacement_for:
            ours = made[3]
        else:
            ours = replacement_for(original)
            self._made[id(owner), name] = owner, original, replacement_for, ours
        _put(owner, name, ours)
        self._replaced.append((owner, name, original, ours))

    def _unlock(self) -> None:
        self._lock = threading.Lock()


def _entries(owner: _Owner) -> Mapping[Any, Any]:
    return vars(owner) if isinstance(owner, type) else owner


def _put(owner: _Owner, name: Any, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        owner[name] = value


def _unlock_all() -> None:
    """Replaces the locks in a forked process, since another thread may have held one when the process was forked."""
    for each in list(_all):
        each._unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
