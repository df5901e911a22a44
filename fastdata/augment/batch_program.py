"""Operations on whole batches whose numbers reach the batch's device by one copy.

A random augmentation does something else to each image, so that a batch needs many small tables: which images an
operation concerns, and with which numbers.  Copied one by one to a GPU they cost more time than the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from fastdata.augment.ops import on_device_of

__all__ = ["BatchProgram", "Operation"]

_ALIGNED_BYTES = 16  # at which each tensor begins, so that it can be viewed with its own dtype


@dataclass(frozen=True)
class Operation:
    """One operation on some images of a batch.

    Attributes:
        function: called with the images that it concerns, (n, 3, H, W), and `values` on their device; returns n
            images, and does not change those that it is given.
        values: tensors on the host.
        rows: int64, (n,), on the host: the images that it concerns; None for all.
    """

    function: Callable[..., torch.Tensor]
    values: tuple[torch.Tensor, ...] = ()
    rows: torch.Tensor | None = None


class BatchProgram:
    """Operations on a batch, one after the other.

    Args:
        operations: the operations.

    Making one packs the tensors of all operations into one block of memory, which `run` copies to the device.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = tuple(operations)
        tensors = [each for one in operations for each in ((one.rows,) if one.rows is not None else ()) + one.values]
        self._places, end = [], 0
        for tensor in tensors:
            self._places.append((end, tensor.nbytes, tensor.dtype, tensor.shape))
            end += -(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
        self._block = torch.empty(end, dtype=torch.uint8, device="cpu")
        for (first, length, *_), tensor in zip(self._places, tensors, strict=True):
            self._block[first : first + length] = tensor.contiguous().view(-1).view(torch.uint8)

    def run(self, images: torch.Tensor) -> torch.Tensor:
        """Applies the operations, outside of autocast; does not wait for the images' device, nor change them.

        Args:
            images: (N, 3, H, W), on any device, contiguous or channels_last.

        Returns:
            N images in their memory format; those given if there is nothing to do.
        """
        kind = images.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self.run(images)
        layout, tensors, result = _memory_format(images), self._tensors(images), images
        for each in self._operations:
            at = None if each.rows is None else next(tensors)
            values = [next(tensors) for _ in each.values]
            if at is None:
                result = each.function(result, *values)
                continue
            result = result.clone() if result is images else result
            result.index_copy_(0, at, each.function(result.index_select(0, at), *values))
        return result.contiguous(memory_format=layout)  # which an operation on all images need not keep

    def _tensors(self, images: torch.Tensor) -> Iterator[torch.Tensor]:
        block = on_device_of(images, self._block) if self._places else self._block
        for first, length, dtype, shape in self._places:
            yield block[first : first + length].view(dtype).view(shape)


def _memory_format(images: torch.Tensor) -> torch.memory_format:
    """Returns channels_last for a batch that is so and not contiguous, too; else contiguous."""
    is_last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format
