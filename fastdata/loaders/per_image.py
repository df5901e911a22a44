"""Backends that decode image by image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from fastdata.loaders import pillow
from fastdata.loaders.backend import Backend, Encoded, Filled, HandBack, Pixels
from fastdata.loaders.rows import encoded_at, pixels_at, store, view_at
from fastdata.tables import Recipes
from fastdata.views.draw import draw_view
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.view import View

__all__ = ["PerImageBackend", "PerImageFiller"]

DecodeView: TypeAlias = Callable[[Encoded, View, Pixels], None]


class PerImageBackend(Backend):
    """A backend that supplies only `decode_view`."""

    @abstractmethod
    def decode_view(self, image: Encoded, view: View, out: Pixels) -> None:
        """Decodes one image into `out`, contiguous uint8 (height, width, 3); it keeps no reference to it.

        Raises:
            HandBack: Pillow must decode this image.
            Exception: the image cannot be decoded at all.
        """

    def filler(self, plan: Plan | None = None, key: Key | None = None, *, threads: int) -> PerImageFiller:
        return PerImageFiller(self.decode_view, plan, key)


class PerImageFiller:
    """Fills one image after the other; see `fastdata.loaders.backend.Filler`.

    Args:
        decode_view: as of `PerImageBackend`.
        plan, key: as of `Backend.filler`.
    """

    takes_batches = reads_records = False

    def __init__(self, decode_view: DecodeView, plan: Plan | None, key: Key | None) -> None:
        self._decode_view, self._plan, self._key = decode_view, plan, key

    def fill(self, recipes: Recipes) -> Filled:
        """Stores N images; see `Filler`."""
        refused: dict[int, Exception] = {}
        read_bytes = np.zeros(len(recipes), np.int64)
        image: Encoded | None = None
        for row in range(len(recipes)):
            try:
                if recipes.same_as is None or recipes.same_as[row] == row:
                    image = None  # also if the next one cannot be read
                    image = encoded_at(recipes, row)
                    read_bytes[row] = len(image.data)
                if image is None:
                    raise HandBack("the image could not be read")
                self._fill_row(recipes, row, image, self._view(recipes, row, image))
            except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds; each is this image's
                refused[row] = error
        return Filled(refused=refused, read_bytes=read_bytes)

    def close(self, ended: bool = True) -> None:
        """Nothing is open."""

    def _view(self, recipes: Recipes, row: int, image: Encoded) -> View:
        if recipes.windows is not None:
            return view_at(recipes, row)
        if self._plan is None or self._key is None or recipes.indices is None or recipes.occurrences is None:
            raise HandBack("its view is not given, and the filler was made without a plan, or is told no sample")
        given = None if recipes.given is None else recipes.given[row]
        sample = recipes.indices[row], recipes.occurrences[row]
        return draw_view(self._plan.ops, (image.width, image.height), *sample, key=self._key, given=given)

    def _fill_row(self, recipes: Recipes, row: int, image: Encoded, view: View) -> None:
        pillow.check_pixel_count(image.width, image.height)
        if view.is_beside:
            raise HandBack("nothing of the image is seen, but what is beside it")
        place = pixels_at(recipes, row, view.size)
        pixels = np.empty((*view.size, 3), np.uint8) if place is None else place
        self._decode_view(image, view, pixels)
        if place is None:
            store(recipes, row, pixels)
