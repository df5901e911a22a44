"""What all batches of an epoch share, as data."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.utils.data import default_collate

from fastdata.convert import Converter
from fastdata.copies import PerThread
from fastdata.draws import Key
from fastdata.finish import Finish
from fastdata.loaders import Backend
from fastdata.loaders.dali import FILTERS, DaliBackend
from fastdata.loaders.native import NativeBackend
from fastdata.memory import BatchMemory
from fastdata.native import FileLoader, Pool
from fastdata.options import DaliOptions
from fastdata.order import EpochBatches
from fastdata.plan import Output, Plan
from fastdata.sources import ImageSource, has_file_ranges, transforms_targets
from fastdata.stats import PipelineStats

__all__ = ["ON_ERROR", "ImageWork"]

ON_ERROR = ("raise", "skip", "replace")

_LARGEST_TASK = 16
_TASKS_PER_THREAD = 4


@dataclass(frozen=True, kw_only=True)
class ImageWork:
    """All that is the same for every batch of an epoch.

    Attributes:
        source: encoded bytes and targets.
        plan: what happens to each image.
        backend: who decodes.
        key: seed and epoch of the random views.
        collate_fn: merges samples; torch's default_collate makes whole batches in place where the plan allows it.
        on_error: one of `ON_ERROR`.
        memory_format: of the batch, torch.contiguous_format or torch.channels_last.
        device: where batches go; None is host memory.  A CUDA device also does what is left after decoding.
        decode_device: where DALI decodes, "cpu" or "mixed" (the GPU).
        dali: further choices for DALI.
        pin: allocate batches in pinned memory.
        threads: how many will share a batch's tasks.
        memory: where batches that are not pinned come from.
        stats: where each batch reports what it cost.
        order: what the sampler gives in this epoch, from which substitutes for bad samples are taken.
    """

    source: ImageSource
    plan: Plan
    backend: Backend
    key: Key
    collate_fn: Callable[[list[Any]], Any] = default_collate
    on_error: str = "raise"
    memory_format: torch.memory_format = torch.contiguous_format
    device: torch.device | None = None
    decode_device: str = "cpu"
    dali: DaliOptions = field(default_factory=DaliOptions)
    pin: bool = False
    threads: int = 0
    memory: BatchMemory = field(default_factory=lambda: BatchMemory(keep=0))
    stats: PipelineStats = field(default_factory=PipelineStats)
    order: EpochBatches | None = None

    @property
    def in_place(self) -> bool:
        """True when images are decoded straight into the batch tensor."""
        return self.plan.batchable and self.collate_fn is default_collate

    @property
    def on_gpu(self) -> bool:
        """True when batches go to a CUDA device."""
        return self.device is not None and self.device.type == "cuda"

    @property
    def leave_uint8(self) -> bool:
        """True when decoding ends with uint8 and `finish` does the rest: on a device, or before augmentations."""
        return self.in_place and (self.plan.augments or (self.on_gpu and self.plan.output is Output.FLOAT))

    @cached_property
    def finish(self) -> Finish:
        """The steps after decoding, when the batch is left uint8."""
        return Finish(plan=self.plan, key=self.key)

    @property
    def pipelined(self) -> bool:
        """True when DALI decodes whole batches."""
        return isinstance(self.backend, DaliBackend) and self.in_place and self.plan.interpolation in FILTERS

    @property
    def decodes_on_gpu(self) -> bool:
        """True when DALI decodes whole batches on the device where they go."""
        return self.pipelined and self.on_gpu and self.decode_device == "mixed"

    @cached_property
    def steps(self) -> PerThread[Callable[[Any], Any]]:
        """The rest of the transform, and behind it `collate_fn`, for each thread."""
        return PerThread((*self.plan.tail, self.collate_fn), self.threads)

    @cached_property
    def draws_targets(self) -> bool:
        """True when reading a target calls code of the user's, which may draw random numbers."""
        return transforms_targets(self.source)

    @cached_property
    def target_turn(self) -> threading.Lock:
        """Held while a target_transform is called, of which there is only one."""
        return threading.Lock()

    @cached_property
    def pool(self) -> Pool | None:
        """Threads of the native core, as many as decode threads; None makes it work in the caller's."""
        if not isinstance(self.backend, NativeBackend) or self.threads == 0:
            return None
        return self.backend.make_pool(self.threads)

    @cached_property
    def file_loader(self) -> FileLoader | None:
        """Goes from files to the batch without the interpreter, where the backend can."""
        if not (isinstance(self.backend, NativeBackend) and self.in_place and has_file_ranges(self.source)):
            return None
        return self.backend.file_loader(self.plan, self.key, format=self.converter.format, pool=self.pool)

    @cached_property
    def converter(self) -> Converter:
        """Stores decoded images in the batch."""
        channels_last = self.memory_format is torch.channels_last
        return Converter(self.plan, leave_uint8=self.leave_uint8, channels_last=channels_last)

    @cached_property
    def sample_converter(self) -> Converter:
        """Stores a sample of its own, before the rest of the transform."""
        return Converter(self.plan)

    def close(self, ended: bool = True) -> None:
        """Gives back what the epoch's batches shared; `ended` is False if a thread may still be at work."""
        self.memory.close()
        if self.pool is not None and ended:
            self.pool.close()
        elif self.pool is not None:
            self.pool.abandon()

    def task_size(self, batch_size: int) -> int:
        """Samples per task: several tasks per thread so that one large image holds up nobody."""
        return min(_LARGEST_TASK, max(1, -(-batch_size // (_TASKS_PER_THREAD * max(1, self.threads)))))

    def empty_batch(self, count: int) -> torch.Tensor:
        """An uninitialised batch (N, 3, H, W) in the format asked for."""
        assert self.plan.size is not None
        height, width = self.plan.size
        last, dtype = self.converter.channels_last, self.converter.dtype
        shape = (count, height, width, 3) if last else (count, 3, height, width)
        if self.pin:
            images = torch.empty(shape, dtype=dtype, pin_memory=True)
        else:
            images = self.memory.tensor(shape, dtype)
        return images.permute(0, 3, 1, 2) if last else images

    def finished_empty_batch(self, count: int) -> torch.Tensor:
        """An uninitialised batch (N, 3, H, W) as the caller will get it, on its device."""
        assert self.plan.size is not None
        dtype = self.plan.normalisation.dtype if self.plan.normalisation is not None else torch.uint8
        device = self.device if self.on_gpu else None
        return torch.empty((count, 3, *self.plan.size), dtype=dtype, device=device, memory_format=self.memory_format)
