"""The contract between the loader and a decode backend.

A backend makes fillers.  A filler gets `fastdata.tables.Recipes`, which say for N images where they come from, how they
are seen, what is done to them and where they go, and stores their pixels.

Input
    Encoded bytes and arrays are read-only and may be shared with other threads.  A view that is given lies inside its
    image.  Where none is given, the filler draws it for the image's size, as `fastdata.views.draw` does for the same
    key and sample, so that every backend shows the same.

Output
    Every place is memory of the caller's.  The filler writes it completely, or reports why not; it keeps no reference.

Pixels
    RGB.  With ``fidelity="exact"`` they are those of Pillow: ``open → convert("RGB") → crop → resize → crop →
    transpose``.  EXIF orientation is left alone.  `Backend.mean_tolerance` states the mean absolute difference from
    that, in grey levels, that a backend is allowed; the tests read it.
    With ``fidelity="fast"`` a JPEG may be decoded at 1/2, 1/4 or 1/8 when its window is at least that much larger
    than the result, and with cheaper chroma upsampling.

Failures
    They are told by row, and none hurts another row.  What a filler hands back goes to Pillow, so every backend accepts
    what Pillow accepts.  It refuses what Pillow refuses, except that damage below the window may go unnoticed: those
    rows are not decoded.  A file without an end is always noticed.

Threads
    `fill` may run in several threads at once.  Scratch memory is per thread.

A backend that decodes image by image derives from `fastdata.loaders.per_image.PerImageBackend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import BackendUnavailable
from fastdata.loaders.batch_decoder import BatchDecoder, ReadyBatches
from fastdata.loaders.encoded import Encoded
from fastdata.tables import PackedRows, Recipes
from fastdata.views.philox import Key

if TYPE_CHECKING:  # processes that convert images need no torch
    from fastdata.views.plan import Plan

__all__ = [
    "FIDELITIES",
    "Backend",
    "Encoded",
    "Fidelity",
    "Filled",
    "Filler",
    "HandBack",
]

Pixels: TypeAlias = npt.NDArray[np.uint8]

Ints: TypeAlias = npt.NDArray[np.int64]

Fidelity: TypeAlias = Literal["exact", "fast"]
FIDELITIES: tuple[Fidelity, ...] = ("exact", "fast")


class Backend(ABC):
    """Makes fillers; see the module docstring for the contract."""

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
    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> Filler:
        """Returns an object that decodes images, for an epoch.

        Args:
            plan: steps with which it draws views, for images of which those are not given; its `size` is the size of
                all these results.
            key: seed and epoch of such views.
            threads: number of threads that share a batch, if it `takes_batches`; 0 for the calling thread.
        """

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
    """Results of filling the N images of some `Recipes`.

    Attributes:
        refused: by row, why an image was not stored: a final error, or `HandBack`.
        read_bytes: int64, (N,): encoded bytes of each image, in the first of the rows that share it.
        read_s: seconds spent reading, summed over threads.
        decode_s: seconds spent drawing views and decoding, summed over threads.
        records: N unpacked records if `Recipes.kept` asked: b"" for an image that can have none, None if not made.
        cached: number of rows whose image came from a cache of such records.
        packed: what a device needs to decode rows, if `Recipes.packed` asked for it.
    """

    refused: Mapping[int, Exception]
    read_bytes: Ints
    read_s: float = 0.0
    decode_s: float = 0.0
    records: Sequence[bytes | None] = ()
    cached: int = 0
    packed: PackedRows | None = None


class HandBack(Exception):
    """Pillow must decode this image, or refuse it."""


class Filler(Protocol):
    """Reads, decodes, changes and stores many images with one call, which several threads may make at once.

    Rows of an array are for the native core's filler alone.

    Attributes:
        takes_batches: it is to get whole batches, since it shares them among threads of its own; others get parts of
            one from several threads.
        reads_records: it decodes unpacked records (docs/format.md) as it decodes JPEGs, and makes them where
            `Recipes.kept` asks; `DataLoader(cache=…)` works with such.
    """

    takes_batches: bool
    reads_records: bool

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; one that it refuses leaves its neighbours unharmed."""

    def close(self, ended: bool = True) -> None:
        """Gives up its threads; waits for them if the work has ended, abandons them if one may hang in a read.

        What it is asked to fill afterwards it fills in the calling thread.
        """
