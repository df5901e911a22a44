"""backend="auto": a rule, which costs nothing and gives the same backend in every run; `fastdata bench` measures."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.loaders import AUTO_ORDER, Backend, Fidelity, auto_backend, create_backend
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource

__all__ = ["IN_MEMORY", "BackendChoice", "choose_backend"]

IN_MEMORY = "pixels are in memory, nothing is decoded"


@dataclass(frozen=True, kw_only=True)
class BackendChoice:
    """The chosen backend, and the reason for the choice.

    Attributes:
        backend: the backend, ready to decode.
        reason: the reason in words, for `explain()`.
    """

    backend: Backend
    reason: str


def choose_backend(source: ImageSource, *, fidelity: Fidelity) -> BackendChoice:
    """Takes the first backend of `AUTO_ORDER` that is available; no sample is read and nothing is timed.

    Args:
        source: the samples; those in memory are made into batches by the native core.
        fidelity: see `fastdata.DataLoader`.
    """
    if isinstance(source, ArraySource):
        return BackendChoice(backend=create_backend("native"), reason=IN_MEMORY)
    reason = f"the first of {', '.join(AUTO_ORDER)} that is available"
    return BackendChoice(backend=auto_backend(fidelity), reason=reason)
