"""Attributes that are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

__all__ = ["lazy"]

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - used like functools.cached_property
    """Cached property without a lock, as `functools.cached_property` is since Python 3.12.

    Before 3.12, `functools.cached_property` has a lock that all instances share.  If a thread holds it when a process
    is forked, the new process waits for ever.
    """

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> lazy[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Value: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = self._make(instance)
        vars(instance)[self._name] = value
        return value
