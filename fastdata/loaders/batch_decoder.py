"""Capabilities of a backend beside its filler: whole batches, decoded ahead or handed out without reading anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.loaders.encoded import Encoded
from fastdata.tables import EffectTable, Windows
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View

if TYPE_CHECKING:  # processes that convert images need no torch
    import torch

    from fastdata.views.plan import Plan

__all__ = [
    "BatchDecoder",
    "BatchEffects",
    "BatchFeed",
    "BatchRequest",
    "Decoded",
    "DecodedBatches",
    "ReadyBatches",
]


@dataclass(frozen=True, kw_only=True)
class BatchFeed:
    """A batch for a `BatchDecoder`: N encoded images with N views, and its name in messages.

    Each image is one that `BatchDecoder.takes` accepts, or an 8 × 8 JPEG in place of an image decoded elsewhere.

    Attributes:
        encoded: bytes of the images.
        views: their views.
        effects: (N, steps): effects on the decoded images, which `BatchEffects.does` all; None for none.
        name: the batch's name in messages.
    """

    encoded: Sequence[npt.NDArray[np.uint8]]
    views: Windows
    effects: EffectTable | None = None
    name: str = "a batch"


class BatchEffects(Protocol):
    """Effects that a `BatchDecoder` was asked to do to decoded images; see `BatchDecoder.effects`."""

    def does(self, effects: EffectTable) -> npt.NDArray[np.bool_]:
        """Says for N rows of effects whether the decoder's pipeline does all of them: bool, (N,)."""


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """Requirements on a pipeline that decodes whole batches.

    Attributes:
        interpolation: filter of the resize.
        crops: True if some views crop after the resize.
        flips: True if some views mirror.
        largest_batch: most images in a batch; None if unknown.
        threads: number of the pipeline's own threads.
        device_index: CUDA device that decodes; None decodes on the CPU.
        effects: effects on decoded images, as `BatchDecoder.effects` gave them; None for none.
        options: the user's options for the backend; None for its defaults.
    """

    interpolation: Interpolation
    crops: bool = True
    flips: bool = True
    largest_batch: int | None = None
    threads: int = 1
    device_index: int | None = None
    effects: BatchEffects | None = None
    options: Any = None


Decoded: TypeAlias = "torch.Tensor | RuntimeError"  # uint8 (N, H, W, 3), or why the whole batch was not decoded


class DecodedBatches(Protocol):
    """A running pipeline: yields each feed with its images, in order.

    An error raised by the feeds is raised at its place in the order.  Tensors are the pipeline's memory: copy one to
    keep it beyond the next call.
    """

    def __iter__(self) -> Iterator[tuple[BatchFeed, Decoded]]: ...

    def __next__(self) -> tuple[BatchFeed, Decoded]:
        """Returns the next batch.

        Raises:
            BackendError: the pipeline cannot continue, for example for lack of memory.
        """

    def close(self) -> None:
        """Shuts the pipeline down; may be called again."""


class BatchDecoder(Protocol):
    """Decodes whole batches, several ahead."""

    def suits(self, plan: Plan) -> bool:
        """True if it supports all steps of a plan."""

    def takes(self, image: Encoded, view: View) -> bool:
        """True if it can decode an image with a view; Pillow decodes the others."""

    def effects(self, drawn: EffectTable) -> BatchEffects | None:
        """Returns what the pipeline is to do of effects like these, drawn for some samples; None if it does none."""

    def open(self, feeds: Iterator[BatchFeed], request: BatchRequest) -> DecodedBatches:
        """Starts a pipeline that takes batches from `feeds`, some ahead of the ones it yields."""


class ReadyBatches(Protocol):
    """Supplies finished batches without any data."""

    def ready(self, count: int, make_empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Returns a finished batch of `count` images, in memory from `make_empty`; it may be the same every time."""
