"""Decodes many images into the rows of one batch, each with its own view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.sample_context import context
from fastdata.loaders import create_backend
from fastdata.loaders.backend import Backend, Filled, Filler, HandBack, Ints, Pixels
from fastdata.loaders.native import decode_one
from fastdata.loaders.resample import see
from fastdata.loaders.rows import fill_by_pillow
from fastdata.native import load
from fastdata.tables import EFFECT, EffectTable, Format, PackedRows, Recipes, Windows, addresses
from fastdata.views.erased import Erased
from fastdata.views.given import Given
from fastdata.views.levels import Levels, stored_format
from fastdata.views.view import View, view_of, windows_of

__all__ = [
    "After",
    "Filling",
    "SeenImages",
    "StoredRows",
    "decode_rows",
    "decode_source",
    "drawn",
    "fill_from_pixels",
]


class Drawer(Protocol):
    """Draws the augmentations of images; `fastdata.pipeline.postprocess.Finish` is one."""

    @property
    def erases(self) -> bool:
        """True if rectangles may be erased."""
        ...

    def effects(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given] | None = None
    ) -> EffectTable | None:
        """Draws the effects on the pixels of N samples: (N, any number); None if there are none."""
        ...

    def erased(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given] | None = None
    ) -> list[Sequence[Erased]]:
        """Draws the erased rectangles of N finished images."""
        ...


@dataclass(frozen=True)
class After:
    """The augmentations of one image after its view, most not drawn yet: drawing a batch's at once costs little more.

    Attributes:
        by: draws them; None for no others than `effects`.
        index: the sample.
        occurrence: number of earlier occurrences of the sample in the epoch.
        given: numbers that were drawn already; all images of one `by` have some, or none has.
        effects: effects that come before them, (1, any number); None for none.
    """

    by: Drawer | None
    index: int = 0
    occurrence: int = 0
    given: Given | None = None
    effects: EffectTable | None = None

    @classmethod
    def drawn(cls, effects: EffectTable | None) -> After | None:
        """Returns those of an image with some effects, (1, any number), and nothing else; None if there are none."""
        return None if effects is None else cls(None, effects=effects)

    @property
    def erases(self) -> bool:
        """True if rectangles may be erased."""
        return self.by is not None and self.by.erases


class SeenImage(Protocol):
    """An encoded image with its view, arithmetic and augmentations; `fastdata.lazy.pending_tensor.Undecoded` is one."""

    source: EncodedSource
    view: View
    levels: Levels
    after: After | None
    index: Any


@dataclass(frozen=True)
class SeenImages:
    """N images of one size with their views; the columns have N rows.

    Attributes:
        sources: the encoded images.
        windows: their views.
        effects: effects on their pixels, (N, any number); None if there are none.
        levels: the arithmetic on their pixels.
        erased: for each image, rectangles filled after the arithmetic.
        indices: dataset indices of their samples.
    """

    sources: list[EncodedSource]
    windows: Windows
    effects: EffectTable | None
    levels: Levels
    erased: list[Sequence[Erased]]
    indices: list[Any]

    @classmethod
    def of(cls, images: Sequence[SeenImage]) -> SeenImages:
        """Collects images of one size and arithmetic, and draws their augmentations."""
        effects, erased = drawn([image.after for image in images])
        return cls(
            sources=[image.source for image in images],
            windows=windows_of([image.view for image in images]),
            effects=effects,
            levels=images[0].levels,
            erased=erased,
            indices=[image.index for image in images],
        )

    @classmethod
    def together(cls, parts: Sequence[SeenImages]) -> SeenImages:
        """Concatenates several collections, with the arithmetic of the first."""
        nothing = all(part.effects is None for part in parts)
        return cls(
            sources=[source for part in parts for source in part.sources],
            windows=Windows(*map(np.concatenate, zip(*(part.windows for part in parts), strict=True))),
            effects=None if nothing else _stacked([part.all_effects for part in parts]),
            levels=parts[0].levels,
            erased=[erased for part in parts for erased in part.erased],
            indices=[index for part in parts for index in part.indices],
        )

    @property
    def all_effects(self) -> EffectTable:
        """The effect table with one row per image; (N, 0) if there are no effects."""
        return self.effects if self.effects is not None else np.zeros((len(self.sources), 0), EFFECT)


@dataclass(frozen=True)
class StoredRows:
    """N images, and the batch (N, 3, height, width) that holds them, contiguous or channels_last.

    Attributes:
        images: the images.
        batch: the batch; if a device decodes what it can, uint8 in channels_last, for the other images.
        packed: receives what the device decodes; None where it decodes nothing.
    """

    images: SeenImages
    batch: torch.Tensor
    packed: PackedRows | None = None

    @property
    def format(self) -> Format:
        """The pixel format in which images are stored in their rows."""
        if self.packed is not None:
            return Format()
        return stored_format(self.images.levels, channels_first=self.batch.is_contiguous())

    def erase(self, row: int) -> None:
        """Fills the erased rectangles of a decoded image."""
        for each in self.images.erased[row]:
            each.apply(self.batch[row])

    @property
    def addresses(self) -> npt.NDArray[np.uint64]:
        """uint64 (N,): address of each batch row."""
        stride_bytes = self.batch.stride(0) * self.batch.element_size()
        return addresses(self.batch.data_ptr(), stride_bytes, len(self.batch))


def drawn(after: Sequence[After | None]) -> tuple[EffectTable | None, list[Sequence[Erased]]]:
    """Draws augmentations of N images: their effects, (N, any number) or None, and their erased rectangles."""
    tables: list[EffectTable | None] = [None] * len(after)
    erased: list[Sequence[Erased]] = [()] * len(after)
    rows_of: dict[int, list[int]] = {}
    for row, each in enumerate(after):
        if each is not None and each.by is not None:
            rows_of.setdefault(id(each.by), []).append(row)
    for rows in rows_of.values():
        some = [each for each in (after[row] for row in rows) if each is not None]
        by, numbers = some[0].by, [each.given for each in some if each.given is not None]
        assert by is not None
        columns = [each.index for each in some], [each.occurrence for each in some], numbers or None
        table = by.effects(*columns)
        for at, (row, own) in enumerate(zip(rows, by.erased(*columns), strict=True)):
            tables[row], erased[row] = None if table is None else table[at : at + 1], own
    for row, each in enumerate(after):
        if each is not None and each.effects is not None:
            own_table = tables[row]
            tables[row] = each.effects if own_table is None else np.concatenate([each.effects, own_table], axis=1)
    return _stacked(tables), erased


def _stacked(tables: Sequence[EffectTable | None]) -> EffectTable | None:
    """Concatenates effect tables, padded with empty effects (None: one row of them); None if all are None."""
    known = [table for table in tables if table is not None]
    if not known:
        return None
    rows = [len(table) if table is not None else 1 for table in tables]
    stacked = np.zeros((sum(rows), max(table.shape[1] for table in known)), EFFECT)
    for end, count, table in zip(np.cumsum(rows).tolist(), rows, tables, strict=True):
        if table is not None:
            stacked[end - count : end, : table.shape[1]] = table
    return stacked


@dataclass(frozen=True)
class Filling:
    """Rows of some batches that have one pixel format: what fills them, and where each is.

    Attributes:
        recipes: the recipes of N rows; those of one image are neighbours.
        sources: their encoded images.
        places: for each, its batch and the row there.
    """

    recipes: Recipes
    sources: list[EncodedSource]
    places: list[tuple[StoredRows, int]]

    @classmethod
    def of(cls, parts: Sequence[StoredRows]) -> list[Filling]:
        """Returns one for each pixel format, so that several views of one image are decoded together."""
        if not parts:
            return []
        places = [(part, row) for part in parts for row in range(len(part.batch))]
        whole = SeenImages.together([part.images for part in parts])
        out = np.concatenate([part.addresses for part in parts])
        fillings = []
        for format_, rows in _alike(parts).items():
            chosen, same_as = _neighbours(whole.sources, rows)
            sources = [whole.sources[row] for row in chosen]
            recipes = Recipes(
                paths=[source.path if source.data is None else "" for source in sources],
                data=[source.data for source in sources],
                origins=[source.origin for source in sources],
                stamps=[source.stamp for source in sources],
                same_as=same_as,
                windows=whole.windows.at(chosen),
                effects=whole.effects[chosen] if whole.effects is not None else None,
                format=parts[format_].format,
                out=out[chosen],
                packed=parts[format_].packed is not None,
            )
            fillings.append(cls(recipes, sources, [places[row] for row in chosen]))
        return fillings

    def split(self, images: int) -> list[Filling]:
        """Returns parts of at most so many images, with all rows of each."""
        assert self.recipes.same_as is not None
        firsts = np.flatnonzero(self.recipes.same_as == np.arange(len(self.sources)))
        return [self._at(rows) for rows in np.split(np.arange(len(self.sources)), firsts[images::images])]

    def _at(self, rows: npt.NDArray[np.intp]) -> Filling:
        chosen = rows.tolist()
        return Filling(
            self.recipes.at(rows), [self.sources[row] for row in chosen], [self.places[row] for row in chosen]
        )

    def fill(self, filler: Filler) -> Filled:
        """Has a filler fill the rows; those whose file has changed meanwhile are refused, too."""
        filled = filler.fill(self.recipes)
        refused = dict(filled.refused)
        for row, source in enumerate(self.sources):
            if row not in refused and source.has_changed():
                refused[row] = OSError(f"{source.location()} has changed since it was opened")
        for row in range(len(self.sources)):
            if row not in refused:
                self._erase(row)
        if filled.packed is not None:
            self._hand_out(filled.packed, refused)
        return replace(filled, refused=refused)

    def by_pillow(self, row: int, refusal: Exception) -> Exception | None:
        """Has Pillow decode a row that was refused, unless finally; returns the error or None."""
        source = self.sources[row]
        if source.only_core or not isinstance(refusal, HandBack):
            return OSError(str(refusal)) if source.only_core else refusal
        try:
            image = source.encoded()
        except Exception as problem:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
            return problem
        error = fill_by_pillow(self.recipes, row, refusal, image=image)
        if error is None:
            self._erase(row)
        return error

    def _hand_out(self, packed: PackedRows, refused: Mapping[int, Exception]) -> None:
        for row in np.flatnonzero(packed.sizes).tolist():
            if row not in refused:
                part, place = self.places[row]
                assert part.packed is not None
                part.packed.take(place, packed, row)

    def _erase(self, row: int) -> None:
        part, place = self.places[row]
        part.erase(place)


def decode_rows(part: StoredRows) -> list[Exception]:
    """Decodes all rows in this thread; returns the errors, in the order of the rows."""
    errors: dict[int, Exception] = {}
    for filling in Filling.of([part]):
        for row, refusal in filling.fill(_native().filler(threads=0)).refused.items():
            if (error := filling.by_pillow(row, refusal)) is not None:
                errors[filling.places[row][1]] = error
    return [errors[row] for row in sorted(errors)]


def _alike(parts: Sequence[StoredRows]) -> dict[int, list[int]]:
    """Groups rows, counted through all parts, by the first part that has the same format."""
    alike: dict[int, list[int]] = {}
    formats: dict[tuple[Levels, bool, bool], int] = {}
    row = 0
    for number, part in enumerate(parts):
        key = part.images.levels, part.batch.is_contiguous(), part.packed is not None
        first = formats.setdefault(key, number)
        alike.setdefault(first, []).extend(range(row, row + len(part.batch)))
        row += len(part.batch)
    return alike


def _neighbours(sources: Sequence[EncodedSource], rows: Sequence[int]) -> tuple[npt.NDArray[np.intp], Ints]:
    """Groups rows by image; returns them in that order, with the position of each image's first row."""
    together: dict[Any, list[int]] = {}
    for row in rows:
        source = sources[row]
        together.setdefault(source.path if source.data is None else id(source.data), []).append(row)
    sizes = [len(each) for each in together.values()]
    firsts = np.cumsum([0, *sizes[:-1]])
    return np.array([row for each in together.values() for row in each], np.intp), np.repeat(firsts, sizes)


