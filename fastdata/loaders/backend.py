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
    EXIF orientation is left alone.  `MEAN_TOLERANCE` states the mean absolute difference from that, in grey levels,
    that each backend is allowed; the tests read it.
    With ``fidelity="fast"`` a JPEG may be decoded at 1/2, 1/4 or 1/8 when its window is at least that much larger
    than the result, and with cheaper chroma upsampling.

Failures
    `decode` returns one entry per image: None, or the exception that stopped that image.  It never raises for an
    image, and a bad image leaves its neighbours unharmed.  What a backend cannot decode it hands to Pillow, so every
    backend accepts what Pillow accepts.  It refuses what Pillow refuses, but that damage below the window may go
    unseen: those rows are not decoded.  A file without an end is always noticed.

Threads
    `decode` may run in several threads at once.  Scratch memory is per thread.

Capabilities
    Every backend decodes images that it is handed.  One that can do more says so by returning an object where `Backend`
    returns None, and the pipeline asks for nothing else:

    `file_loader`     reads files and fills a batch with one call, in threads of its own; draws the views that
                      `fastdata.views.draw` would have drawn for the same key and samples
    `source_decoder`  reads and decodes many images with one call, with views that it is given
    `batch_decoder`   decodes whole batches ahead, in a pipeline and threads of its own
    `ready_batches`   hands out finished batches without reading anything
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from fastdata.errors import BackendUnavailable
from fastdata.native import EffectTable, Format, Pool, Windows
from fastdata.views.header import ImageHeader, JpegFrame, has_whole_scans
from fastdata.views.philox import Key
from fastdata.views.plan import Interpolation, Plan
from fastdata.views.view import View, Views

__all__ = [
    "FIDELITIES",
    "MEAN_TOLERANCE",
    "Backend",
    "BatchDecoder",
    "BatchFeed",
    "BatchRequest",
    "Decoded",
    "DecodedBatches",
    "Encoded",
    "Fidelity",
    "FileLoader",
    "LoadedFiles",
    "ReadyBatches",
    "Scratch",
    "SourceDecoder",
    "as_numpy",
    "dct_denominator",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]

Ints: TypeAlias = npt.NDArray[np.int64]

Fidelity: TypeAlias = Literal["exact", "fast"]
FIDELITIES: tuple[Fidelity, ...] = ("exact", "fast")

# Mean absolute difference from Pillow, in grey levels of 255, allowed per image.  "exact" OpenCV decodes with the
# libjpeg-turbo of its own build; the wheels' build decodes like Pillow's, a distribution's may round chroma otherwise.
MEAN_TOLERANCE: dict[str, dict[str, float]] = {
    "exact": {"pil": 0.0, "native": 0.0, "turbojpeg": 0.0, "opencv": 0.5, "dali": 0.6},
    "fast": {"pil": 4.0, "native": 4.0, "turbojpeg": 4.0, "opencv": 6.0, "dali": 4.0},
}

_SCRATCH_KEPT_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """One encoded image: its bytes, its parsed header (None when the kind is unknown), its size in pixels."""

    data: bytes
    header: ImageHeader | None
    width: int
    height: int

    def is_plain_jpeg(self) -> bool:
        """True for 8-bit grey or three-component JPEGs, the only files a JPEG library decodes here."""
        jpeg = self.jpeg
        return jpeg is not None and jpeg.precision_bits == 8 and jpeg.components in (1, 3)

    def is_for_core(self) -> bool:
        """True for the kinds that the native core may decode."""
        return self.is_plain_jpeg() or (self.header is not None and self.header.kind in ("png", "npy"))

    def is_whole_jpeg(self) -> bool:
        """True for a plain JPEG in which nothing is missing or out of place, for libraries that do not say so."""
        return self.is_plain_jpeg() and self.jpeg is not None and has_whole_scans(self.data, self.jpeg)

    @property
    def jpeg(self) -> JpegFrame | None:
        """How the file is coded, if it is a JPEG."""
        return self.header.jpeg if self.header is not None else None


