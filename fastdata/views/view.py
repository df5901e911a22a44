"""Views: the window of an image, its resize, crop and flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastdata.tables import Windows
from fastdata.views.plan import BLACK, Interpolation, Outside, Padding

__all__ = ["View", "Views"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The window of one image, its resize, crop and flips.

    Attributes:
        window_px: (left, top, right, bottom) in source pixels, half-open, inside the image.
        resize_px: (width, height) the window is resized to.
        crop_px: (left, top, right, bottom) in resized pixels, half-open; `outside` fills the pixels beyond them.
        flip_horizontal: mirror left to right, last.
        flip_vertical: mirror top to bottom, last.
        interpolation: the resize's filter, always antialiased.
        window_flips: mirror the window left to right, and top to bottom, before it is resized.
        outside: fill of pixels outside the resized window.
    """

    window_px: tuple[int, int, int, int]
    resize_px: tuple[int, int]
    crop_px: tuple[int, int, int, int]
    flip_horizontal: bool
    flip_vertical: bool
    interpolation: Interpolation
    window_flips: tuple[bool, bool] = (False, False)
    outside: Outside = BLACK

    @classmethod
    def whole(cls, width: int, height: int) -> View:
        """Returns the view of a whole image, unchanged."""
        return cls(
            window_px=(0, 0, width, height),
            resize_px=(width, height),
            crop_px=(0, 0, width, height),
            flip_horizontal=False,
            flip_vertical=False,
            interpolation=Interpolation.BILINEAR,
        )

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the result."""
        left, top, right, bottom = self.crop_px
        return bottom - top, right - left

    @property
    def is_beside(self) -> bool:
        """True if the view contains no pixel of the image, only padding."""
        left, top, right, bottom = self.window_px
        return left >= right or top >= bottom

    @property
    def reaches_out(self) -> bool:
        """True if the crop reaches outside the resized window."""
        left, top, right, bottom = self.crop_px
        return left < 0 or top < 0 or right > self.resize_px[0] or bottom > self.resize_px[1]


@dataclass(frozen=True)
class Views:
    """The views of N samples, in the native core's columns."""

    columns: Windows

    def __len__(self) -> int:
        return len(self.columns.window_px)

    @classmethod
    def of(cls, views: Sequence[View]) -> Views:
        """Converts single views to columns."""
        return cls(
            Windows(
                np.array([view.window_px for view in views], np.int32).reshape(-1, 4),
                np.array([view.resize_px for view in views], np.int32).reshape(-1, 2),
                np.array([view.crop_px for view in views], np.int32).reshape(-1, 4),
                np.array(
                    [(view.flip_horizontal, view.flip_vertical, *view.window_flips) for view in views], np.uint8
                ).reshape(-1, 4),
                np.array([view.interpolation.value for view in views], np.int32),
                np.array([view.outside.numbers() for view in views], np.uint8).reshape(-1, 4),
            )
        )

    def row(self, number: int) -> View:
        """Returns one sample's view."""
        window, resize, crop, flips, filter_, outside = (column[number].tolist() for column in self.columns)
        padding, *levels = outside
        return View(
            window_px=tuple(window),
            resize_px=tuple(resize),
            crop_px=tuple(crop),
            flip_horizontal=bool(flips[0]),
            flip_vertical=bool(flips[1]),
            interpolation=_INTERPOLATIONS[filter_],
            window_flips=(bool(flips[2]), bool(flips[3])),
            outside=Outside(_PADDINGS[padding], *levels) if padding or any(levels) else BLACK,
        )

    def rows(self) -> list[View]:
        """Returns one `View` per sample."""
        return [self.row(number) for number in range(len(self))]


_INTERPOLATIONS = {each.value: each for each in Interpolation}
_PADDINGS = {each.value: each for each in Padding}
