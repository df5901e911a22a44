"""The way of batches from worker processes to the training process: small storages by value, large ones in blocks.

Whatever the batch consists of, its tensors' storages are what is large.  A pickler replaces them where torch would
move each into a file in shared memory: up to 16 KB they are sent by value, larger ones in blocks of memory that are
used again (`fastdata.system.shared_blocks`); so are large NumPy arrays, which torch would send through a pipe.  torch's
`default_collate` stacks directly into a block.  Storages that are shared already, and parts of much larger ones, go
torch's way; so does everything where the system has no such memory.
"""

from __future__ import annotations

import io
import itertools
import weakref
from collections.abc import Callable
from functools import wraps
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from fastdata.lazy.pending_tensor import is_pending, stack_pixels
from fastdata.patches.worker_process import FETCHERS, replace_fetcher, replace_stacking
from fastdata.system.shared_blocks import (
    BlockHandle,
    BlockWriter,
    array_in_block,
    can_share_blocks,
    forget_blocks,
    storage_in_block,
    take_blocks,
)

__all__ = ["ShareBlocks"]

_MOST_BYTES_BY_VALUE = 16 * 1024
_numbers = itertools.count()


class ShareBlocks:
    """A worker_init_fn, called before all others of fastdata: batches go to the training process in blocks.

    Args:
        begin: the worker_init_fn that is called first; None for none.
        receiver: the iterator that receives them, at whose end blocks are forgotten.
    """

    def __init__(self, begin: Callable[[int], None] | None, receiver: Any) -> None:
        self._begin, self._owner = begin, next(_numbers)
        if can_share_blocks():
            take_blocks(self._owner)
            weakref.finalize(receiver, forget_blocks, self._owner).atexit = False

    def __call__(self, worker: int) -> None:
        """Calls the other, then has torch's fetchers pack what they give."""
        if self._begin is not None:
            self._begin(worker)
        if not can_share_blocks():
            return
        writer = BlockWriter(self._owner)
        for name in FETCHERS:
            replace_fetcher(name, lambda inner: lambda *parts: _PackingFetcher(inner(*parts), writer))
        replace_stacking(lambda original: _stacking_in(writer, original))


class _PackingFetcher:
    def __init__(self, inner: Any, writer: BlockWriter) -> None:
        self._inner, self._writer = inner, writer

    def fetch(self, index: Any) -> Any:
        """Returns the other fetcher's batch, packed."""
        return _packed(self._inner.fetch(index), self._writer)


class _Packed:
    """A pickled batch; whoever unpickles it gets the batch."""

    def __init__(self, owner: int, data: bytes, dropped: list[tuple[int, int]]) -> None:
        self._sent = owner, data, dropped

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacked, self._sent


def _packed(batch: Any, writer: BlockWriter) -> Any:
    """Pickles a batch; what cannot be pickled is returned as it is, for torch to say so where it does."""
    file = io.BytesIO()
    try:
        _Packer(file, writer).dump(batch)
    except Exception:  # noqa: BLE001 - torch's queue meets the same error, and its handler tells it
        writer.end_message(is_sent=False)
        return batch
    return _Packed(writer.owner, file.getvalue(), writer.end_message(is_sent=True))


def _unpacked(owner: int, data: bytes, dropped: list[tuple[int, int]]) -> Any:
    forget_blocks(owner, dropped)
    return ForkingPickler.loads(data)


class _Packer(ForkingPickler):
    """Pickles what a fetcher has made."""

    def __init__(self, file: io.BytesIO, writer: BlockWriter) -> None:
        super().__init__(file)
        self._writer = writer
        self._torchs: set[int] = set()  # addresses of storages that go torch's way

    def reducer_override(self, value: Any) -> Any:
        """See pickle.Pickler.reducer_override."""
        if type(value) is torch.UntypedStorage:
            return self._reduced(value)
        if type(value) is np.ndarray:
            return self._reduced_array(value)
        if isinstance(value, torch.Tensor) and _has_storage(value):
            storage = value.untyped_storage()
            if storage.nbytes() > 2 * value.numel() * value.element_size():  # all of it would be sent each time
                self._torchs.add(storage.data_ptr())
        return NotImplemented

    def _reduced(self, storage: torch.UntypedStorage) -> Any:
        size = storage.nbytes()
        if storage.device.type != "cpu" or not size or storage.is_shared() or storage.data_ptr() in self._torchs:
            return NotImplemented
        if self._writer.known.get(id(storage)) is storage:  # the program keeps it, and torch moves it once
            return NotImplemented
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        if size <= _MOST_BYTES_BY_VALUE:
            return _storage_of, (data.tobytes(),)
        handle = self._writer.place(data)
        self._writer.known[id(storage)] = storage
        return NotImplemented if handle is None else (_storage_at, tuple(handle))

    def _reduced_array(self, array: Any) -> Any:
        flags, kind = array.flags, array.dtype
        is_whole = flags.c_contiguous or flags.f_contiguous
        if array.nbytes <= _MOST_BYTES_BY_VALUE or kind.hasobject or not (is_whole and flags.writeable):
            return NotImplemented
        handle = self._writer.place(array.reshape(-1, order="A").view(np.uint8))
        order = "C" if flags.c_contiguous else "F"
        return NotImplemented if handle is None else (_array_at, (tuple(handle), kind, array.shape, order))


def _storage_of(data: bytes) -> torch.UntypedStorage:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


def _storage_at(*handle: Any) -> torch.UntypedStorage:
    return storage_in_block(BlockHandle(*handle))


def _array_at(handle: tuple[Any, ...], kind: Any, shape: tuple[int, ...], order: Any) -> Any:
    return array_in_block(BlockHandle(*handle)).view(kind).reshape(shape, order=order)


def _stacking_in(writer: BlockWriter, original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps torch's function that collates tensors so that plain ones are stacked in a block, or to be sent by value.

    torch's own would stack the smallest in shared memory, of which the training process had to be given a descriptor.
    """

    def lend(size: int) -> Any:
        return writer.lend(size) if size > _MOST_BYTES_BY_VALUE else None

    @wraps(original)
    def collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        first = batch[0]
        if is_pending(first) and (stacked := stack_pixels(tuple(batch), lend)) is not None:
            return stacked
        size = len(batch) * first.numel() * first.element_size() if type(first) is torch.Tensor else 0
        if size and all(map(_is_plain, batch)):
            is_sent = size <= _MOST_BYTES_BY_VALUE
            memory = torch.empty(size, dtype=torch.uint8) if is_sent else writer.lend(size)
            if memory is not None:
                return torch.stack(batch, 0, out=memory.view(first.dtype).view(len(batch), *first.shape))
        return original(batch, collate_fn_map=collate_fn_map)

    return collate


def _is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor and _has_storage(tensor) and not (tensor.is_conj() or tensor.is_neg())


def _has_storage(tensor: torch.Tensor) -> bool:
    """True for an ordinary tensor with memory of its own; a pending one is not decoded by asking."""
    return (
        not is_pending(tensor)
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
    )
