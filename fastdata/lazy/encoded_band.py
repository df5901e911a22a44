"""A channel of an RGB image that is still encoded."""

from __future__ import annotations

from typing import Any

from PIL.Image import Image

from fastdata.lazy.pillow_likeness import MODE, PIXELS, StandsForPillows, copy_of_info, name_as_pillows

__all__ = ["Band"]


class Band(Image, metaclass=StandsForPillows):
    """The grey image of a channel, decoded with the whole image when its pixels are needed.

    Args:
        whole: an image in RGB that nobody else has, so that it is not changed meanwhile.
        number: 0 to 2.
    """

    pillows: type[Image] = Image
    _pixels: Any = None

    def __init__(self, whole: Image, number: int) -> None:
        super().__init__()
        self._whole: Image | None = whole
        self._like, self._number, self._size = whole.copy(), number, whole.size  # the first has no pixels
        self._info: dict[Any, Any] | None = None
        setattr(self, MODE, "L")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class that `isinstance` sees."""
        return type(self).pillows

    @property
    def info(self) -> dict[Any, Any]:
        """The metadata of the whole image; read at first use."""
        if self._info is None:
            self._info = copy_of_info(self._like.info)
        return self._info

    @info.setter
    def info(self, value: dict[Any, Any]) -> None:
        self._info = value

    def _get_pixels(self) -> Any:
        if self._pixels is None:
            self._pixels = self._whole.getchannel(self._number).im  # type: ignore[union-attr]
            self._whole = None
        return self._pixels

    def _set_pixels(self, pixels: Any) -> None:
        self._pixels = pixels

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.copy().__reduce_ex__(protocol)


setattr(Band, PIXELS, property(Band._get_pixels, Band._set_pixels))
name_as_pillows(Band)
