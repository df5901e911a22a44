"""One row of `Recipes` at a time: its encoded image, its pixels stored, and Pillow where a filler refuses it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from fastdata.loaders.backend import Backend, Encoded, Filler, HandBack, Pixels
from fastdata.loaders.fallback import by_pillow, inspect
from fastdata.loaders.unpacked import as_file
from fastdata.native import available, load
from fastdata.system.files import read_file
from fastdata.tables import EffectTable, Format, Recipes
from fastdata.views.view import View, view_of, windows_of

__all__ = [
    "as_pixels",
    "decode_each",
    "encoded_at",
    "fill_by_pillow",
    "fill_rows",
    "pixels_at",
    "put",
    "store",
    "view_at",
]


def encoded_at(recipes: Recipes, row: int) -> Encoded:
    """Returns the encoded image of a row, read from its file if it is not in memory.

    Raises:
        OSError: it cannot be read, has another checksum, or is no image.
    """
    if recipes.parsed is not None and recipes.parsed[row] is not None:
        return recipes.parsed[row]  # type: ignore[no-any-return]
    data = None if recipes.data is None else recipes.data[row]
    if data is None:
        if recipes.paths is None:
            raise HandBack("it is in no file and not encoded; only the native filler takes rows of an array")
        columns = (recipes.offsets, 0), (recipes.lengths, -1), (recipes.crcs, -1)
        offset, length, crc = (otherwise if column is None else int(column[row]) for column, otherwise in columns)
        data = read_file(recipes.paths[row], offset, length)
        if crc >= 0 and crc != google_crc32c.value(data):
            raise OSError(f"{recipes.paths[row]}: the checksum of {len(data)} bytes from byte {offset} on is wrong")
    return inspect(as_file(data))


def view_at(recipes: Recipes, row: int) -> View:
    """Returns the view of a row whose view is given."""
    assert recipes.windows is not None
    return view_of(recipes.windows, row)


def store(recipes: Recipes, row: int, pixels: Pixels) -> None:
    """Does a row's effects to contiguous RGB pixels (height, width, 3), and stores them at its place.

    Raises:
        NativeMissing: there are effects, or gaps between rows, and no native core.
    """
    effects = None if recipes.effects is None else recipes.effects[row : row + 1]
    put(pixels, int(recipes.out[row]), recipes.format, effects)


def put(pixels: Pixels, address: int, format_: Format, effects: EffectTable | None = None) -> None:
    """Does effects, (1, K), to contiguous RGB pixels (height, width, 3), and stores them at an address; see `store`."""
    if available() is not None or (effects is not None and effects.size) or any(format_.strides):
        load().convert(pixels, address, format_, effects)
        return
    height, width, _ = pixels.shape
    table, channels = format_.table, format_.channels
    out = _memory(address, (height, width, channels), np.dtype(np.uint8) if table is None else table.dtype)
    if format_.channels_first:
        out = out.reshape(channels, height, width).transpose(1, 2, 0)
    for channel in range(channels):
        levels = pixels[..., channel]
        out[..., channel] = levels if table is None else table[channel][levels]


def pixels_at(recipes: Recipes, row: int, size: tuple[int, int]) -> Pixels | None:
    """Returns a row's place as RGB pixels (height, width, 3), if that is what is stored there, unchanged."""
    format_, effects = recipes.format, recipes.effects
    is_plain = format_.table is None and format_.channels == 3 and not format_.channels_first
    if not is_plain or any(format_.strides) or (effects is not None and effects.size):
        return None
    return _memory(int(recipes.out[row]), (*size, 3), np.dtype(np.uint8))


def _memory(address: int, shape: tuple[int, int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    size = int(np.prod(shape)) * dtype.itemsize
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(shape)


def fill_by_pillow(
    recipes: Recipes, row: int, refusal: Exception | None = None, *, image: Encoded | None = None
) -> Exception | None:
    """Has Pillow decode a row with a given view, unless its refusal is final; returns the error or None.

    Args:
        recipes: the images.
        row: the row.
        refusal: why a filler has not stored it.
        image: its encoded image, if that is known; else it is found.
    """
    try:
        image = encoded_at(recipes, row) if image is None else image
        view = view_at(recipes, row)
        if view.window_px[2] > image.width or view.window_px[3] > image.height:
            return OSError(f"{image.width} × {image.height} pixels: the file has changed since it was opened")
        pixels = np.empty((*view.size, 3), np.uint8)
        if (error := by_pillow(image, view, pixels, refusal)) is None:
            store(recipes, row, pixels)
    except Exception as problem:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
        return problem
    return error


def fill_rows(filler: Filler, recipes: Recipes) -> dict[int, Exception]:
    """Fills rows with given views by a filler or, where that refuses one, by Pillow; returns the errors by row."""
    refused = filler.fill(recipes).refused
    outcomes = {row: fill_by_pillow(recipes, row, refusal) for row, refusal in refused.items()}
    return {row: error for row, error in outcomes.items() if error is not None}


def decode_each(
    backend: Backend, images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]
) -> list[Exception | None]:
    """Decodes images in the calling thread, by a backend or, where that refuses one, by Pillow.

    Args:
        backend: the backend.
        images: N encoded images.
        views: N views.
        out: N contiguous uint8 arrays (height, width, 3) of the views' sizes; an (N, H, W, 3) array is one.

    Returns:
        N entries: None, or the exception that stopped that image.
    """
    if not images:
        return []
    filler = backend.filler(threads=0)
    try:
        errors = fill_rows(filler, as_pixels(images, views, out))
    finally:
        filler.close()
    return [errors.get(row) for row in range(len(images))]


def as_pixels(images: Sequence[Encoded], views: Sequence[View], out: Sequence[Pixels]) -> Recipes:
    """Describes images that are to become plain pixels; the arguments are those of `decode_each`."""
    return Recipes(
        data=[image.data for image in images],
        parsed=images,
        windows=windows_of(views),
        format=Format(),
        out=np.array([place.ctypes.data for place in out], np.uint64),
    )
