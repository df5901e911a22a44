"""Blocks of memory that a worker process fills and the training process reads, and that are used again.

torch makes a new file in shared memory for each tensor that a worker process sends: its pages are made, zeroed and
mapped in both processes, which costs many times as much as the copy.  A block is made once.

Life of a block (any deviation is a bug):

1. A worker process makes it, in memory that has no name (memfd_create), and maps it.
2. It writes a tensor's bytes, or lends the memory to whoever makes a tensor, and marks it IN_USE before it sends the
   block's number.  Until the training process has mapped the block, a file descriptor goes along.
3. The training process maps it when it comes for the first time, and gives out an array or a storage on it.
4. When the array and all views of it, or the storage, are gone, it marks the block FREE; the worker process may fill it
   again.  So what a program holds is never overwritten.  (A storage, and not its memory: torch moves storages that are
   shared later, while arrays may still look at the old memory.)
5. When the training process forks while it holds tensors of a block, the child sees the same memory for as long as it
   likes: such a block is WORN at the end, and never filled again.  The same holds for a worker process that forks.
   Nothing is received or given back between that and the fork.  A process that a worker process forks uses no blocks.
6. A block that has been free for eight messages of the worker process is dropped: a queue that was fuller for
   a moment, or batches of many sizes, would keep memory for the whole run otherwise.  So are the oldest free ones that
   are a little too small when a new one is made: those of them that stay have together no more than 4 MB and a quarter
   of what is in use.  The worker process tells the numbers, and the training process forgets its mapping, too.  The
   rest ends with the processes.

Sizes are similar that differ by no more than a factor of two.  A block is as large as the largest that there is of
a similar size, and at least the next power of two: memory that nobody has written to costs nothing.  So batches of
similar sizes share blocks, as where detection pads to the largest image of each; and a small tensor, such as one of
several scales, does not take the block of a large one, which would soon give all of them the largest's memory.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from multiprocessing import reduction
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = [
    "array_in_block",
    "BlockHandle",
    "BlockWriter",
    "can_share_blocks",
    "forget_blocks",
    "storage_in_block",
    "take_blocks",
]

_HEADER = 64  # bytes before the data: the mark, and 1 once the training process has mapped the block
_FREE, _IN_USE, _WORN = 0, 1, 2
_IS_MAPPED = 1  # place in the header
_SPARE_BYTES = 4 << 20
_IDLE_MESSAGES = 8  # a program may hold as many batches of a worker process, and let go of all at once


def can_share_blocks() -> bool:
    """True where the system has memory without a name; elsewhere torch sends tensors in its own way."""
    return hasattr(os, "memfd_create")


class BlockHandle(NamedTuple):
    """The place of some bytes, as it is sent.

    Attributes:
        owner: number of the iterator in the training process, for which the worker process works.
        key: the worker process, and the number of the block.
        size: the block's size in bytes, with its header.
        used: number of the bytes.
        descriptor: what a file descriptor is received by; None once the block has been mapped.
    """

    owner: int
    key: tuple[int, int]
    size: int
    used: int
    descriptor: Any


class _Block:
    """The mapping of a block in one process."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.memory = mmap.mmap(descriptor, size)
        self.is_worn = False  # a forked process may read it
        self.is_held = False  # by this process, which has received it

    @property
    def mark(self) -> int:
        """FREE, IN_USE or WORN."""
        return self.memory[0]

    @mark.setter
    def mark(self, mark: int) -> None:
        self.memory[0] = mark

    def bytes_at(self, size: int) -> Any:
        """A new array of uint8 (size,) on the block's data."""
        return np.frombuffer(self.memory, np.uint8, size, _HEADER)


# ---- in a worker process


