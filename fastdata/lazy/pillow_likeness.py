"""Likeness of encoded images to Pillow's: classes, pixel access and metadata that code cannot tell apart."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from PIL.Image import Image

__all__ = ["MODE", "PIXELS", "PixelsOnDemand", "StandsForPillows", "copy_of_info", "name_as_pillows"]

# Names of the attributes of Pillow's pixels and mode, which are behind properties since version 11.
PIXELS = "_im" if isinstance(vars(Image).get("im"), property) else "im"
MODE = "_mode" if isinstance(vars(Image).get("mode"), property) else "mode"


class StandsForPillows(type(Image)):  # type: ignore[misc]
    """The metaclass of encoded images: equal to the class of Pillow's that they stand for, and found where that is.

    torchvision's v2 and programs look the type of an image up in dictionaries: ``{PIL.Image.Image: 7}``.
    """

    pillows: type[Image]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.pillows

    def __hash__(cls) -> int:
        return hash(cls.pillows)


def name_as_pillows(cls: Any) -> None:
    """Gives a class and its methods the names that the user knows from messages: those of its `pillows`."""
    cls.__module__ = cls.pillows.__module__
    cls.__name__ = cls.__qualname__ = cls.pillows.__name__
    for name, method in vars(cls).items():
        if isinstance(method, FunctionType) and isinstance(theirs := getattr(cls.pillows, name, None), FunctionType):
            method.__qualname__ = theirs.__qualname__


def copy_of_info(info: dict[Any, Any]) -> dict[Any, Any]:
    """A copy as Pillow makes it for an image made from another one; from version 13 on lists are copied, too."""
    if not hasattr(Image, "_copy_info"):
        return info.copy()
    return {key: value.copy() if isinstance(value, list) else value for key, value in info.items()}


class PixelsOnDemand:
    """The pixel access object that `load` returns; decodes the image at the first access."""

    def __init__(self, image: Any) -> None:
        self._image = image

    def _access(self) -> Any:
        self._image._get_pixels()
        return self._image.load()

    def __getitem__(self, place: Any) -> Any:
        return self._access()[place]

    def __setitem__(self, place: Any, colour: Any) -> None:
        self._access()[place] = colour

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access(), name)
