"""Configuration of the image pipeline for one epoch, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import default_collate

from fastdata.loaders import Backend
from fastdata.order.epoch_batches import EpochBatches
from fastdata.pipeline.collate import join, stacks_images
from fastdata.pipeline.record_cache import RecordCache
from fastdata.pipeline.torchs_workers import TorchsWorkers
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan

__all__ = ["ON_ERROR", "OnError", "PipelineConfig"]

OnError: TypeAlias = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = ("raise", "skip", "replace")

_LARGEST_TASK = 16
_TASKS_PER_THREAD = 4


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Configuration of an epoch: what every batch of it has in common.

    Attributes:
        source: encoded bytes and targets.
        plan: the view and the transforms of each image.
        backend: the backend that decodes.
        key: seed and epoch of the random views.
        collate_fn: merges samples; what is known to stack images makes whole batches in place where the plan allows it.
        on_error: policy for a sample that cannot be decoded, one of `ON_ERROR`.
        memory_format: memory format of the batch, torch.contiguous_format or torch.channels_last.
        device: device to which batches go; None is host memory.  A CUDA device also does the steps after decoding.
        decode_device: device on which a backend decodes whole batches, "cpu" or "mixed" (the GPU); "cuda" for that of
            the batches, where it can (see `decodes_packed`).
        backend_options: further choices for that backend, of its own type.
        pin: allocate batches in pinned memory.
        threads: number of threads that share a batch's tasks.
        order: the epoch's batches, which know from what substitutes for bad samples are taken.
        torchs_workers: generators from which batches draw one after the other, if the plan follows a transform's own
            draws; None draws by the key.
        cache: cache of unpacked records for images in files; None for none.
    """

    source: ImageSource
    plan: Plan
    backend: Backend
    key: Key
    collate_fn: Callable[[list[Any]], Any] = default_collate
    on_error: OnError = "raise"
    memory_format: torch.memory_format = torch.contiguous_format
    device: torch.device | None = None
    decode_device: str = "cpu"
    backend_options: object = None
    pin: bool = False
    threads: int = 0
    order: EpochBatches | None = None
    torchs_workers: TorchsWorkers | None = None
    cache: RecordCache | None = None

    @property
    def fills_batch(self) -> bool:
        """True when images are decoded straight into the batch tensor."""
        return self.plan.batchable and stacks_images(self.collate_fn, self.plan.output_dtype)

    @property
    def arrays(self) -> ArraySource | None:
        """The source, where its images are in memory."""
        return self.source if isinstance(self.source, ArraySource) else None

    def batch_of(self, images: Any, targets: Any) -> Any:
        """A batch of images and collated targets, in the form in which the dataset's samples are collated."""
        form = None if self.arrays is None else self.arrays.form
        return join(self.collate_fn, images, targets) if form is None else form.batch(images, targets)

    @property
    def channels(self) -> int:
        """Channels of every image: 3, or 1 for grey images, which only arrays have."""
        return self.arrays.channels if self.arrays is not None else 3

    @property
    def on_gpu(self) -> bool:
        """True when batches go to a CUDA device."""
        return self.device is not None and self.device.type == "cuda"

    @property
    def decodes_packed(self) -> bool:
        """True when batches go to the GPU packed, and are decoded there as far as that can be."""
        plan = self.plan
        suits = self.fills_batch and plan.in_one_pass and self.arrays is None
        return self.decode_device == "cuda" and self.on_gpu and suits and self.backend.name == "native"

    @property
    def leave_uint8(self) -> bool:
        """True when decoding ends with uint8 and the rest follows: on a device, or before augmentations."""
        on_device = self.on_gpu and self.plan.output is Output.FLOAT
        return self.fills_batch and (bool(self.plan.augmentations) or on_device)

    def task_size(self, batch_size: int) -> int:
        """Samples per task: several tasks per thread so that one large image holds up nobody."""
        return min(_LARGEST_TASK, max(1, -(-batch_size // (_TASKS_PER_THREAD * max(1, self.threads)))))
