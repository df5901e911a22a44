"""A snapshot of the settings that a plan was compiled from, to notice when somebody changes any of them.

A dataset may change its own transform at any time: a size in ``__getitem__``, the list of a Compose between two epochs,
the mean of a Normalize from another thread.  torch's loader obeys at once, so a plan is compared with the transform
before each use, and compiled anew where they differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fastdata.transforms.known import is_known_transform

__all__ = ["TransformSnapshot"]

_MOST_VALUES = 4096  # of a tensor that is compared by its bytes
_DEEPEST = 16  # levels of nested transforms and containers that are recorded; deeper values are compared by identity


class TransformSnapshot:
    """All attributes of a transform, and of known transforms inside of it, as they are now.

    Lists, tuples, dictionaries and sets are copied, and arrays compared by their bytes.  So are tensors in host memory,
    whose version counters do not count writes through `.data` or NumPy; larger ones are compared by those counters.  Of
    any other value only a replacement is noticed: steps of classes that are not known are called, and no plan depends
    on their attributes.  torch's default dtype and autocast count as settings, too, since the steps' own code reads
    them.

    Args:
        transform: any object.
    """

    __slots__ = ("_addresses", "_arrays", "_dicts", "_modes", "_objects", "_seen", "_tensors")

    def __init__(self, transform: object) -> None:
        self._objects: list[tuple[Any, type, dict[str, Any]]] = []
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._tensors: list[tuple[torch.Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray[Any, Any], bytes]] = []
        self._addresses: list[tuple[torch.Tensor, int]] = []
        self._modes = _modes()
        self._seen: dict[int, Any] = {}  # keeps what was noted, so that no other object gets its id
        # Forward hooks of all modules: while there are any, transforms that are modules are not fused.
        modules = torch.nn.modules.module
        for hooks in (modules._global_forward_hooks, modules._global_forward_pre_hooks):
            self._dicts.append((hooks, dict(hooks)))
        self._record(transform, 0)

    def is_current(self) -> bool:
        """True if no attribute of a recorded object has changed; False if one has, or cannot be compared."""
        try:
            if _modes() != self._modes:
                return False
            for owner, kind, kept in self._objects:
                if type(owner) is not kind or owner.__dict__ != kept:
                    return False
            for now, before in self._dicts:
                if now != before:
                    return False
            for tensor, version in self._tensors:
                if tensor._version != version:
                    return False
            for tensor, address in self._addresses:
                if tensor.data_ptr() != address:  # `.data` was given other memory
                    return False
            return all(array.tobytes() == content for array, content in self._arrays)
        except Exception:  # noqa: BLE001 - of values of the user's, which may not be comparable
            return False

    def _record(self, value: Any, depth: int) -> Any:
        """Returns the value to compare with later: a copy of a container, else the value; notes its contents."""
        if depth > _DEEPEST:
            return value
        if isinstance(value, dict):
            return {key: self._record(each, depth + 1) for key, each in list(value.items())}
        if type(value) is list:
            return [self._record(each, depth + 1) for each in list(value)]
        if type(value) is tuple:
            return tuple(self._record(each, depth + 1) for each in value)
        if isinstance(value, set):
            return set(value)
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            self._note(value, depth)
        return value

    def _note(self, value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            shared = _shared(value)
            if shared is None:
                self._tensors.append((value, value._version))
            else:
                self._addresses.append((value, value.data_ptr()))
                self._arrays.append((shared, shared.tobytes()))
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, value.tobytes()))
        elif _has_recorded_attributes(value):
            self._objects.append((value, type(value), self._record(vars(value), depth + 1)))


def _shared(tensor: torch.Tensor) -> np.ndarray[Any, Any] | None:
    """An array on a tensor's memory; None for large tensors, and those of a device or dtype that NumPy has not."""
    if tensor.numel() > _MOST_VALUES:
        return None
    try:
        return tensor.detach().numpy()
    except (TypeError, RuntimeError):
        return None


def _modes() -> tuple[Any, ...]:
    """States of torch that known steps read while they run."""
    return torch.get_default_dtype(), torch.is_autocast_enabled("cpu")


def _has_recorded_attributes(value: object) -> bool:
    """True for objects whose attributes decide what is compiled: known transforms and torch's module containers."""
    is_container = type(value).__module__ == "torch.nn.modules.container"
    return (is_container or is_known_transform(value)) and hasattr(value, "__dict__") and not isinstance(value, type)
