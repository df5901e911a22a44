"""Views: the window of an image, its resize, crop and flips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastdata.tables import Windows
from fastdata.views.resampling import BLACK, Interpolation, Outside, Padding

__all__ = ["View", "view_of", "views_of", "windows_of"]


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

    @property
    def is_resized(self) -> bool:
        """True if the window is resized, or flipped where a resize would come."""
        left, top, right, bottom = self.window_px
        return self.resize_px != (right - left, bottom - top) or any(self.window_flips)

    def columns(self) -> tuple[Any, ...]:
        """The view's values in each of the native core's columns."""
        return (
            self.window_px,
            self.resize_px,
            self.crop_px,
            (self.flip_horizontal, self.flip_vertical, *self.window_flips),
            self.interpolation.value,
            self.outside.numbers(),
        )

    # ---- further steps: each gives the view that shows what it shows, or None if no view does

    def cropped(self, box: tuple[int, int, int, int], outside: Outside = BLACK) -> View | None:
        """Returns the view after a crop of what it shows.

        Args:
            box: (left, top, right, bottom) in pixels of the result so far; it may reach outside.
            outside: fill of what lies outside.
        """
        left, top, right, bottom = box
        height, width = self.size
        if right <= left or bottom <= top or self.is_beside:
            return None
        if self.flip_horizontal:
            left, right = width - right, width - left
        if self.flip_vertical:
            top, bottom = height - bottom, height - top
        if not self._may_show(left < 0, top < 0, right > width, bottom > height, outside):
            return None
        x, y = self.crop_px[:2]
        pads = left < 0 or top < 0 or right > width or bottom > height
        crop = (x + left, y + top, x + right, y + bottom)
        seen = replace(self, crop_px=crop, outside=outside if pads else self.outside)
        return seen if self.is_resized else seen._folded()

    def _may_show(self, left: bool, top: bool, right: bool, bottom: bool, outside: Outside) -> bool:
        """True if a crop may reach outside on some sides: nothing that was cut off before may appear there."""
        if not (left or top or right or bottom):
            return True
        x, y, x_end, y_end = self.crop_px
        width, height = self.resize_px
        cut_off = (left and x > 0) or (top and y > 0) or (right and x_end < width) or (bottom and y_end < height)
        return not cut_off and (outside == self.outside or not self.reaches_out)

    def _folded(self) -> View | None:
        """Moves the crop into the window, which is not resized; None if the crop does not overlap the image."""
        x, y, right, bottom = self.window_px
        width, height = right - x, bottom - y
        crop = self.crop_px
        left, top = min(max(crop[0], 0), width), min(max(crop[1], 0), height)
        inside = (left, top, min(max(crop[2], 0), width), min(max(crop[3], 0), height))
        if inside[2] <= left or inside[3] <= top:
            return None
        return replace(
            self,
            window_px=(x + left, y + top, x + inside[2], y + inside[3]),
            resize_px=(inside[2] - left, inside[3] - top),
            crop_px=(crop[0] - left, crop[1] - top, crop[2] - left, crop[3] - top),
        )

    def resized(self, size: tuple[int, int], interpolation: Interpolation) -> View | None:
        """Returns the view after a resize to (width, height); None after another resize or a crop with padding."""
        left, top, right, bottom = self.window_px
        if self.is_resized or self.crop_px != (0, 0, right - left, bottom - top):
            return None
        return replace(
            self,
            resize_px=size,
            crop_px=(0, 0, *size),
            interpolation=interpolation,
            window_flips=(self.flip_horizontal, self.flip_vertical),
            flip_horizontal=False,
            flip_vertical=False,
        )

    def flipped(self, *, horizontally: bool = False, vertically: bool = False) -> View:
        """Returns the view after a flip."""
        return replace(
            self,
            flip_horizontal=self.flip_horizontal != horizontally,
            flip_vertical=self.flip_vertical != vertically,
        )


def windows_of(views: Sequence[View]) -> Windows:
    """Converts single views to columns."""
    return Windows.of([view.columns() for view in views])


def view_of(windows: Windows, row: int) -> View:
    """Returns the view of one row."""
    window, resize, crop, flips, filter_, outside = (column[row].tolist() for column in windows)
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


def views_of(windows: Windows) -> list[View]:
    """Returns one view for each row."""
    return [view_of(windows, row) for row in range(len(windows.window_px))]


_INTERPOLATIONS = {each.value: each for each in Interpolation}
_PADDINGS = {each.value: each for each in Padding}
