"""Functions that make a batch of samples and are known: torch's `default_collate`, and timm's `fast_collate`.

timm's stacks uint8 images; whatever its targets are, those of one number each become int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate as torch_collate

from fastdata.errors import NoLabel
from fastdata.sources.protocol import ImageSource, location_of

__all__ = ["collate_targets", "is_known_collation", "is_timms", "join", "naming_unlabelled", "stacks_images"]

_TIMMS = ("timm.data.loader", "fast_collate")


def is_known_collation(collate_fn: Callable[[list[Any]], Any] | None) -> bool:
    """True for functions that do nothing but collate, and that nobody has changed: torch's, timm's, list and tuple."""
    if collate_fn is None or collate_fn is default_collate:
        return is_torchs_map()
    return collate_fn in (list, tuple) or is_timms(collate_fn)


def is_torchs_map() -> bool:
    """True if torch's default_collate makes of images and targets what it made when torch was imported.

    Programs replace entries of its map, or add some for types of their own, which may come before torch's.
    """
    known = torch_collate.default_collate_fn_map
    samples = (torch.Tensor, int, float, str, tuple, list, dict)
    for kind in samples:
        found = known.get(kind) or next((each for cls, each in known.items() if _is_within(kind, cls)), None)
        if found is not None and getattr(found, "__module__", "") != torch_collate.__name__:
            return False
    return True


def _is_within(kind: type, cls: Any) -> bool:
    try:
        return issubclass(kind, cls)
    except TypeError:  # a key need not be a class
        return False


def stacks_images(collate_fn: Callable[[list[Any]], Any] | None, dtype: torch.dtype) -> bool:
    """True if samples (image, target) become the stacked images, and the targets as `collate_targets` has them."""
    if collate_fn is None or collate_fn is default_collate:
        return is_torchs_map()
    return is_timms(collate_fn) and dtype is torch.uint8


def collate_targets(collate_fn: Callable[[list[Any]], Any], targets: Sequence[Any]) -> Any:
    """The targets of a batch."""
    collated = default_collate(tuple(targets))  # type: ignore[arg-type]  # a tuple, as samples are transposed
    return collated.long() if is_timms(collate_fn) and collated.ndim == 1 else collated


@contextmanager
def naming_unlabelled(source: ImageSource, indices: Sequence[int], targets: Sequence[Any]) -> Iterator[None]:
    """Names the first sample without a label if the targets of a batch cannot be collated."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        index = next((each for each, target in zip(indices, targets, strict=True) if target is None), None)
        if index is None:
            raise
        raise NoLabel(
            f"sample {index} ({location_of(source, index)}) has no label (None), so the labels of its batch cannot be "
            "one tensor; give it a label in the source, a number by target_transform, or leave such samples out with "
            "torch.utils.data.Subset"
        ) from error


def join(collate_fn: Callable[[list[Any]], Any], images: Any, targets: Any) -> Any:
    """A batch."""
    return (images, targets) if is_timms(collate_fn) else [images, targets]


def is_timms(collate_fn: Any) -> bool:
    """True for timm's fast_collate."""
    return (getattr(collate_fn, "__module__", ""), getattr(collate_fn, "__qualname__", "")) == _TIMMS
