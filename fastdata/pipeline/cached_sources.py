"""The cache of unpacked JPEGs for images that a dataset's own code opens: they are decoded from their records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.loaders.backend import DecodedSources, DecodeThreads, SourceBatch, SourceDecoder
from fastdata.pipeline.record_cache import FileState, RecordCache, file_state

__all__ = ["CachedSources"]


class CachedSources:
    """A source decoder that decodes what a cache has from records, and has it keep a share of the rest.

    Args:
        decoder: a decoder that reads and makes records.
        cache: the cache.
        turn: the third whose turn it is, as `RecordCache.begin_epoch` returned it.

    Attributes:
        reads_records: True, as of the decoder.
    """

    reads_records = True

    def __init__(self, decoder: SourceDecoder, cache: RecordCache, turn: int) -> None:
        self._decoder, self._cache, self._turn = decoder, cache, turn

    def pool(self, threads: int) -> DecodeThreads:
        """Returns threads for `decode_sources`; see `SourceDecoder`."""
        return self._decoder.pool(threads)

    def decode_sources(self, batch: SourceBatch, *, pool: Any = None) -> DecodedSources:
        """Decodes N images; see `SourceDecoder`.  What a record does not give is decoded from its file."""
        states = _states_of(batch)
        keys, found, cached, kept = self._cache.look(states, [0] * len(states), self._turn)
        if kept is not None:
            kept &= batch.same_as == np.arange(len(states))
        decoded = self._decoder.decode_sources(replace(self._with_records(batch, found, cached), kept=kept), pool=pool)
        errors, read_bytes = list(decoded.errors), decoded.read_bytes
        failed = np.array([error is not None for error in errors], np.bool_)
        if kept is not None and decoded.records:
            for row in np.flatnonzero(kept & ~failed).tolist():
                if (record := decoded.records[row]) is not None:
                    self._cache.add_unchanged(keys[row], record, batch.origins[row], states[row])
        if (wrong := cached & failed).any():
            self._cache.forget(keys[wrong])
            rows = np.flatnonzero(wrong)
            again = self._decoder.decode_sources(_rows_of(batch, rows), pool=pool)
            read_bytes[rows] = again.read_bytes
            for row, error in zip(rows.tolist(), again.errors, strict=True):
                errors[row] = error
        return DecodedSources(errors, read_bytes, int(np.count_nonzero(cached & ~failed)))

    def _with_records(self, batch: SourceBatch, found: npt.NDArray[Any], cached: npt.NDArray[np.bool_]) -> SourceBatch:
        """The batch with records in place of the images that have one."""
        if not cached.any():
            return batch
        paths, data, origins = list(batch.paths), list(batch.data), list(batch.origins)
        for row in np.flatnonzero(cached).tolist():
            paths[row], data[row], origins[row] = self._cache.path(int(found["file"][row])), None, ""
        offsets, lengths, crcs = self._cache.places(found, cached)
        return replace(batch, paths=paths, data=data, origins=origins, offsets=offsets, lengths=lengths, crcs=crcs)


def _states_of(batch: SourceBatch) -> list[FileState | None]:
    """States of the files, when they were opened."""
    stamps = batch.stamps if batch.stamps is not None else [None] * len(batch.paths)
    return [
        file_state(origin, *stamp[1:]) if origin and stamp is not None else None
        for origin, stamp in zip(batch.origins, stamps, strict=True)
    ]


def _rows_of(batch: SourceBatch, rows: npt.NDArray[np.intp]) -> SourceBatch:
    """Some rows of a batch; all rows of one image are among them, or none."""
    place = {int(row): at for at, row in enumerate(rows)}
    chosen = rows.tolist()
    return replace(
        batch,
        paths=[batch.paths[row] for row in chosen],
        data=[batch.data[row] for row in chosen],
        origins=[batch.origins[row] for row in chosen],
        views=type(batch.views)(batch.views.columns.at(rows)),
        out=batch.out[rows],
        effects=batch.effects[rows] if batch.effects is not None else None,
        same_as=np.array([place.get(int(batch.same_as[row]), at) for at, row in enumerate(chosen)], np.int64),
        store=lambda row, pixels: batch.store(chosen[row], pixels),
        stamps=None,
    )
