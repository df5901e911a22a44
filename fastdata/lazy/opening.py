"""Makes `PIL.Image.open` leave JPEGs and PNGs encoded, and torchvision's tensor conversions leave them pending.

The functions are replaced while some thread is inside `opening_encoded`, and permanently in worker processes, which
only make samples.  Each replacement checks the calling thread: for other threads it calls the original function.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import Any, BinaryIO

import PIL.Image
import torch
from PIL.Image import Image

from fastdata.errors import BackendUnavailable
from fastdata.lazy.batch_messages import kind_of
from fastdata.lazy.encoded_file import EncodedFile
from fastdata.lazy.encoded_image import EncodedImage
from fastdata.lazy.encoded_source import EncodedSource, find_source
from fastdata.lazy.fill import After
from fastdata.lazy.library_decoders import (
    DECODERS,
    READS,
    TORCHCODECS,
    leaving_pending,
    leaving_upright_pending,
    noting_files,
)
from fastdata.lazy.pending_steps import TORCHVISIONS, outside_of, sides_of
from fastdata.lazy.pending_tensor import PendingImage, is_pending, pending, stacking_pending
from fastdata.lazy.pillow_filters import adjusting_hue, filtering
from fastdata.lazy.sample_context import context
from fastdata.lazy.undecoded import Undecoded
from fastdata.loaders import create_backend
from fastdata.patches.image_opening import image_opening
from fastdata.system.switches import is_off
from fastdata.views.levels import UINT8, Levels

__all__ = [
    "can_open_encoded",
    "open_encoded_from_now_on",
    "open_image",
    "open_record",
    "opening_encoded",
    "prepare",
]

_OURS = "leaves_encoded"  # name of the attribute by which our functions in Pillow's place are known
_CLOCKS_DIFFER_S = 1.0  # tolerance for coarse file timestamps

_this_thread = threading.local()


def can_open_encoded() -> bool:
    """True if the native core can decode with Pillow's pixels, and FASTDATA=0 does not leave that to Pillow."""
    return not is_off() and _has_core()


@cache
def _has_core() -> bool:
    try:
        create_backend("native")
    except BackendUnavailable:
        return False
    return True


@contextmanager
def opening_encoded() -> Iterator[None]:
    """Makes `PIL.Image.open` leave ordinary images encoded in this thread, within a `with` block."""
    _replacements.install()
    try:
        with context.having(leaves_encoded=True):
            yield
    finally:
        _replacements.uninstall()


def open_encoded_from_now_on(program_began: float) -> None:
    """Makes `PIL.Image.open` leave images encoded in this thread until the process ends, for worker processes.

    Their images are decoded in another process, so only the paths are kept of files that are older than the program.

    Args:
        program_began: start of the program, in seconds since 1970.
    """
    context.leaves_encoded = True
    _this_thread.began = program_began - _CLOCKS_DIFFER_S
    _replacements.install()


def prepare() -> None:
    """Makes what takes the place of the functions, once here and not in every process that is forked."""
    _replacements.install()
    _replacements.uninstall()


def open_image(source: str | os.PathLike[str] | bytes | BinaryIO) -> Image:
    """Opens an image like `PIL.Image.open`, and leaves an ordinary JPEG or PNG encoded until its pixels are needed.

    Crops, one resize, flips and `convert("RGB")` before that are done by the native core in one pass, with Pillow's
    pixels; only what they leave in view is decoded.  Where a loader of fastdata makes the sample, whole batches of such
    images are decoded together.  Everything else is Pillow's, as are images of other formats and modes, and all images
    where the core is missing.  Any thread may call it, in any program: nothing is replaced.

    Args:
        source: a path; the bytes of an image; or a binary file, which is read from its beginning and may be closed
            afterwards.  A file is read at once, so it may be changed or deleted.

    Returns:
        A `PIL.Image.Image`, for an opened file of Pillow's class for its format.  Damage that only the decoder notices
        is raised with Pillow's type when pixels are first needed.

    Raises:
        OSError: the file cannot be read.
        PIL.UnidentifiedImageError: it is no image that Pillow knows.
        PIL.Image.DecompressionBombError: it has more than twice `PIL.Image.MAX_IMAGE_PIXELS` pixels.

    Example:
        >>> image = fastdata.open_image("photo.jpg").crop((0, 0, 224, 224))
    """
    opened = io.BytesIO(source) if isinstance(source, bytes) else source
    is_replaced = context.opens_encoded or not can_open_encoded()  # a loader makes the sample, or there is no core
    image = (None if is_replaced else _encoded_image(find_source(opened))) or PIL.Image.open(opened)
    if isinstance(image, EncodedImage):
        image.forget_file()
    return image


def _encoded_image(source: EncodedSource | None) -> EncodedImage | None:
    """The image of a source; None for none, and where Pillow would warn about its size or refuse it."""
    if source is None:
        return None
    image, limit = EncodedFile.opened(source), PIL.Image.MAX_IMAGE_PIXELS
    return image if limit is None or image.width * image.height <= limit else None


def open_record(record: bytes) -> Image | None:
    """Returns an image of an unpacked JPEG that stays encoded; None where images do not stay encoded now."""
    return EncodedImage.of_record(record) if context.opens_encoded else None


