"""Functions that make a batch of samples and are known: torch's `default_collate`, and timm's `fast_collate`.

timm's stacks uint8 images; whatever its targets are, those of one number each become int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import default_collate

from fastdata.loaders.pending_image import PendingImage

__all__ = ["collate_targets", "join", "stacks_images", "stacks_pending"]

_TIMMS = ("timm.data.loader", "fast_collate")


def stacks_images(collate_fn: Callable[[list[Any]], Any] | None, dtype: torch.dtype) -> bool:
    """True if samples (image, target) become the stacked images, and the targets as `collate_targets` has them."""
    return collate_fn is None or collate_fn is default_collate or (_is_timms(collate_fn) and dtype is torch.uint8)


def collate_targets(collate_fn: Callable[[list[Any]], Any], targets: Sequence[Any]) -> Any:
    """The targets of a batch."""
    collated = default_collate(tuple(targets))  # type: ignore[arg-type]  # a tuple, as samples are transposed
    return collated.long() if _is_timms(collate_fn) and collated.ndim == 1 else collated


def join(collate_fn: Callable[[list[Any]], Any], images: Any, targets: Any) -> Any:
    """A batch."""
    return (images, targets) if _is_timms(collate_fn) else [images, targets]


def stacks_pending(collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """The function itself, if it leaves images that are pending so; else one that does the same and leaves them."""
    return partial(_stack_as_timm, collate_fn) if _is_timms(collate_fn) else collate_fn


def _stack_as_timm(fast_collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    if not all(
        type(sample) is tuple and type(sample[0]) is PendingImage and sample[0].dtype is torch.uint8
        for sample in samples
    ):
        return fast_collate(samples)
    return torch.stack([sample[0] for sample in samples]), collate_targets(
        fast_collate, [sample[1] for sample in samples]
    )


def _is_timms(collate_fn: Any) -> bool:
    return (getattr(collate_fn, "__module__", ""), getattr(collate_fn, "__qualname__", "")) == _TIMMS