class Backend(ABC):
    """Turns encoded images and views into pixels; see the module's text for the contract."""

    name: ClassVar[str]
    install_hint: ClassVar[str]
    decode_devices: ClassVar[tuple[str, ...]] = ("cpu",)  # and "mixed", if a GPU decodes what it is handed on the host

    def __init__(self, *, fidelity: Fidelity = "exact") -> None:
        self.fidelity = fidelity

    def __reduce__(self) -> tuple[partial[Backend], tuple[()]]:
        return partial(type(self), fidelity=self.fidelity), ()  # a copy opens its library anew

    @classmethod
    @abstractmethod
    def version(cls) -> str:
        """The library's version in words.

        Raises:
            BackendUnavailable: it is not installed or cannot be used.
        """

    @abstractmethod
    def decode(self, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> list[Exception | None]:
        """Decodes every image into its place.

        Args:
            images: N encoded images.
            views: N views.
            out: N uint8 arrays (height, width, 3) of the views' sizes; an (N, H, W, 3) array is one.

        Returns:
            N entries: None, or what stopped that image.
        """

    def file_loader(self, plan: Plan, key: Key, *, format: Format, threads: int) -> FileLoader | None:  # noqa: A002
        """What reads files and fills whole batches, if this backend does that.

        Args:
            plan: what is done to each image; its `size` is that of all.
            key: seed and epoch of the views.
            format: how pixels are stored in the batch.
            threads: how many to use; 0 for the calling thread.
        """
        return None

    def source_decoder(self) -> SourceDecoder | None:
        """What reads and decodes many images with views that are given, if this backend does that."""
        return None

    def batch_decoder(self) -> BatchDecoder | None:
        """What decodes whole batches in a pipeline of its own, if this backend has one."""
        return None

    def ready_batches(self) -> ReadyBatches | None:
        """What hands out finished batches, if this backend needs no data."""
        return None

    @classmethod
    def unavailable(cls, reason: object) -> BackendUnavailable:
        """The error that says why this backend cannot be used and what to install."""
        return BackendUnavailable(f"backend '{cls.name}' is not available ({reason}); {cls.install_hint}")


@dataclass(frozen=True)
class LoadedFiles:
    """What became of N images that a `FileLoader` read.

    Attributes:
        ok: bool, (N,): True where the image is in the batch; the others are read and decoded again one by one, which
            finds out what is wrong with them.
        data_bytes: int64, (N,): encoded bytes read.
        read_s: seconds spent reading, summed over threads.
        decode_s: the same for drawing views and decoding.
    """

    ok: npt.NDArray[np.bool_]
    data_bytes: Ints
    read_s: float
    decode_s: float


class FileLoader(Protocol):
    """Files to finished images in a batch, with one call per batch."""

    def load(
        self,
        paths: Sequence[Any],
        offsets: Ints | None,
        lengths: Ints | None,
        crcs: Ints | None,
        *,
        indices: Sequence[int],
        copies: Sequence[int],
        out: int,
        effects: EffectTable | None = None,
    ) -> LoadedFiles:
        """Loads N images.

        Args:
            paths: of the files.
            offsets: where each image begins in its file; None for 0.
            lengths: of each in bytes; None, and -1, for the rest of the file.
            crcs: CRC-32C of each, to be compared; None, and -1, where it is not known.
            indices: the samples, for which views are drawn.
            copies: tells apart several views of one sample.
            out: address of the batch, which holds N images one after the other.
            effects: what is done to each image's pixels; given only where the transform has such steps.
        """
        ...

    def close(self, ended: bool) -> None:
        """Gives up its threads; waits for them if the work has ended, abandons them if a read may hang in one."""
        ...


class SourceDecoder(Protocol):
    """Images in files or in memory to their places, each with its own view, with one call."""

    def pool(self, threads: int) -> Pool:
        """Threads for `decode_sources`, which whoever asked for them closes."""
        ...

    def decode_sources(
        self,
        paths: Sequence[str],
        data: Sequence[bytes | None],
        windows: Windows,
        out: npt.NDArray[np.uint64],
        *,
        format: Format,  # noqa: A002
        origins: Sequence[str] | None = None,
        pool: Pool | None = None,
        same_as: Ints | None = None,
        read_bytes: Ints | None = None,
        effects: EffectTable | None = None,
    ) -> list[Exception | None]:
        """Decodes N images.

        Args:
            paths: of files; "" where `data` is given.
            data: the encoded bytes, where there is no path.
            windows: what is seen of each.
            out: addresses of N places.
            format: how pixels are stored there.
            origins: the files that paths name or `data` was read from, "" where there is none; None for `paths`.
            pool: who works; None for the calling thread.
            same_as: int64, (N,): the first row of the same encoded image; such rows are neighbours.
            read_bytes: int64, (N,): receives the encoded bytes of each image, in its first row.
            effects: what is done to each image's pixels, (N, any number); None for nothing.

        Returns:
            N entries: None, an error that is final, or HandBack, for what Pillow must decode or judge.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class BatchFeed:
    """One batch for a `BatchDecoder`: N encoded images with N views, and what messages call it.

    All are such as `BatchDecoder.takes` accepts, or an 8 × 8 JPEG that stands for an image decoded elsewhere.
    """

    encoded: Sequence[npt.NDArray[np.uint8]]
    views: Views
    name: str = "a batch"


@dataclass(frozen=True, kw_only=True)
class BatchRequest:
    """What a pipeline of whole batches is opened for.

    Attributes:
        interpolation: filter of the resize.
        crops: some views crop after the resize.
        flips: some views mirror.
        largest_batch: images; None if unknown.
        threads: of its own.
        device_index: CUDA device that decodes; None decodes on the CPU.
        options: the backend's own, as the user gave them; None for its defaults.
    """

    interpolation: Interpolation
    crops: bool = True
    flips: bool = True
    largest_batch: int | None = None
    threads: int = 1
    device_index: int | None = None
    options: Any = None


Decoded: TypeAlias = torch.Tensor | RuntimeError  # uint8 (N, H, W, 3), or why the whole batch could not be decoded


class DecodedBatches(Protocol):
    """A running pipeline: yields each feed with its images, in order.

    An error that the feeds raise comes at its place.  Tensors are the pipeline's memory: whoever keeps one beyond the
    next call copies it.
    """

    def __iter__(self) -> Iterator[tuple[BatchFeed, Decoded]]: ...

    def __next__(self) -> tuple[BatchFeed, Decoded]:
        """The next batch.

        Raises:
            BackendError: it cannot go on at all, for example for want of memory.
        """
        ...

    def close(self) -> None:
        """Takes it down.  Harmless when repeated."""
        ...


class BatchDecoder(Protocol):
    """Decodes whole batches, several on their way."""

    def suits(self, plan: Plan) -> bool:
        """True if it can do what a plan asks for."""
        ...

    def takes(self, image: Encoded, view: View) -> bool:
        """True if it can decode an image; what it does not take is Pillow's."""
        ...

    def open(self, feeds: Iterator[BatchFeed], request: BatchRequest) -> DecodedBatches:
        """Starts a pipeline that draws from `feeds`, some ahead of what it yields."""
        ...


class ReadyBatches(Protocol):
    """Finished batches from nothing."""

    def ready(self, count: int, make_empty: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """A finished batch of `count` images, in memory that `make_empty` makes; it may be the same every time."""
        ...


class Scratch(threading.local):
    """Memory that one thread uses again for every image."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def take(self, size_bytes: int) -> Pixels:
        """A flat uint8 array of exactly `size_bytes`, valid until this thread's next call."""
        if size_bytes > _SCRATCH_KEPT_BYTES:
            return np.empty(size_bytes, np.uint8)
        if self._bytes.size < size_bytes:
            self._bytes = np.empty(size_bytes, np.uint8)
        return self._bytes[:size_bytes]


def dct_denominator(view: View) -> int:
    """The largest of 8, 4, 2, 1 by which the view's window can shrink and still not be smaller than the result."""
    left, top, right, bottom = view.window_px
    width, height = view.resize_px
    for denominator in (8, 4, 2):
        if right - left >= denominator * width and bottom - top >= denominator * height:
            return denominator
    return 1


def as_numpy(pixels: Pixels) -> Pixels:
    """RGB pixels (height, width, 3) as timm's ToNumpy has them: (3, height, width), of the same memory."""
    return np.moveaxis(pixels, 2, 0)
