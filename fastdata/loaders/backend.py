"""The contract between the pipeline and a decode backend.

A backend turns encoded images and the views drawn for them into pixels.  `decode` receives decisions and takes none: it
draws no random number, reads no file, starts no thread.

Input
    `Encoded` images: the file's bytes and the header parsed from them (None when the kind is unknown).  They are
    read-only and may be shared with other threads.
    One `View` per image.  Its window lies inside the image.

Output
    ``out[i]`` is a caller-owned, C-contiguous uint8 array of shape (height, width, 3), RGB, of the view's size.
    The backend fills it completely, or reports why not; it keeps no reference to it.

Pixels
    With ``fidelity="exact"`` they are those of Pillow: ``open → convert("RGB") → crop → resize → crop → transpose``.
    EXIF orientation is left alone.  `Backend.mean_tolerance` states the mean absolute difference from that, in grey
    levels, that a backend is allowed; the tests read it.
    With ``fidelity="fast"`` a JPEG may be decoded at 1/2, 1/4 or 1/8 when its window is at least that much larger
    than the result, and with cheaper chroma upsampling.

Failures
    `decode` returns one entry per image: None, or the exception that stopped that image.  It never raises for an
    image, and a bad image leaves its neighbours unharmed.  Images that a backend cannot decode it hands to Pillow, so
    every backend accepts what Pillow accepts.  It refuses what Pillow refuses, except that damage below the window may
    go unnoticed: those rows are not decoded.  A file without an end is always noticed.

Threads
    `decode` may run in several threads at once.  Scratch memory is per thread.

Capabilities
    Every backend decodes the images that it is given.  A backend that can do more returns an object where `Backend`
    returns None; the pipeline relies on nothing else:

    `filler`          reads and decodes many images with one call; draws their views where they are not given, as
                      `fastdata.views.draw` would for the same key and samples
    `batch_decoder`   decodes whole batches ahead, in a pipeline and threads of its own
    `ready_batches`   hands out finished batches without reading anything
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import BackendUnavailable
from fastdata.tables import EffectTable, Recipes
from fastdata.views.header import ImageHeader, JpegFrame, has_whole_scans
from fastdata.views.philox import Key
from fastdata.views.resampling import Interpolation
from fastdata.views.view import View, Views

if TYPE_CHECKING:  # processes that convert images need no torch
    import torch

    from fastdata.views.plan import Plan

__all__ = [
    "FIDELITIES",
    "Backend",
    "BatchDecoder",
    "BatchEffects",
    "BatchFeed",
    "BatchRequest",
    "Decoded",
    "DecodedBatches",
    "Encoded",
    "Fidelity",
    "Filled",
    "Filler",
    "ReadyBatches",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]

Ints: TypeAlias = npt.NDArray[np.int64]

Fidelity: TypeAlias = Literal["exact", "fast"]
FIDELITIES: tuple[Fidelity, ...] = ("exact", "fast")


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """An encoded image: its bytes, its parsed header (None when the kind is unknown), its size in pixels.

    A backend that decodes image by image gets `bytes`; one that decodes whole batches may get parts of a larger block.
    `has_whole_scans` is True if the core has found that already, while it read the file.
    """

    data: Any
    header: ImageHeader | None
    width: int
    height: int
    has_whole_scans: bool = False

    def is_plain_jpeg(self) -> bool:
        """True for 8-bit grey or three-component JPEGs, the only files a JPEG library decodes here."""
        jpeg = self.jpeg
        return jpeg is not None and jpeg.precision_bits == 8 and jpeg.components in (1, 3)

    def is_for_core(self) -> bool:
        """True for the kinds of files that the native core may decode."""
        return self.is_plain_jpeg() or (self.header is not None and self.header.kind in ("png", "npy"))

    def is_whole_jpeg(self) -> bool:
        """True for a plain JPEG without missing or misplaced data, for libraries that do not report such damage."""
        if not self.is_plain_jpeg() or self.jpeg is None:
            return False
        return self.has_whole_scans or has_whole_scans(self.data, self.jpeg)

    @property
    def jpeg(self) -> JpegFrame | None:
        """Coding details of a JPEG; None for other kinds."""
        return self.header.jpeg if self.header is not None else None


class Backend(ABC):
    """Turns encoded images and views into pixels; see the module docstring for the contract."""

    name: ClassVar[str]
    install_hint: ClassVar[str]
    mean_tolerance: ClassVar[Mapping[Fidelity, float] | None] = None
    decode_devices: ClassVar[tuple[str, ...]] = ("cpu",)

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        self.fidelity = fidelity

    def __reduce__(self) -> tuple[partial[Backend], tuple[()]]:
        return partial(type(self), fidelity=self.fidelity), ()  # a copy opens its library anew

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """Returns the library's name and version.

        Raises:
            BackendUnavailable: the library is not installed or cannot be used.
        """

    @abstractmethod
    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        """Decodes every image into its place.

        Args:
            images: N encoded images.
            views: N views.
            out: N uint8 arrays (height, width, 3) of the views' sizes; an (N, H, W, 3) array is one.

        Returns:
            N entries: None, or the exception that stopped that image.
        """

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> Filler | None:
        """Returns an object that reads and decodes many images with one call; None if this backend has none.

        Args:
            plan: steps with which it draws views, for images of which those are not given; its `size` is the size of
                all these results.
            key: seed and epoch of such views.
            threads: number of threads; 0 for the calling thread.
        """
        return None

    def batch_decoder(self) -> BatchDecoder | None:
        """Returns an object that decodes whole batches in a pipeline of its own; None if this backend has none."""
        return None

    def ready_batches(self) -> ReadyBatches | None:
        """Returns an object that supplies finished batches without data; None if this backend has none."""
        return None

    @classmethod
    def unavailable(cls, reason: object) -> BackendUnavailable:
        """Returns the error that says why this backend cannot be used and what to install."""
        return BackendUnavailable(f"backend '{cls.name}' is not available ({reason}); {cls.install_hint}")


@dataclass(frozen=True, kw_only=True)
class Filled:
    """What became of the N images of some `Recipes`.

    Attributes:
        refused: by row, why an image was not stored: a final error, or `fastdata.loaders.per_image.HandBack`: Pillow
            decodes or refuses it.
        read_bytes: int64, (N,): encoded bytes of each image, in the first of the rows that share it.
        read_s: seconds spent reading, summed over threads.
        decode_s: seconds spent drawing views and decoding, summed over threads.
        records: N unpacked records if `Recipes.kept` asked: b"" for an image that can have none, None if not made.
        cached: number of images that came from a cache of such records.
    """

    refused: Mapping[int, Exception]
    read_bytes: Ints
    read_s: float = 0.0
    decode_s: float = 0.0
    records: Sequence[bytes | None] = ()
    cached: int = 0


class Filler(Protocol):
    """Reads, decodes, changes and stores many images with one call, which several threads may make at once.

    Attributes:
        reads_records: it decodes unpacked records (docs/format.md) as it decodes JPEGs, and makes them where
            `Recipes.kept` asks; `DataLoader(cache=…)` works with such.
    """

    reads_records: bool

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; one that it refuses leaves its neighbours unharmed."""

    def close(self, ended: bool = True) -> None:
        """Gives up its threads; waits for them if the work has ended, abandons them if one may hang in a read."""


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
    views: Views
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
