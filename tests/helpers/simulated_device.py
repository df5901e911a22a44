"""A device that is simulated to be as unkind as the rules allow.

It has two queues of work, the copy stream's and the consumer's, and an allocator that gives freed memory out again at
once.  Work is done as early or as late as events permit: copies that run late show a consumer that does not wait; a
consumer that runs late shows memory that is given out too early.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch

from fastdata import DevicePrefetcher
from fastdata.device.prefetch import map_tensors

SIZE = 64


class Device:
    """Two streams, and memory for the copy stream's results.

    Args:
        late: which stream does nothing before it must: "copies", "consumer", "neither", or "by chance".
        rng: for "by chance", how much of either is done whenever something is asked.
    """

    def __init__(self, *, late: str, rng: Random | None = None) -> None:
        self.late, self._rng = late, rng or Random(0)
        self.copies: list[Callable[[], None]] = []
        self.copies_done = 0
        self.kernels: list[Callable[[], None]] = []
        self.free: list[np.ndarray] = []
        self.blocks: dict[int, np.ndarray] = {}
        self.used: dict[int, int] = {}  # address of a block: kernels that must be done before it is free
        self.made = 0  # blocks of memory ever made
        self.launched = 0  # kernels ever launched

    # ---- what `CopyStreams` asks

    def copying(self) -> Any:
        return contextlib.nullcontext()

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        self.made += not self.free
        block = self.free.pop() if self.free else np.full(SIZE, -1.0, np.float32)
        result = torch.from_numpy(block[:])
        weakref.finalize(result, self._freed, block)
        self.blocks[block.ctypes.data] = block
        self.copies.append(lambda: np.copyto(block, tensor.numpy()))
        if self.late == "by chance":
            self.run_some()
        elif self.late != "copies":
            self.run_copies(len(self.copies))
        return result

    def doubled(self, batch: Any) -> Any:
        """A transform, whose work goes to the copy stream as the copies do."""

        def double(tensor: torch.Tensor) -> torch.Tensor:
            block = self.blocks[tensor.data_ptr()]  # no reference to the tensor, whose memory may be given out again
            self.copies.append(lambda: np.multiply(block, 2, out=block))
            if self.late not in ("by chance", "copies"):
                self.run_copies(len(self.copies))
            return tensor

        return map_tensors(batch, double)

    def copied(self) -> int:
        return len(self.copies)

    def consumer_waits_for(self, event: int) -> None:
        self.launch(lambda: self.run_copies(event))

    def consumer_uses(self, tensor: torch.Tensor) -> None:
        self.used[tensor.data_ptr()] = 1

    def consumer_passed(self) -> int:
        return self.launched

    def host_waits_for(self, event: int) -> None:
        while len(self.kernels) > self.launched - event:
            self.kernels.pop(0)()

    # ---- the device itself

    def launch(self, kernel: Callable[[], None]) -> None:
        """Queues work on the consumer's stream."""
        self.kernels.append(kernel)
        self.launched += 1
        if self.late == "by chance":
            self.run_some()
        elif self.late != "consumer":
            self.run_kernels()

    def run_some(self) -> None:
        """Does some of what waits, of both streams."""
        if self._rng.random() < 0.5:
            self.run_copies(self._rng.randint(self.copies_done, len(self.copies)))
        for _ in range(self._rng.randint(0, len(self.kernels)) if self._rng.random() < 0.5 else 0):
            self.kernels.pop(0)()

    def run_copies(self, until: int) -> None:
        for copy in self.copies[self.copies_done : until]:
            copy()
        self.copies_done = max(self.copies_done, until)

    def run_kernels(self) -> None:
        while self.kernels:
            self.kernels.pop(0)()

    def _freed(self, block: np.ndarray) -> None:
        if not self.used.pop(block.ctypes.data, 0):
            self.free.append(block)
        else:
            self.launch(lambda: self.free.append(block))


def sums(device: Device, *, depth: int = 1, size: int = 12) -> list[float]:
    """Half of what a consumer finds that averages each batch of two tensors, doubled by a transform: 0, 1, 2, ..."""
    batches = [[torch.full((SIZE,), n - 1.0), {"n": n, "more": [torch.full((SIZE,), n + 1.0)]}] for n in range(size)]
    prefetcher = DevicePrefetcher(batches, "cpu", depth=depth, transform=device.doubled)
    results: list[float] = []
    for first, others in prefetcher._copied_ahead(iter(batches), device):
        assert others["n"] == len(results) + len(device.kernels) or device.late in ("consumer", "by chance")
        blocks = first.numpy()[:], others["more"][0].numpy()[:]
        device.launch(lambda blocks=blocks: results.append(float(sum(map(np.mean, blocks)) / 4)))
        del first, others, blocks
    device.run_kernels()
    return results
