"""The cache of unpacked JPEGs for images that a dataset's own code opens: they are decoded from their records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.loaders.backend import DecodedSources, DecodeThreads, SourceBatch, SourceDecoder
from fastdata.loaders.unpacked import unpack
from fastdata.pipeline.record_cache import EPOCHS_TO_FILL, FileState, RecordCache, file_state, keys_of
from fastdata.pipeline.record_files import Keys
from fastdata.system.files import read_at, read_file

__all__ = ["CachedSources"]


class CachedSources:
    """A source decoder that decodes what a cache has from records, and has it keep a share of the rest.

    Args:
        decoder: a decoder that takes records in memory.
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
        keys = keys_of(states, [0] * len(states))
        there = np.array([state is not None for state in states], np.bool_)
        found = self._cache.find(keys)
        with_records, cached = self._with_records(batch, found, there & (found["length"] > 0))
        errors, read_bytes, _ = self._decoder.decode_sources(with_records, pool=pool)
        outcomes = list(errors)
        wrong = cached & np.array([error is not None for error in outcomes], np.bool_)
        if wrong.any():
            self._cache.forget(keys[wrong])
            rows = np.flatnonzero(wrong)
            again = self._decoder.decode_sources(_rows_of(batch, rows), pool=pool)
            read_bytes[rows] = again.read_bytes
            for row, error in zip(rows.tolist(), again.errors, strict=True):
                outcomes[row] = error
        if self._cache.takes_more:
            is_turn = keys[:, 0] % np.uint64(EPOCHS_TO_FILL) == np.uint64(self._turn)
            is_first = batch.same_as == np.arange(len(outcomes))
            wanted = np.flatnonzero(there & (found["file"] < 0) & is_turn & is_first).tolist()
            self._keep(batch, keys, states, [row for row in wanted if outcomes[row] is None])
        return DecodedSources(outcomes, read_bytes, int(np.count_nonzero(cached & ~wrong)))

    def _with_records(
        self, batch: SourceBatch, found: npt.NDArray[Any], cached: npt.NDArray[np.bool_]
    ) -> tuple[SourceBatch, npt.NDArray[np.bool_]]:
        """The batch with records in place of the images that have one; and which these are."""
        paths, data, origins = list(batch.paths), list(batch.data), list(batch.origins)
        read: dict[int, bytes | None] = {}  # by the first row of an image, which is decoded once
        for row in np.flatnonzero(cached).tolist():
            first = int(batch.same_as[row])
            if first not in read:
                entry = found[row]
                part = read_at(self._cache.path(int(entry["file"])), int(entry["offset"]), int(entry["length"]))
                is_whole = len(part) == entry["length"] and google_crc32c.value(part) == entry["crc"]
                read[first] = part if is_whole else None
            record = read[first]
            if record is None:
                cached[row] = False
                self._cache.forget(found[row : row + 1]["key"])
            else:
                paths[row], data[row], origins[row] = "", record, ""
        return (replace(batch, paths=paths, data=data, origins=origins) if cached.any() else batch), cached

    def _keep(self, batch: SourceBatch, keys: Keys, states: Sequence[FileState | None], rows: Sequence[int]) -> None:
        """Keeps records of files that have not changed since they were opened."""
        for row in rows:
            data = batch.data[row]
            try:
                record = unpack(data if data is not None else read_file(batch.paths[row]), restorable=False) or b""
            except OSError:  # it is gone
                continue
            self._cache.add_unchanged(keys[row], record, batch.origins[row], states[row])


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
