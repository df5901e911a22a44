"""A filler that decodes what a cache of unpacked JPEGs has from its records, and has it keep a share of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.loaders.backend import Filled, Filler
from fastdata.pipeline.record_cache import FileState, RecordCache, file_state, state_of
from fastdata.tables import Recipes

__all__ = ["CachedFiller"]


class CachedFiller:
    """A filler around another; see `fastdata.loaders.backend.Filler`.

    Args:
        filler: a filler that reads and makes records.
        cache: the cache, whose next epoch begins.
    """

    reads_records = True

    def __init__(self, filler: Filler, cache: RecordCache) -> None:
        self._filler, self._cache, self._turn = filler, cache, cache.begin_epoch()
        self.takes_batches = filler.takes_batches

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; see `Filler`."""
        files, states = _files_of(recipes)
        offsets = recipes.offsets.tolist() if recipes.offsets is not None else [0] * len(recipes)
        keys, found, cached, kept = self._cache.look(states, offsets, self._turn)
        if kept is not None and recipes.same_as is not None:
            kept &= recipes.same_as == np.arange(len(recipes))
        filled = self._filler.fill(replace(self._with_records(recipes, files, found, cached), kept=kept))
        for row, record in enumerate(filled.records):
            if record is not None and row not in filled.refused:
                self._cache.add_unchanged(keys[row], record, files[row], states[row])
        wrong = np.array(sorted(row for row in filled.refused if cached[row]), np.intp)
        if wrong.size:
            self._cache.forget(keys[wrong])
            filled = self._again(recipes, wrong, filled)
        return replace(filled, records=(), cached=int(np.count_nonzero(cached)) - wrong.size)

    def _again(self, recipes: Recipes, rows: npt.NDArray[np.intp], before: Filled) -> Filled:
        """Fills rows whose records are damaged, or gone, from their files."""
        again = self._filler.fill(replace(recipes.at(rows), packed=False))  # few, so the host decodes them
        refused = {row: error for row, error in before.refused.items() if row not in rows}
        refused |= {int(rows[at]): error for at, error in again.refused.items()}
        before.read_bytes[rows] = again.read_bytes
        return replace(
            before, refused=refused, read_s=before.read_s + again.read_s, decode_s=before.decode_s + again.decode_s
        )

    def close(self, ended: bool = True) -> None:
        """Closes the other filler; the cache goes on with the next epoch."""
        self._filler.close(ended)

    def _with_records(
        self, recipes: Recipes, files: Sequence[Any], found: npt.NDArray[Any], cached: npt.NDArray[np.bool_]
    ) -> Recipes:
        """The recipes with records in place of the images that have one."""
        if not cached.any():
            return recipes
        paths = list(recipes.paths if recipes.paths is not None else [""] * len(recipes))
        data, origins = list(recipes.data) if recipes.data is not None else None, list(files)
        for row in np.flatnonzero(cached).tolist():
            paths[row], origins[row] = self._cache.path(int(found["file"][row])), ""
            if data is not None:
                data[row] = None
        offsets, lengths, crcs = self._cache.places(found, cached, (recipes.offsets, recipes.lengths, recipes.crcs))
        return replace(recipes, paths=paths, data=data, origins=origins, offsets=offsets, lengths=lengths, crcs=crcs)


def _files_of(recipes: Recipes) -> tuple[Sequence[Any], list[FileState | None]]:
    """The file of each image, "" if it is not known, and that file's state: when it was opened, or else now."""
    files = recipes.origins if recipes.origins is not None else recipes.paths
    if files is None:
        return [""] * len(recipes), [None] * len(recipes)
    if recipes.stamps is None:
        now = {file: state_of(file) for file in set(files)}
        return files, [now[file] for file in files]
    known = zip(files, recipes.stamps, strict=True)
    return files, [file_state(file, *stamp[1:]) if file and stamp is not None else None for file, stamp in known]