def _began() -> float:
    """Time since which files that are read again later must not have changed; 0.0 if none is read again."""
    return float(getattr(_this_thread, "began", 0.0))


def _leaving_encoded(original: Callable[..., Image]) -> Callable[..., Image]:
    """Wraps PIL.Image.open so that ordinary JPEGs and PNGs stay encoded."""
    while getattr(original, _OURS, None) is original:  # a program has put back what it had found there
        original = original.__wrapped__

    @wraps(original)
    def open(fp: Any, mode: Any = "r", formats: Any = None) -> Image:  # noqa: A001 - Pillow's name
        context.opened = fp
        if context.opens_encoded and mode == "r" and formats is None:
            source = find_source(fp, keep_paths_before=_began())
            if source is not None and source.mode in context.modes_for_pillow:
                source = None
            if (image := _encoded_image(source)) is not None:
                context.note_source(source)
                if isinstance(fp, bytes):
                    image.filename = fp
                return image
            opened = original(fp, mode, formats)
            context.notes.opened += 1
            context.notes.kinds.add(kind_of(opened, PIL.Image.MAX_IMAGE_PIXELS))
            return opened
        context.notes.others += context.is_for_others
        return original(fp, mode, formats)

    setattr(open, _OURS, open)  # not of a wrapper of it, to which functools.wraps copies attributes
    return open


def _float_levels() -> Levels | None:
    """Returns the arithmetic of ToTensor: conversion to the default dtype, then division by 255."""
    levels = UINT8.then("to", torch.get_default_dtype())
    return levels.then("div", 255) if levels is not None else None


def _leaving_pending(
    original: Callable[..., Any], levels: Callable[[], Levels | None], *, channels_last: bool
) -> Callable[..., Any]:
    """Wraps a torchvision conversion so that an image that is still encoded becomes a pending tensor."""

    @wraps(original)
    def convert(pic: Any) -> Any:
        is_encoded = isinstance(pic, EncodedImage) and context.opens_encoded
        tensor = _left_pending(pic, levels(), channels_last=channels_last) if is_encoded else None
        return original(pic) if tensor is None else tensor

    return convert


def _left_pending(image: Any, levels: Levels | None, *, channels_last: bool) -> torch.Tensor | None:
    """The tensor of an image that is still encoded; None for other images, and for arithmetic that is not known."""
    if levels is None or not (isinstance(image, EncodedImage) and context.opens_encoded):
        return None
    if (seen := image.pending_view) is None:
        return None
    context.notes.fused += 1
    source, view, effects = seen
    return pending(Undecoded(source, view, levels, channels_last=channels_last, after=After.drawn(effects)))


def _processing_pending(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps how transformers' processors make tensors (3, height, width), whose channels lie in planes, of images."""

    @wraps(original)
    def process_image(self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
        is_here = not args and torch.device(kwargs.get("device") or "cpu").type == "cpu"
        tensor = _left_pending(image, UINT8, channels_last=False) if is_here else None
        return original(self, image, *args, **kwargs) if tensor is None else tensor

    return process_image


def _expanding_encoded(original: Callable[..., Image]) -> Callable[..., Image]:
    """Wraps PIL.ImageOps.expand, with which torchvision pads, so that an image that is still encoded stays so."""

    @wraps(original)
    def expand(image: Image, border: Any = 0, fill: Any = 0) -> Image:
        if isinstance(image, EncodedImage) and context.opens_encoded:
            is_border = type(border) is int or (type(border) is tuple and len(border) in (2, 4))
            sides = sides_of(border) if is_border else None
            is_colour = type(fill) is tuple and len(fill) == 3 and all(type(level) is int for level in fill)
            colour = outside_of(fill) if is_colour or (type(fill) is int and fill == 0) else None
            if sides is not None and colour is not None:
                expanded = image.expanded(sides, colour)
                if expanded is not None:
                    return expanded
        return original(image, border, fill)

    return expand


def _staying_pending(step: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of torchvision's v2 for tensors so that an image that is still pending stays so."""

    @wraps(original)
    def transform(image: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(image, PendingImage) and is_pending(image):
            seen = step(image.undecoded, *args, **kwargs)
            if seen is not NotImplemented:
                context.notes.fused += 1
                return image if seen is image.undecoded else pending(seen)
        return original(image, *args, **kwargs)

    return transform


_replacements = image_opening(
    pillow=PIL.Image,
    open_for=_leaving_encoded,
    expand_for=_expanding_encoded,
    filter_for=filtering,
    hue_for=adjusting_hue,
    conversions_for={
        "to_tensor": partial(_leaving_pending, levels=_float_levels, channels_last=False),
        "pil_to_tensor": partial(_leaving_pending, levels=lambda: UINT8, channels_last=True),
    },
    kernels_for={name: partial(_staying_pending, step) for name, step in TORCHVISIONS.items()},
    decoders_for={
        "read_file": noting_files,
        **dict.fromkeys(DECODERS, partial(leaving_pending, began=lambda: _began())),
    },
    torchcodecs_for={
        READS: noting_files,
        **dict.fromkeys(TORCHCODECS, partial(leaving_upright_pending, began=lambda: _began())),
    },
    processing_for=_processing_pending,
    stacking_for=stacking_pending,
)
