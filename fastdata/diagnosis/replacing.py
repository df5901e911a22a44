"""Replaces functions of other modules for some time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

__all__ = ["replace"]


def replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replaces a function or method by one that is made of it, until the stack is left."""
    had_own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, make(original))
    stack.callback(lambda: setattr(owner, name, original) if had_own else delattr(owner, name))
