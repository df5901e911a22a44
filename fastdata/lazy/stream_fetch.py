"""Makes the batches of an iterable dataset, whose images stay encoded until the dataset's own code needs tensors.

A stream cannot be asked for a sample again, so nothing is left for later: an image is decoded, natively, where the
stream's code makes a tensor of it, and only what its crops show.  Damage that only the decoder notices is raised there.
Order, shards, buffers and all random numbers are the stream's own: its fused transforms draw what their own code would.
"""

from __future__ import annotations

from typing import Any

from fastdata.lazy.batch_messages import ReportedBatch
from fastdata.lazy.fetch import REPORTED
from fastdata.lazy.sample_context import Notes, context

__all__ = ["StreamFetcher"]


class StreamFetcher:
    """Fetches with torch's fetcher for iterable datasets, and reports what was done to images in the first batches.

    Args:
        inner: torch's fetcher.
    """

    def __init__(self, inner: Any) -> None:
        self._inner, self._fetched = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, index: Any) -> Any:
        """Returns the batch; in a ReportedBatch for the first ones in which images were opened."""
        notes = Notes()
        with context.having(decodes_at_once=True, follows=True), context.noting(notes):
            batch = self._inner.fetch(index)
        self._fetched += 1
        if self._fetched > REPORTED or not (notes.opened or notes.decoded):
            return batch
        samples = len(index) if self._inner.auto_collation else 1
        return ReportedBatch(batch, notes.counts(samples))
