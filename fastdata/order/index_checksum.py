"""Checksum of sample indices, by which a resumed epoch sees that its sampler repeats what it gave."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

__all__ = ["checksum_of", "plain"]


def plain(index: Any) -> Any:
    """A whole number as Python's; other indices as they are."""
    try:
        return operator.index(index)
    except TypeError:
        return index


def checksum_of(indices: Iterable[Any], begun: int) -> int:
    """CRC-32 of indices one after the other, whatever batches they came in."""
    array = indices.numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices) if _is_flat(indices) else None
    if array is not None and array.dtype.kind in "iu":
        return zlib.crc32(np.ascontiguousarray(array, np.int64).tobytes(), begun)
    for index in map(plain, indices):
        text = index.to_bytes(8, "little", signed=True) if isinstance(index, int) else f"{index}\n".encode()
        begun = zlib.crc32(text, begun)
    return begun


def _is_flat(indices: Any) -> bool:
    """True for arrays, and lists and tuples that begin with a plain number."""
    if isinstance(indices, np.ndarray):
        return True
    return isinstance(indices, list | tuple) and len(indices) > 0 and type(indices[0]) is int
