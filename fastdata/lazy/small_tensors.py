"""Sends the small tensors of a batch by value.

torch sends every tensor as a file in shared memory, whose descriptor goes through a socket of its own: a quarter of a
millisecond for each label and each box of a detection batch.  Tensors of a few kilobytes are pickled instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from fastdata.device.prefetch import map_tensors

__all__ = ["small_by_value"]

_MOST_BYTES = 16 * 1024


class _ByValue:
    """Stands for a tensor in a batch that is sent; the other process gets the tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        tensor = self._tensor
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        return _from_bytes, (data, tensor.dtype, tuple(tensor.shape))


def _from_bytes(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).view(shape)


def small_by_value(batch: Any) -> Any:
    """Returns a batch to be pickled, in which small plain tensors are sent by value.

    Tensors that share their memory, with each other or with other processes, are left to torch.
    """
    found: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if _is_small(tensor):
            found[id(tensor)] = tensor
        return tensor

    map_tensors(batch, note)
    users = Counter(tensor.data_ptr() for tensor in found.values())
    sent = {key: _ByValue(tensor) for key, tensor in found.items() if users[tensor.data_ptr()] == 1}
    if not sent:
        return batch
    replaced: Any = lambda tensor: sent.get(id(tensor), tensor)  # noqa: E731
    return map_tensors(batch, replaced)


def _is_small(tensor: torch.Tensor) -> bool:
    """True for a plain tensor of a few kilobytes that fills its memory alone."""
    return (
        type(tensor) is torch.Tensor
        and 0 < (size := tensor.numel() * tensor.element_size()) <= _MOST_BYTES
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == size
        and not tensor.is_shared()  # type: ignore[no-untyped-call]
        and not tensor.__dict__
    )
