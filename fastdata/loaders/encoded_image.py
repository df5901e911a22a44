"""A PIL image that stays encoded until somebody looks at its pixels.

Where `opening_encoded` is in force, `PIL.Image.open` gives an `EncodedImage` for an ordinary JPEG.  What a dataset
usually does next, ``convert("RGB")``, crops, one resize, flips, is remembered, and done by the native core in one pass
when pixels are needed: only the window that is seen is decoded, with Pillow's pixels to the last bit.  Whatever else is
asked for is Pillow's: the image is decoded as it is, and goes on as a plain one.

The whole file is read when it is opened, so no descriptor stays open and a file that vanishes later does no harm.  A
JPEG that is not whole is left to Pillow at once, so an error comes where a dataset's own ``try`` expects it; what only
the decoder notices is raised where pixels are first needed, with Pillow's type.
"""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import PIL.Image
from PIL.Image import Image, Transpose

from fastdata.errors import BackendUnavailable
from fastdata.loaders import Backend, create_backend
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.views.draw import View
from fastdata.views.header import parse_header
from fastdata.views.plan import Interpolation

__all__ = ["EncodedImage", "can_open_encoded", "open_encoded_from_now_on", "opening_encoded"]

Box: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom

_FILTERS = {each.value: each for each in Interpolation}
_FLIPS = (Transpose.FLIP_LEFT_RIGHT, Transpose.FLIP_TOP_BOTTOM)
# Where Pillow keeps an image's pixels: behind a property since version 11.
_PIXELS = "_im" if isinstance(vars(Image).get("im"), property) else "im"
_MODE = "_mode" if isinstance(vars(Image).get("mode"), property) else "mode"


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What is seen of an image, in the terms of `View`; its size is the crop's."""

    window: Box
    resized: tuple[int, int] | None = None
    interpolation: Interpolation = Interpolation.BILINEAR
    crop: Box
    flip_horizontal: bool = False
    flip_vertical: bool = False

    @classmethod
    def whole(cls, width: int, height: int) -> _Seen:
        return cls(window=(0, 0, width, height), crop=(0, 0, width, height))

    @property
    def size(self) -> tuple[int, int]:
        left, top, right, bottom = self.crop
        return right - left, bottom - top

    def cropped(self, box: Box) -> _Seen | None:
        """After a crop, whose box may reach out of the image, where Pillow puts black; None for an empty one."""
        left, top, right, bottom = box
        width, height = self.size
        if right <= left or bottom <= top:
            return None
        if self.flip_horizontal:
            left, right = width - right, width - left
        if self.flip_vertical:
            top, bottom = height - bottom, height - top
        x, y = self.crop[:2]
        crop = (x + left, y + top, x + right, y + bottom)
        return replace(self, crop=crop) if self.resized is not None else replace(self, crop=crop)._folded()

    def _folded(self) -> _Seen | None:
        """The crop of an image that is not resized as a window of it; None if nothing of the image is inside."""
        x, y, right, bottom = self.window
        width, height = right - x, bottom - y
        inside = (
            min(max(self.crop[0], 0), width),
            min(max(self.crop[1], 0), height),
            min(max(self.crop[2], 0), width),
            min(max(self.crop[3], 0), height),
        )
        if inside[2] <= inside[0] or inside[3] <= inside[1]:
            return None
        window = (x + inside[0], y + inside[1], x + inside[2], y + inside[3])
        left, top = inside[:2]
        crop = (self.crop[0] - left, self.crop[1] - top, self.crop[2] - left, self.crop[3] - top)
        return replace(self, window=window, crop=crop)

    def resize(self, size: tuple[int, int], interpolation: Interpolation) -> _Seen | None:
        """After a resize; None where it is a second one, or comes after padding or a flip."""
        left, top, right, bottom = self.window
        whole = (0, 0, right - left, bottom - top)
        if self.resized is not None or self.crop != whole or self.flip_horizontal or self.flip_vertical:
            return None
        return replace(self, resized=size, crop=(0, 0, *size), interpolation=interpolation)

    def view(self) -> View:
        left, top, right, bottom = self.window
        return View(
            window_px=self.window,
            resize_px=self.resized if self.resized is not None else (right - left, bottom - top),
            crop_px=self.crop,
            flip_horizontal=self.flip_horizontal,
            flip_vertical=self.flip_vertical,
            interpolation=self.interpolation,
        )


