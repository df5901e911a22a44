"""The first difference between two batches: values, types, dtypes, shapes, strides, and errors in their places."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.errors import DecodeError, OptionError

__all__ = ["Difference", "difference", "size_of"]

_DEEPEST = 30  # parts inside of each other, since objects may refer to each other


@dataclass(frozen=True)
class Difference:
    """A difference.

    Attributes:
        place: where it is in the batch, like "[0]['image']"; "" for the batch as a whole.
        row: number of the first sample that differs; None if it is not one of a stack.
        reason: what differs, in words; torch's comes first.
    """

    place: str
    row: int | None
    reason: str


def difference(torchs: Any, ours: Any, *, values: bool = True, place: str = "") -> Difference | None:
    """The first difference between a batch of torch's and one of ours, or the errors that came instead of them.

    Args:
        torchs: what torch's loader gave, or the exception that it raised.
        ours: what fastdata's loader gave, or the exception that it raised.
        values: compare all values; else not those of tensors and arrays with two dimensions or more, nor of images.
        place: where both are in their batches.
    """
    if place.count("[") + place.count(".") > _DEEPEST:
        raise OptionError(f"parts of a batch that lie deeper than {_DEEPEST} inside of each other are not compared")
    if isinstance(torchs, Exception) or isinstance(ours, Exception):
        return _of_errors(torchs, ours)
    if _class(torchs) is not _class(ours):
        return Difference(place, None, f"torch gives {_name(torchs)}, fastdata {_name(ours)}")
    if isinstance(torchs, torch.Tensor):
        return _of_tensors(torchs, ours, values, place)
    if isinstance(torchs, np.ndarray):
        if torchs.dtype != ours.dtype:
            return Difference(place, None, f"dtype {torchs.dtype} with torch, {ours.dtype} with fastdata")
        return _of_arrays(torchs, ours, values, place)
    if isinstance(torchs, Mapping):
        if list(torchs) != list(ours):
            return Difference(place, None, f"keys {list(torchs)} with torch, {list(ours)} with fastdata")
        pairs = [(f"[{key!r}]", torchs[key], ours[key]) for key in torchs]
        return _first(pairs, values, place)
    if isinstance(torchs, list | tuple | deque):
        if len(torchs) != len(ours):
            return Difference(place, None, f"{len(torchs)} parts with torch, {len(ours)} with fastdata")
        pairs = [(f"[{number}]", *both) for number, both in enumerate(zip(torchs, ours, strict=True))]
        return _first(pairs, values, place)
    if "PIL.Image" in sys.modules and isinstance(torchs, sys.modules["PIL.Image"].Image):
        if torchs.getpalette() != ours.getpalette():
            return Difference(place, None, "the palettes differ")
        if (torchs.mode, torchs.size) != (ours.mode, ours.size):
            return Difference(
                place, None, f"{torchs.mode} {torchs.size} with torch, {ours.mode} {ours.size} with fastdata"
            )
        return _of_arrays(np.asarray(torchs), np.asarray(ours), values, place)
    return _of_values(torchs, ours, place)


def _first(pairs: list[tuple[str, Any, Any]], values: bool, place: str) -> Difference | None:
    found = (difference(one, other, values=values, place=place + name) for name, one, other in pairs)
    return next((each for each in found if each is not None), None)


def _of_errors(torchs: Any, ours: Any) -> Difference | None:
    """Both must fail; errors of damaged images differ by design, all others have equal types and last lines."""
    if isinstance(torchs, Exception) and isinstance(ours, Exception):
        damaged = isinstance(torchs, OSError | SyntaxError) and isinstance(ours, OSError)
        if damaged or isinstance(ours, DecodeError):
            return None
        if type(torchs) is type(ours) and _told(torchs) == _told(ours):
            return None
        return Difference("", None, f"torch raises {_told(torchs)}, fastdata {_told(ours)}")
    if isinstance(torchs, Exception):
        return Difference("", None, f"torch raises {_told(torchs)}, fastdata gives a batch")
    return Difference("", None, f"torch gives a batch, fastdata raises {_told(ours)}")


def _of_tensors(torchs: torch.Tensor, ours: torch.Tensor, values: bool, place: str) -> Difference | None:
    for name in ("dtype", "layout", "requires_grad"):
        if getattr(torchs, name) != getattr(ours, name):
            return Difference(
                place, None, f"{name} {getattr(torchs, name)} with torch, {getattr(ours, name)} with fastdata"
            )
    if torchs.layout != torch.strided or torchs.is_quantized:
        one, other = (each.dequantize() if each.is_quantized else each.to_dense() for each in (torchs, ours))
        return _of_tensors(one, other, values, place)
    random = not values and torchs.dim() > 1  # views that others draw: only the number of samples must be the same
    compared = 1 if random else None
    if torchs.dim() != ours.dim() or torchs.shape[:compared] != ours.shape[:compared]:
        return Difference(place, None, f"shape {tuple(torchs.shape)} with torch, {tuple(ours.shape)} with fastdata")
    if torchs.shape == ours.shape and torchs.stride() != ours.stride() and torchs.numel():
        return Difference(place, None, f"strides {torchs.stride()} with torch, {ours.stride()} with fastdata")
    if type(torchs) is not torch.Tensor:  # such as tv_tensors' format and canvas_size
        found = _of_attributes(torchs, ours, values, place)
        if found is not None:
            return found
    if random:
        return None
    if torchs.dtype == torch.bfloat16 or (torchs.dtype.itemsize == 1 and torchs.is_floating_point()):
        torchs, ours = torchs.float(), ours.float()
    arrays = [each.detach().as_subclass(torch.Tensor).cpu().numpy() for each in (torchs, ours)]
    return _of_arrays(arrays[0], arrays[1], True, place)


def _of_arrays(torchs: Any, ours: Any, values: bool, place: str) -> Difference | None:
    random = not values and torchs.ndim > 1
    if torchs.shape != ours.shape:
        if random and torchs.shape[:1] == ours.shape[:1]:
            return None
        return Difference(place, None, f"shape {torchs.shape} with torch, {ours.shape} with fastdata")
    if random or torchs.size == 0:
        return None
    if torchs.strides != ours.strides:
        return Difference(place, None, f"strides {torchs.strides} with torch, {ours.strides} with fastdata")
    if torchs.dtype == object:
        pairs = [(f"[{number}]", *both) for number, both in enumerate(zip(torchs.flat, ours.flat, strict=True))]
        return _first(pairs, values, place)
    differs = torchs != ours
    if torchs.dtype.kind in "fcmM":
        differs = differs & ((torchs == torchs) | (ours == ours))  # not where both are not a number, or no time
    if not differs.any():
        return None
    count = int(differs.sum())
    reason = f"{count} of {differs.size} values differ"
    if np.issubdtype(torchs.dtype, np.number) and not np.issubdtype(torchs.dtype, np.complexfloating):
        most = np.abs(torchs.astype(np.float64) - ours.astype(np.float64))[differs].max()
        reason += f", by up to {most:.6g}"
    return Difference(place, int(np.argwhere(differs)[0][0]) if differs.ndim else None, reason)


def _of_values(torchs: Any, ours: Any, place: str) -> Difference | None:
    """Compares what is neither a tensor, an array, an image nor a container: by ==, or else by its attributes."""
    cls: Any = type(torchs)
    own_equality = cls.__eq__ is not object.__eq__  # object's compares nothing but identity
    try:
        if own_equality and (torchs is ours or torchs == ours or (torchs != torchs and ours != ours)):
            return None
        is_told = own_equality
    except Exception:  # noqa: BLE001 - of the user's class, such as a data class with tensors
        is_told = False
    if is_told:
        return Difference(place, None, f"{torchs!r:.60} with torch, {ours!r:.60} with fastdata")
    return _of_attributes(torchs, ours, True, place)


def _of_attributes(torchs: Any, ours: Any, values: bool, place: str) -> Difference | None:
    one, other = _attributes(torchs), _attributes(ours)
    if list(one) != list(other):
        return Difference(place, None, f"attributes {list(one)} with torch, {list(other)} with fastdata")
    return _first([(f".{name}", one[name], other[name]) for name in one], values, place)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots, too."""
    slots = [name for cls in type(value).__mro__ for name in _names(getattr(cls, "__slots__", ()))]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name) and not name.startswith("__")}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def size_of(batch: Any) -> int:
    """Bytes of the tensors and arrays in a batch."""
    if isinstance(batch, torch.Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, np.ndarray):
        return int(batch.nbytes)
    if isinstance(batch, Mapping):
        return sum(map(size_of, batch.values()))
    return sum(map(size_of, batch)) if isinstance(batch, list | tuple) else 0


def _class(value: Any) -> Any:
    return type(value) if isinstance(value, torch.Tensor) else value.__class__


def _name(value: Any) -> str:
    cls = _class(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else ''}"[:160]