def fill_from_pixels(part: StoredRows) -> None:
    """Fills all rows from the pixels of their sources, which must be there."""
    for row, source in enumerate(part.images.sources):
        assert source.pixels is not None
        view, (height, width) = view_of(part.images.windows, row), source.pixels.shape[:2]
        pixels = source.pixels if view == View.whole(width, height) else see(source.pixels, view)
        effects = None if part.images.effects is None else part.images.effects[row : row + 1]
        load().convert(pixels, part.batch[row].data_ptr(), part.format, effects)
        part.erase(row)


@cache
def _native() -> Backend:
    return create_backend("native")


def decode_source(source: EncodedSource, view: View, *, for_pillow: bool = False) -> Pixels:
    """Decodes a view as RGB (height, width, 3) into new memory, also to give Pillow its pixels.

    If another view is decoded or expected, the whole image is decoded once and its pixels are kept.  If this thread's
    code has asked for a view twice, those of each view are kept, too.

    Raises:
        OSError: the file cannot be read or decoded; Pillow's own errors.
    """
    latest, kept = source.latest
    is_again = latest == view
    if is_again and kept is not None:
        return np.array(kept)
    if not source.is_decoded:
        context.notes.note_alone(source, view, for_pillow=for_pillow, at_once=context.decodes_at_once)
    if source.pixels is None and source.header is not None:
        if (source.is_seen and not is_again) or source.is_kept or context.several_views:
            source.pixels = _decoded(source, View.whole(source.header.width, source.header.height))
        source.is_seen = True
    if source.pixels is None:
        pixels = _decoded(source, view)
    elif view == View.whole(source.pixels.shape[1], source.pixels.shape[0]):
        return np.array(source.pixels)
    else:
        pixels = see(source.pixels, view)
    context.repeats_views |= is_again
    source.latest = view, np.array(pixels) if context.repeats_views else None
    return pixels


def _decoded(source: EncodedSource, view: View) -> Pixels:
    height, width = view.size
    array = np.empty((height, width, 3), np.uint8)
    if (error := decode_one(source.encoded(), view, array)) is not None:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"while decoding {source.location()}")
        raise error
    return array
