"""Replaces entries of namespaces while somebody needs it, and puts back what was there."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["Replacements"]

_all: weakref.WeakSet[Replacements] = weakref.WeakSet()


class _Methods:
    """The namespace of a class: what it defines itself, to be read and replaced like the entries of a dictionary."""

    def __init__(self, cls: type) -> None:
        self._cls = cls

    def get(self, name: str) -> Any:
        """Returns a method, or None."""
        return vars(self._cls).get(name)

    def __getitem__(self, name: str) -> Any:
        return vars(self._cls)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._cls, name, value)


_Namespace: TypeAlias = dict[Any, Any] | _Methods


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
        self._replaced: list[tuple[_Namespace, Any, Any, Any]] = []  # namespace, name, original, ours
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
                for namespace, name, original, ours in self._replaced:
                    if namespace.get(name) is ours:
                        namespace[name] = original
                self._replaced.clear()
                self._also()

    def replace(self, namespace: _Namespace, name: Any, replacement_for: Callable[[Any], Any]) -> None:
        """Replaces one entry.

        Args:
            namespace: `vars` of a module, another dictionary, or the methods of a class.
            name: key of the entry.
            replacement_for: makes the replacement of what it is given.
        """
        original = namespace[name]
        namespace[name] = replacement_for(original)
        self._replaced.append((namespace, name, original, namespace[name]))

    def replace_method(self, cls: type, name: str, replacement_for: Callable[[Any], Any]) -> None:
        """Replaces a method in its class, like an entry of a namespace."""
        self.replace(_Methods(cls), name, replacement_for)

    def _unlock(self) -> None:
        self._lock = threading.Lock()


def _unlock_all() -> None:
    """Replaces the locks in a forked process, since another thread may have held one when the process was forked."""
    for each in list(_all):
        each._unlock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)