class _OwnBlock(_Block):
    """A block in the process that has made it."""

    def __init__(self, number: int, capacity: int) -> None:
        self.number, self.size = number, _HEADER + capacity
        self.descriptor: int | None = os.memfd_create("fastdata-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self.size)
            super().__init__(self.descriptor, self.size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._lent: weakref.ref[Any] | None = None
        self.is_reserved = False  # for a message or a loan under way
        self.used_for = 0  # the latest message for which it was taken, or at whose end it was in use
        self.touched = 0  # bytes of data that have been used, and have memory

    def __del__(self) -> None:
        self._close_descriptor()

    def _close_descriptor(self) -> None:
        descriptor, self.descriptor = getattr(self, "descriptor", None), None
        if descriptor is not None:
            os.close(descriptor)

    @property
    def capacity(self) -> int:
        """Bytes of data that it holds."""
        return self.size - _HEADER

    @property
    def is_lent(self) -> bool:
        """True while this process has a tensor on it."""
        return self._lent is not None and self._lent() is not None

    @property
    def is_free(self) -> bool:
        """True if it may be filled."""
        return self.mark == _FREE and not (self.is_worn or self.is_lent or self.is_reserved)

    @property
    def is_done(self) -> bool:
        """True if nobody reads it and it must not be filled again."""
        return self.mark == _WORN or (self.is_worn and self.mark == _FREE and not (self.is_lent or self.is_reserved))

    def lend(self, size: int) -> torch.Tensor:
        """A tensor of uint8 on its data; the block is not filled again while the tensor's storage exists."""
        tensor = torch.from_numpy(self.bytes_at(size))
        self._lent = weakref.ref(tensor.untyped_storage())
        return tensor

    def sent(self) -> Any:
        """Returns a handle from which the training process gets the descriptor; None if it has mapped the block."""
        if self.memory[_IS_MAPPED]:
            self._close_descriptor()
        return None if self.descriptor is None else reduction.DupFd(self.descriptor)


class BlockWriter:
    """The blocks of a worker process.

    Args:
        owner: number of the iterator in the training process.
    """

    def __init__(self, owner: int) -> None:
        self.owner, self._process = owner, os.getpid()
        self._blocks: dict[int, _OwnBlock] = {}
        self._lent: dict[int, _OwnBlock] = {}  # by the address of their data
        self._made = self._messages = 0
        self._dropped: list[tuple[int, int]] = []
        self._placed: list[_OwnBlock] = []  # for the message under way
        self._lock = threading.RLock()
        self.known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # storages that were sent
        _writers.add(self)

    def lend(self, size: int) -> torch.Tensor | None:
        """A new tensor of uint8 (size,) in a block, which needs no copy to be sent; None if there is no memory."""
        if os.getpid() != self._process:
            return None
        with self._lock:
            block = self._taken(size)
            if block is None:
                return None
            tensor = block.lend(size)
            block.is_reserved = False
            self._lent = {address: each for address, each in self._lent.items() if each.is_lent}
            self._lent[tensor.data_ptr()] = block
            return tensor

    def place(self, data: Any) -> BlockHandle | None:
        """Copies uint8 (size,) to a block, unless it lies in one; None if there is no memory for that."""
        used = data.size
        if os.getpid() != self._process:
            return None
        with self._lock:
            block = self._lent.get(data.ctypes.data)
            is_there = block is not None and block.mark == _FREE and block.is_lent
            if not is_there:
                block = self._taken(used)
        if block is None:
            return None
        if not is_there:
            block.bytes_at(used)[:] = data
        descriptor = block.sent()
        block.mark, block.is_reserved = _IN_USE, False
        self._placed.append(block)
        return BlockHandle(self.owner, (self._process, block.number), block.size, used, descriptor)

    def end_message(self, *, is_sent: bool) -> list[tuple[int, int]]:
        """Ends a message: returns the blocks that were dropped since the last; what is not sent is free again."""
        for block in self._placed:
            block.mark = _IN_USE if is_sent else _FREE
        self._placed.clear()
        self._messages += 1
        with self._lock:
            for block in list(self._blocks.values()):
                if not block.is_free:
                    block.used_for = self._messages
                elif self._messages - block.used_for > _IDLE_MESSAGES:
                    self._drop(block)
        dropped, self._dropped = (self._dropped, []) if is_sent else ([], self._dropped)
        return dropped

    def wear(self) -> None:
        """Called before a fork: what is lent here is not filled again."""
        for block in self._blocks.values():
            block.is_worn |= block.is_lent

    def _taken(self, size: int) -> _OwnBlock | None:
        """A free block for so many bytes, not much larger, now reserved; a new one if there is none."""
        block = self._found(size)
        if block is not None:
            block.is_reserved, block.used_for = True, self._messages
            block.touched = max(block.touched, size)
        return block

    def _found(self, size: int) -> _OwnBlock | None:
        for block in [each for each in self._blocks.values() if each.is_done]:
            self._drop(block)
        similar = [each for each in self._blocks.values() if size <= 2 * each.touched <= 4 * size]
        free = [each for each in similar if each.is_free]
        fitting = [each for each in free if size <= each.capacity]
        if fitting:  # rather one that needs no more memory
            return min(fitting, key=lambda each: (each.touched < size, abs(each.touched - size), -each.used_for))
        in_use = sum(each.touched for each in self._blocks.values() if not each.is_free)
        room = _SPARE_BYTES + (in_use + size) // 4
        for block in sorted(free, key=lambda each: each.number, reverse=True):  # the newest stay
            room -= block.touched
            if room < 0:
                self._drop(block)
        try:
            block = _OwnBlock(self._made, max([_rounded_up(size), *(each.capacity for each in similar)]))
        except OSError:
            return None
        self._made += 1
        self._blocks[block.number] = block
        return block

    def _drop(self, block: _OwnBlock) -> None:
        del self._blocks[block.number]
        self._dropped.append((self._process, block.number))


def _rounded_up(size: int) -> int:
    """The next power of two."""
    return max(4096, 1 << (size - 1).bit_length())


# ---- in the training process

_mapped: dict[int, dict[tuple[int, int], _Block]] = {}  # by owner and key
_lock = threading.RLock()  # held during a fork


def take_blocks(owner: int) -> None:
    """Begins to map the blocks of an iterator's worker processes."""
    _mapped[owner] = {}


def forget_blocks(owner: int, keys: list[tuple[int, int]] | None = None) -> None:
    """Forgets blocks, or all of an iterator; those on which there are tensors go with them."""
    if keys is None:
        _mapped.pop(owner, None)
    for key in keys or ():
        _mapped.get(owner, {}).pop(key, None)


def array_in_block(handle: BlockHandle) -> Any:
    """The uint8 (size,) that a worker process has sent; not overwritten while it, or what is made on it, exists.

    Raises:
        OSError: the worker process that has sent it for the first time has ended.
    """
    block = _received(handle)
    array = block.bytes_at(handle.used)
    weakref.finalize(array, _release, block, os.getpid(), None).atexit = False
    return array


def storage_in_block(handle: BlockHandle) -> torch.UntypedStorage:
    """The storage that a worker process has sent; not overwritten while it exists.

    Raises:
        OSError: the worker process that has sent it for the first time has ended.
    """
    block = _received(handle)
    array = block.bytes_at(handle.used)
    storage = torch.from_numpy(array).untyped_storage()
    weakref.finalize(storage, _release, block, os.getpid(), array).atexit = False
    return storage


def _received(handle: BlockHandle) -> _Block:
    known = _mapped.get(handle.owner, {})
    block = known.get(handle.key)
    if handle.descriptor is not None:
        descriptor = handle.descriptor.detach()
        try:
            if block is None:
                block = known[handle.key] = _Block(descriptor, handle.size)
                block.memory[_IS_MAPPED] = 1
        finally:
            os.close(descriptor)
    assert block is not None, "the training process has forgotten a block in use"
    with _lock:  # a fork marks blocks in use
        block.is_held = True
    return block


def _release(block: _Block, process: int, memory: Any) -> None:
    """Gives a block back, in the process that has received it; a forked one has copies of its tensors.

    Args:
        block: the block.
        process: the process that has received it.
        memory: what keeps the mapping until now.
    """
    if os.getpid() == process:
        with _lock:
            block.is_held = False
            block.mark = _WORN if block.is_worn else _FREE


_writers: weakref.WeakSet[BlockWriter] = weakref.WeakSet()


def _before_fork() -> None:
    for _ in range(3):
        try:
            for blocks in list(_mapped.values()):
                for block in list(blocks.values()):
                    block.is_worn |= block.is_held
            for writer in list(_writers):
                writer.wear()
            return
        except BaseException:  # noqa: BLE001 - a signal's handler may raise anywhere; here it would be lost in any case
            continue


if hasattr(os, "register_at_fork"):
    # The lock is taken first, and given back, by functions of C: a signal's handler that raises in one of Python,
    # as torch's does, would leave it held for ever.
    os.register_at_fork(before=_before_fork, after_in_child=_mapped.clear)
    _reset: Any = _lock._at_fork_reinit  # type: ignore[attr-defined]
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_reset)