class EncodedImage(Image):
    """See the module's text.  Made by `PIL.Image.open` where `opening_encoded` is in force, and by its own methods.

    Args:
        encoded: the file.
        seen: what is seen of it.
        mode: Pillow's, "L" or "RGB"; an "L" is decoded by Pillow.
        name: of the file, "" where it has none.
        is_file: just opened, not made from another image.
    """

    _pixels: Any = None
    _array: Pixels | None = None
    _seen: _Seen | None = None  # None once it has pixels
    _opened: Image | None = None  # Pillow's own, where something of it was asked for
    _info: dict[Any, Any] | None = None

    def __init__(self, encoded: Encoded, seen: _Seen, mode: str, name: str, *, is_file: bool = False) -> None:
        super().__init__()
        self._encoded, self._seen, self._info, self._name = encoded, seen, None, name
        setattr(self, _MODE, mode)
        self._size = seen.size
        self._is_file = is_file
        if is_file:
            self.filename = name
            self.format, self.format_description = "JPEG", "JPEG (ISO 10918)"

    # ---- what costs no decoding

    @property
    def info(self) -> dict[Any, Any]:
        """As Pillow reads it from the file, which it does when first asked."""
        if self._info is None:
            self._info = dict(self._as_opened().info)
        return self._info

    @info.setter
    def info(self, value: dict[Any, Any]) -> None:
        self._info = value

    def copy(self) -> Image:
        """See PIL.Image.Image.copy."""
        return self._again(self._seen) if self._seen is not None else super().copy()

    def convert(self, mode: str | None = None, *arguments: Any, **options: Any) -> Image:
        """See PIL.Image.Image.convert; to RGB nothing is decoded yet."""
        if self._seen is None or mode != "RGB" or arguments or options:
            return super().convert(mode, *arguments, **options)
        return self._again(self._seen)

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image:
        """See PIL.Image.Image.crop."""
        if self._seen is None or self.mode != "RGB" or box is None:
            return super().crop(box)
        whole = tuple(map(int, map(round, box)))
        seen = self._seen.cropped(whole)  # type: ignore[arg-type]
        return super().crop(box) if seen is None else self._again(seen)

    def resize(
        self,
        size: Any,
        resample: int | None = None,
        box: tuple[float, float, float, float] | None = None,
        reducing_gap: float | None = None,
    ) -> Image:
        """See PIL.Image.Image.resize."""
        size, filter_ = tuple(size), _FILTERS.get(PIL.Image.Resampling.BICUBIC if resample is None else int(resample))
        is_whole = box is None or tuple(box) == (0, 0, *self.size)
        if self._seen is None or self.mode != "RGB" or filter_ is None or not is_whole or reducing_gap is not None:
            return super().resize(size, resample, box, reducing_gap)
        if size == self.size:
            return self.copy()
        is_size = len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
        seen = self._seen.resize(size, filter_) if is_size else None
        return super().resize(size, resample, box, reducing_gap) if seen is None else self._again(seen)

    def transpose(self, method: Transpose) -> Image:
        """See PIL.Image.Image.transpose."""
        seen = self._seen
        if seen is None or self.mode != "RGB" or method not in _FLIPS:
            return super().transpose(method)
        if method == Transpose.FLIP_LEFT_RIGHT:
            return self._again(replace(seen, flip_horizontal=not seen.flip_horizontal))
        return self._again(replace(seen, flip_vertical=not seen.flip_vertical))

    def close(self) -> None:
        """See PIL.Image.Image.close."""
        if self._seen is not None:
            self._seen, self._array = None, None
        super().close()

    def _again(self, seen: _Seen) -> EncodedImage:
        image = EncodedImage(self._encoded, seen, "RGB", self._name)
        if self._info is not None:
            image._info = self._info.copy()
        return image

    # ---- what is Pillow's

    def _as_opened(self) -> Image:
        """Pillow's own image of the file."""
        if self._opened is None:
            self._opened = _original_open(io.BytesIO(self._encoded.data))
        return self._opened

    def draft(self, mode: str | None, size: tuple[int, int] | None) -> Any:
        """See PIL.Image.Image.draft; a drafted file is decoded at once and a plain image from then on."""
        if not self._is_file or self._seen is None:
            return super().draft(mode, size)
        opened = self._as_opened()
        drafted = opened.draft(mode, size)
        if drafted is not None:
            opened.load()
            setattr(self, _MODE, opened.mode)
            self._size = opened.size
            self._set_pixels(getattr(opened, _PIXELS))
        return drafted

    def verify(self) -> None:
        """See PIL.Image.Image.verify."""
        self._as_opened().verify()
        self._opened = None

    def __getattr__(self, name: str) -> Any:
        """What only Pillow's image of a file has, like `quantization`."""
        if name.startswith("_") or not self.__dict__.get("_is_file"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._as_opened(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _plain_image, (Image.copy(self).__getstate__(),)  # a plain image, in whatever process

    # ---- pixels

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._seen is None or self.mode != "RGB":
            return super().__array_interface__
        array = self._decoded()
        return {**array.__array_interface__, "data": (array.ctypes.data, True)}

    def _decoded(self) -> Pixels:
        """RGB (height, width, 3) of what is seen."""
        if self._array is None:
            assert self._seen is not None
            width, height = self._seen.size
            array = np.empty((height, width, 3), np.uint8)
            (error,) = _native().decode([self._encoded], [self._seen.view()], [array])
            if error is not None:
                if self._name and hasattr(error, "add_note"):  # since Python 3.11
                    error.add_note(f"while decoding {self._name}")
                raise error
            self._array = array
        return self._array

    def _get_pixels(self) -> Any:
        if self._pixels is None and self._seen is not None:
            if self.mode == "RGB":
                decoded = PIL.Image.fromarray(self._decoded())
            else:
                decoded = self._as_opened()
                decoded.load()
            self._set_pixels(getattr(decoded, _PIXELS))
        return self._pixels

    def _set_pixels(self, pixels: Any) -> None:
        self._pixels = pixels
        if pixels is not None:
            self._seen = self._array = None


def _plain_image(state: list[Any]) -> Image:
    image = Image()
    image.__setstate__(state)
    return image


setattr(EncodedImage, _PIXELS, property(EncodedImage._get_pixels, EncodedImage._set_pixels))


# ---- PIL.Image.open

_original_open: Callable[..., Image] = PIL.Image.open
_this_thread = threading.local()
_lock = threading.Lock()
_in_force = 0  # contexts that have replaced PIL.Image.open


@cache
def _native() -> Backend:
    return create_backend("native")


@cache
def can_open_encoded() -> bool:
    """True where the native core can decode with Pillow's pixels."""
    try:
        _native()
    except BackendUnavailable:
        return False
    return True


@contextmanager
def opening_encoded() -> Iterator[None]:
    """Within it `PIL.Image.open` leaves ordinary JPEGs encoded in this thread; other threads see no difference."""
    before = getattr(_this_thread, "active", False)
    _this_thread.active = True
    _replace_open(+1)
    try:
        yield
    finally:
        _replace_open(-1)
        _this_thread.active = before


def open_encoded_from_now_on() -> None:
    """The same for the rest of this process, in this thread: a worker process does nothing but make samples."""
    _this_thread.active = True
    _replace_open(+1)


def _replace_open(change: int) -> None:
    global _in_force, _original_open
    with _lock:
        _in_force += change
        if _in_force and PIL.Image.open is not _open:
            _original_open = PIL.Image.open
            PIL.Image.open = _open  # type: ignore[assignment]
        elif not _in_force and PIL.Image.open is _open:  # unless somebody has replaced it meanwhile
            PIL.Image.open = _original_open  # type: ignore[assignment]


def _open(fp: Any, mode: Any = "r", formats: Any = None) -> Image:
    """As PIL.Image.open."""
    if getattr(_this_thread, "active", False) and mode == "r" and formats is None:
        image = _open_jpeg(fp)
        if image is not None:
            return image
    return _original_open(fp, mode, formats)


def _open_jpeg(fp: Any) -> EncodedImage | None:
    """An ordinary JPEG; None for everything else, and for what Pillow would warn of or refuse."""
    name = os.fsdecode(fp) if isinstance(fp, str | bytes | os.PathLike) else ""
    data = _bytes_of_jpeg(fp)
    header = parse_header(data) if data is not None else None
    if data is None or header is None or header.jpeg is None or data.find(b"MPF\0", 0, 1 << 16) >= 0:
        return None
    encoded = Encoded(data=data, header=header, width=header.width, height=header.height)
    limit = PIL.Image.MAX_IMAGE_PIXELS
    if not encoded.is_whole_jpeg() or (limit is not None and header.width * header.height > limit):
        return None
    mode = "L" if header.jpeg.components == 1 else "RGB"
    return EncodedImage(encoded, _Seen.whole(header.width, header.height), mode, name, is_file=True)


def _bytes_of_jpeg(fp: Any) -> bytes | None:
    if isinstance(fp, str | bytes | os.PathLike):
        with open(fp, "rb") as file:
            return _read_jpeg(file)
    try:
        fp.seek(0)
        data = _read_jpeg(fp)
        if data is None:
            fp.seek(0)
    except (AttributeError, io.UnsupportedOperation):  # sockets and the like: Pillow knows what to do
        return None
    return data


def _read_jpeg(file: Any) -> bytes | None:
    start = file.read(3)
    return start + file.read() if start == b"\xff\xd8\xff" else None
