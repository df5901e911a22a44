"""Numbers that a batch's samples draw as torch's worker process would, before any of them is decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.jobs import stop_if_cancelled
from fastdata.sources.protocol import FileRanges, ImageSource, file_ranges
from fastdata.sources.recognise import has_file_ranges
from fastdata.system.files import read_at
from fastdata.views.draw import ImageTooSmall, draw_view, draw_views
from fastdata.views.given import Given
from fastdata.views.header import parse_header
from fastdata.views.plan import Size
from fastdata.views.view import View, views_of

__all__ = ["GivenNumbers"]

_HEAD_BYTES = 4096  # holds the headers of most files; the sample of another is read


class GivenNumbers:
    """The numbers of a batch's samples; None for each where views are drawn by seed, epoch and sample.

    Args:
        config: the pipeline's configuration.
        number: the batch's number.
        indices: its samples.
    """

    def __init__(self, config: PipelineConfig, number: int, indices: Sequence[int]) -> None:
        self._config, self._number, self._indices = config, number, list(indices)
        self._given: list[Given | None] | None = None

    def draw_in_turn(self, read_size: Callable[[int], Size | None] | None) -> None:
        """Draws the numbers of all samples when the batch's turn has come.

        Args:
            read_size: reads the sample at a position for its image's (height, width), None if it cannot be read; None
                draws nothing, since there will be no batch.
        """
        workers, following = self._config.torchs_workers, self._config.plan.following
        assert workers is not None
        assert following is not None
        sizes: list[Size | None] = []
        try:
            if read_size is not None:
                self._find_sizes(read_size, sizes)
        finally:  # also after an error: what came before it draws, and the turn must be passed on
            given: list[Given | None] = [None] * len(self._indices)
            with workers.turn(self._number) as generators:
                for position, size in enumerate(sizes):
                    with suppress(ImageTooSmall):  # told with the sample
                        given[position] = None if size is None else following.draw(generators, size)
                    if given[position] is None and self._config.on_error == "raise":
                        break  # as torch's worker process does
            self._given = given

    def _find_sizes(self, read_size: Callable[[int], Size | None], sizes: list[Size | None]) -> None:
        """Appends the sizes of all images; raises what the source does, after those before."""
        source, arrays = self._config.source, self._config.arrays
        if arrays is not None:
            sizes += [arrays.image_size] * len(self._indices)
            return
        places = self._places() if has_file_ranges(source) else None
        for position, index in enumerate(self._indices):
            stop_if_cancelled()
            place = places[position] if places else _place(source, index) if places is not None else None
            size = None if place is None else _size_in_file(*place)
            sizes.append(read_size(position) if size is None else size)

    def _places(self) -> list[tuple[Any, int]]:
        """Path and offset of each image; [] if one index is bad, so that they are asked for one by one."""
        try:
            return _as_places(file_ranges(self._config.source, self._indices))
        except Exception:  # noqa: BLE001 - the source's, raised again for its own sample
            return []

    @property
    def is_complete(self) -> bool:
        """True if the numbers of all samples are given, or none are to be."""
        return self._given is None or None not in self._given

    def all(self) -> tuple[list[Given | None] | None, npt.NDArray[np.int64] | None]:
        """The numbers of all samples, and those of their views, (N, operations, GIVEN_NUMBERS); None if none are."""
        if self._given is None:
            return None, None
        return self._given, np.stack([each.numbers[0] for each in self._given if each is not None])

    def of(self, samples: Sequence[tuple[int, int]]) -> list[Given | None] | None:
        """The numbers of samples at (position, index); None for one that stands in for another, or for all of them."""
        if self._given is None:
            return None
        return [self._given[at] if self._indices[at] == index else None for at, index in samples]

    def views(self, samples: Sequence[tuple[int, int, int, tuple[int, int]]]) -> list[View]:
        """Draws the views of samples at (position, index, occurrence, (width, height)).

        Raises:
            ImageTooSmall: a crop is larger than an image.
        """
        ops, key = self._config.plan.ops, self._config.key
        given = self.of([sample[:2] for sample in samples])
        if given is None:
            _, indices, occurrences, sizes = (np.array(column, np.int64) for column in zip(*samples, strict=True))
            return views_of(draw_views(ops, sizes, indices, key=key, occurrences=occurrences))
        numbers = [None if own is None else own.numbers[0] for own in given]
        return [
            draw_view(ops, size, index, occurrence, key=key, given=own)
            for (_, index, occurrence, size), own in zip(samples, numbers, strict=True)
        ]


def _as_places(files: FileRanges) -> list[tuple[Any, int]]:
    offsets = [0] * len(files.paths) if files.offsets is None else files.offsets
    return [(path, int(offset)) for path, offset in zip(files.paths, offsets, strict=True)]


def _place(source: ImageSource, index: int) -> tuple[Any, int]:
    return _as_places(file_ranges(source, [index]))[0]


def _size_in_file(path: str | os.PathLike[str], offset: int) -> Size | None:
    """(height, width) of an image from its header; None if it has to be read otherwise, or cannot be."""
    header = parse_header(read_at(path, offset, _HEAD_BYTES))
    return None if header is None else (header.height, header.width)
