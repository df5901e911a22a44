"""Errors of a dataset's own code that are those of an image, and errors that are the code's own."""

from __future__ import annotations

import sys

from fastdata.loaders import pillow
from fastdata.views.draw import ImageTooSmall

__all__ = ["concerns_an_image", "counts_as_image_error"]

_OF_IMAGES = ("PIL", "fastdata", "torchcodec", "torchvision")


def concerns_an_image(error: Exception) -> bool:
    """True if a library of images has raised the error, and not the user's code or another library."""
    places, traceback = [], error.__traceback__
    while traceback is not None:
        places.append(str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0])
        traceback = traceback.tb_next
    inner = next((place for place in reversed(places) if place not in sys.stdlib_module_names), "")
    return inner in _OF_IMAGES


def counts_as_image_error(error: Exception) -> bool:
    """True for errors that are treated as on_error says, as if an image caused them.

    These are OSError, SyntaxError and EOFError, whatever in the user's code raised them, Pillow's
    DecompressionBombError, and ImageTooSmall (an image smaller than a crop).
    """
    return isinstance(error, OSError | SyntaxError | EOFError | ImageTooSmall | pillow.bomb_error())
