"""Decoding many images into the rows of one batch, each with its own view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.loaders import create_backend
from fastdata.loaders.backend import Backend, Ints, Pixels, SourceDecoder
from fastdata.loaders.encoded_source import EncodedSource
from fastdata.loaders.per_image import HandBack, by_pillow
from fastdata.native import Format, Pool, Windows, load
from fastdata.views.draw import View
from fastdata.views.levels import Levels
from fastdata.views.plan import Interpolation
from fastdata.views.this_sample import count_decoded

__all__ = ["StoredRows", "decode_together", "decode_row", "decode_rows", "decode_source", "stored", "stored_format"]


@dataclass(frozen=True)
class StoredRows:
    """N images, and the batch that holds them.

    Attributes:
        sources: the files.
        windows: what is seen of them.
        filters: int8, (N,): Pillow's number of each resize's filter.
        levels: the arithmetic on their pixels.
        batch: (N, 3, height, width), contiguous or channels_last, of the arithmetic's dtype.
    """

    sources: Sequence[EncodedSource]
    windows: Windows
    filters: npt.NDArray[np.int8]
    levels: Levels
    batch: torch.Tensor

    @property
    def format(self) -> Format:
        """How an image is stored in its row."""
        return stored_format(self.levels, channels_first=self.batch.is_contiguous())

    def view(self, row: int) -> View:
        """Of one image."""
        window, resize, crop, flips = (tuple(column[row].tolist()) for column in self.windows)
        return View(
            window_px=window,
            resize_px=resize,
            crop_px=crop,
            flip_horizontal=bool(flips[0]),
            flip_vertical=bool(flips[1]),
            interpolation=Interpolation(int(self.filters[row])),
        )


def decode_rows(rows: StoredRows) -> dict[int, Exception]:
    """Decodes all in this thread; what went wrong, by row."""
    (refused,), _ = decode_together([rows], _source_decoder())
    outcomes = {row: decode_row(rows, row, refusal) for row, refusal in refused.items()}
    return {row: error for row, error in outcomes.items() if error is not None}


def decode_together(
    parts: Sequence[StoredRows], decoder: SourceDecoder, *, pool: Pool | None = None
) -> tuple[list[dict[int, Exception]], int]:
    """Decodes with as few calls as can be; several views of one image are decoded once.

    Args:
        parts: batches, for example of the first and the second views of the same images.
        decoder: who decodes.
        pool: its threads; None for the calling thread.

    Returns:
        For each part what was not decoded, by row; and the encoded bytes that were read.
    """
    refused: list[dict[int, Exception]] = [{} for _ in parts]
    alike: dict[tuple[Any, ...], list[tuple[int, int]]] = {}
    read = 0
    for number, part in enumerate(parts):
        kind = part.levels, part.batch.is_contiguous()
        for row, filter_ in enumerate(part.filters.tolist()):
            alike.setdefault((*kind, filter_), []).append((number, row))
    for (*_, filter_), places in alike.items():
        places = _neighbours(parts, places)
        sizes = np.zeros(len(places), np.int64)
        errors = _decode_alike(parts, places, Interpolation(filter_), decoder, pool, sizes)
        read += int(sizes.sum())
        for (number, row), error in zip(places, errors, strict=True):
            if error is not None:
                refused[number][row] = error
    return refused, read


def _image_of(parts: Sequence[StoredRows], place: tuple[int, int]) -> Any:
    """What rows of one encoded image have in common."""
    source = parts[place[0]].sources[place[1]]
    return source.path if source.data is None else id(source.data)


def _neighbours(parts: Sequence[StoredRows], places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same rows, those of one image side by side."""
    together: dict[Any, list[tuple[int, int]]] = {}
    for place in places:
        together.setdefault(_image_of(parts, place), []).append(place)
    return [place for each in together.values() for place in each]


def _decode_alike(
    parts: Sequence[StoredRows],
    places: Sequence[tuple[int, int]],
    interpolation: Interpolation,
    decoder: SourceDecoder,
    pool: Pool | None,
    read_bytes: Ints,
) -> list[Exception | None]:
    sources = [parts[number].sources[row] for number, row in places]
    same_as, first = np.arange(len(places)), 0
    for at in range(1, len(places)):
        if _image_of(parts, places[at]) != _image_of(parts, places[first]):
            first = at
        same_as[at] = first
    columns = [
        np.stack([parts[number].windows[column][row] for number, row in places])
        for column in range(len(Windows._fields))
    ]
    batches = [part.batch for part in parts]
    strides = [batch.stride(0) * batch.element_size() for batch in batches]
    return decoder.decode_sources(
        [source.path if source.data is None else "" for source in sources],
        [source.data for source in sources],
        Windows(*columns),
        np.array([batches[number].data_ptr() + row * strides[number] for number, row in places], np.uint64),
        format=parts[places[0][0]].format,
        interpolation=interpolation,
        pool=pool,
        same_as=same_as,
        read_bytes=read_bytes,
    )


def decode_row(
    rows: StoredRows, row: int, refusal: Exception | None = None, *, backend: Backend | None = None
) -> Exception | None:
    """Decodes one image, by a backend or, after the core's refusal, by Pillow; returns what went wrong."""
    view, source = rows.view(row), rows.sources[row]
    try:
        if refusal is not None and not isinstance(refusal, HandBack):
            return refusal
        image = source.encoded()
        if view.window_px[2] > image.width or view.window_px[3] > image.height:
            return OSError(f"{image.width} × {image.height} pixels: the file has changed since it was opened")
        pixels = np.empty((*view.size, 3), np.uint8)
        if backend is not None:
            (error,) = backend.decode([image], [view], [pixels])
        else:
            error = by_pillow(image, view, pixels, refusal)
        if error is None:
            load().convert(pixels, rows.batch[row].data_ptr(), rows.format)
    except Exception as problem:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
        return problem
    return error


@cache
def _native() -> Backend:
    return create_backend("native")


def _source_decoder() -> SourceDecoder:
    decoder = _native().source_decoder()
    assert decoder is not None
    return decoder


def decode_source(source: EncodedSource, view: View) -> Pixels:
    """RGB (height, width, 3) of a view.

    Raises:
        OSError: the file cannot be read or decoded; Pillow's own errors.
    """
    count_decoded()
    height, width = view.size
    array = np.empty((height, width, 3), np.uint8)
    (error,) = _native().decode([source.encoded()], [view], [array])
    if error is not None:
        if hasattr(error, "add_note"):  # since Python 3.11
            error.add_note(f"while decoding {source.location()}")
        raise error
    return array


def stored(pixels: Pixels, levels: Levels) -> torch.Tensor:
    """RGB pixels (height, width, 3) as the tensor (3, height, width) that torchvision would make of them."""
    if not levels.steps:
        return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)
    tensor = torch.empty((3, *pixels.shape[:2]), dtype=levels.dtype, device="cpu")
    load().convert(np.ascontiguousarray(pixels), tensor.data_ptr(), stored_format(levels))
    return tensor


def stored_format(levels: Levels, *, channels_first: bool = True) -> Format:
    """How the native core stores pixels after some arithmetic."""
    if not levels.steps:
        return Format(channels_first=channels_first)
    table = levels.table()
    numpy_knows: Any = table.view(torch.int16) if table.dtype is torch.bfloat16 else table
    return Format(channels_first=channels_first, table=numpy_knows.numpy())
