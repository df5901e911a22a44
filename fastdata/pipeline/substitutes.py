"""Samples that replace one that cannot be decoded, with on_error="replace"."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from fastdata.errors import PipelineError
from fastdata.views.philox import Key
from fastdata.views.streams import Stream, seeds

__all__ = ["none_decoded", "substitutes"]

_TRIED = 16


def substitutes(candidates: Sequence[int], index: int, key: Key) -> Iterator[int]:
    """Samples to try one after the other, the same in every run.

    Args:
        candidates: samples that the sampler may give.
        index: the sample that failed.
        key: seed and epoch.
    """
    for seed in seeds(key, Stream.SUBSTITUTE, [index] * _TRIED, range(_TRIED)):
        yield operator.index(candidates[seed % len(candidates)])


def none_decoded() -> PipelineError:
    """Error for a sample without a substitute, once all have been tried."""
    return PipelineError(f"{_TRIED} substitutes could not be decoded either")
