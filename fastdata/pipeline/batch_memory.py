"""Batch memory that is used again once nobody looks at it any more.

A fresh batch of 64 float images is 38 MB that the kernel must find and zero, page by page, which costs more per image
than resizing it (benchmarks/inside.py).  So a block returns here when the last tensor, array or view of it is gone, and
never before: ownership is Python's own reference counting, through the array that the tensor was made from.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fastdata.pipeline.jobs import FailedJob

__all__ = ["BatchMemory", "made_or_refused"]

_T = TypeVar("_T")

_BLOCKS_KEPT = 4  # batches: one that the caller computes on, two on their way, one to spare
_STAND_INS = {torch.bfloat16: torch.int16}  # for what NumPy lacks


class _Lease:
    """Lends a block to the arrays made from it; they keep this object alive."""

    def __init__(self, block: npt.NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (block.ctypes.data, False),
            "version": 3,
        }


class BatchMemory:
    """Makes batch tensors, from returned blocks where one fits.

    Args:
        keep: most returned blocks to hold.
    """

    def __init__(self, keep: int = _BLOCKS_KEPT) -> None:
        self._keep = keep
        self._returned: list[npt.NDArray[np.uint8]] = []

    def images(
        self, shape: tuple[int, ...], dtype: torch.dtype, *, memory_format: torch.memory_format, pin: bool
    ) -> torch.Tensor:
        """An uninitialised batch of images on the CPU.

        Args:
            shape: (N, channels, height, width).
            dtype: dtype of the elements.
            memory_format: torch.contiguous_format or torch.channels_last.
            pin: use pinned memory, which torch keeps and gives out again, instead of a returned block.
        """
        count, channels, height, width = shape
        last = memory_format is torch.channels_last
        stored = (count, height, width, channels) if last else shape
        if pin:
            images = torch.empty(stored, dtype=dtype, device="cpu", pin_memory=True)
        else:
            images = self.tensor(stored, dtype)
        return images.permute(0, 3, 1, 2) if last else images

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised contiguous CPU tensor."""
        numpy_dtype = torch.empty(0, dtype=_STAND_INS.get(dtype, dtype), device="cpu").numpy().dtype
        size_bytes = int(np.prod(shape)) * numpy_dtype.itemsize
        if size_bytes == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        block = self._take(size_bytes)
        lease = _Lease(block, shape, numpy_dtype)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return torch.from_numpy(np.asarray(lease)).view(dtype)

    def close(self) -> None:
        """Frees returned blocks, and those that are still out when they return."""
        self._keep = 0
        self._returned.clear()

    def _take(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        while self._returned:
            try:
                block = self._returned.pop()
            except IndexError:  # another thread was quicker
                break
            if block.nbytes >= size_bytes:  # the last batch of an epoch is smaller
                return block
        # NumPy asks for huge pages where torch does not, which alone saves most of the faults' time.
        return np.empty(size_bytes, np.uint8)

    def _give_back(self, block: npt.NDArray[np.uint8]) -> None:
        if len(self._returned) < self._keep:
            self._returned.append(block)


def made_or_refused(make: Callable[[], _T]) -> tuple[_T | None, FailedJob | None]:
    """Returns (result of `make`, None), or (None, what raises the error at the batch's place) if memory is refused.

    An error raised where a batch is created would end the order of batches.
    """
    try:
        return make(), None
    except (MemoryError, RuntimeError) as error:  # NumPy's; torch's, for pinned memory and on a device
        return None, FailedJob(error.with_traceback(None))  # which would keep the batch alive
