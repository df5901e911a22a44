"""Tensors of a batch that the device makes where the batch goes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fastdata.system import cuda

__all__ = ["LeftToDevice"]


class LeftToDevice:
    """A tensor that a device makes of another one, once that has been copied there.

    Args:
        memory: what is copied, on the host.
        run: makes the tensor, on the copy stream, without waiting for the device.
        error: returns what is to be raised, or None, when the device is done; None if nothing can go wrong there.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        run: Callable[[torch.Tensor], torch.Tensor],
        error: Callable[[], Exception | None] | None = None,
    ) -> None:
        self.memory, self.run, self.error = memory, run, error

    def pin_memory(self) -> LeftToDevice:
        """Returns the same in pinned memory; torch's `pin_memory` calls it."""
        return LeftToDevice(cuda.pinned(self.memory), self.run, self.error)
