"""A PIL image that stays encoded until its pixels are needed.

`PIL.Image.open` gives one for an ordinary JPEG or PNG where opening.py says so (encoded_file.py).  The usual next steps
of a dataset, ``convert("RGB")``, crops, one resize, flips, then augmentations and a blur, are recorded, and done by the
native core in one pass when pixels are needed: only the window in view is decoded, with Pillow's pixels to the last
bit.  All other methods are Pillow's: the image is decoded first, and is a plain one from then on.

Of a file only the first and the last bytes are read when it is opened, and no descriptor stays open.  A file that does
not end as it should is left to Pillow at once, so an error is raised where a dataset's own ``try`` expects it; damage
that only the decoder notices is raised where pixels are first needed, with Pillow's type.
"""

from __future__ import annotations

import copyreg
import io
from typing import Any

import numpy as np
import PIL.Image
from PIL.Image import Exif, Image, Transpose

from fastdata.augment.effects import one_effect
from fastdata.lazy.batch_messages import kind_of
from fastdata.lazy.encoded_band import Band
from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.fill import decode_source
from fastdata.lazy.pillow_filters import filtered
from fastdata.lazy.pillow_likeness import MODE, PIXELS, PixelsOnDemand, StandsForPillows, copy_of_info, name_as_pillows
from fastdata.lazy.sample_context import context
from fastdata.loaders.backend import Pixels
from fastdata.loaders.fallback import asking_pillow
from fastdata.native import load
from fastdata.tables import EffectKind, EffectTable, Format
from fastdata.views.header import parse_header
from fastdata.views.resampling import Interpolation, Outside
from fastdata.views.view import View

__all__ = ["JPEG", "EncodedImage"]

JPEG = "JPEG (ISO 10918)"  # Pillow's description of the format
_FILTERS = {each.value: each for each in Interpolation}
_FLIPS = (Transpose.FLIP_LEFT_RIGHT, Transpose.FLIP_TOP_BOTTOM)


class EncodedImage(Image, metaclass=StandsForPillows):
    """A PIL image that stays encoded until its pixels are needed; see the module docstring.

    Args:
        source: the encoded bytes, or the file that holds them.
        seen: crops, resize and flips applied so far.
        mode: Pillow's mode, "L", "RGB" or "RGBA"; all but "RGB" are decoded by Pillow.
        info: the metadata dictionary; None for the file's.
        effects: effects on the pixels of that view, (1, any number); None for none.
    """

    pillows: type[Image] = Image  # the class of Pillow's that it stands for
    filename: str | bytes
    _pixels: Any = None
    _seen: View | None = None  # None once it has pixels
    _opened: Image | None = None  # Pillow's own image, opened when it is first needed
    _info: dict[Any, Any] | None = None
    _readonly = 0
    _is_used = False  # Pillow would have loaded it

    def __init__(
        self,
        source: EncodedSource,
        seen: View,
        mode: str,
        *,
        info: dict[Any, Any] | None = None,
        effects: EffectTable | None = None,
    ) -> None:
        super().__init__()
        self._source, self._seen, self._info, self._effects = source, seen, info, effects
        source.note_image(self)
        setattr(self, MODE, mode)
        height, width = seen.size
        self._size = width, height

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class that `isinstance` sees: Pillow's file class for an opened file, else `PIL.Image.Image`."""
        return type(self).pillows

    @classmethod
    def of_record(cls, record: bytes) -> EncodedImage | None:
        """Returns the RGB image of an unpacked JPEG's record; None if Pillow would warn about its size or refuse it."""
        header, limit = parse_header(record), PIL.Image.MAX_IMAGE_PIXELS
        if header is None or (limit is not None and header.width * header.height > limit):
            return None
        source = EncodedSource(header, path="", data=record, name="")
        image = cls(source, View.whole(header.width, header.height), "RGB")
        image.format, image.format_description = "JPEG", JPEG
        return image

    def forget_file(self) -> None:
        """Lets the program close the file object that it was opened from, before the image is used."""
        self._source.file = None

    # ---- what costs no decoding

    @property
    def pending_view(self) -> tuple[EncodedSource, View, EffectTable | None] | None:
        """Source, view and effects still to be decoded; None if the mode is not RGB or the image has been decoded."""
        if self._seen is None or self._source.pixels is not None or self.mode != "RGB":
            return None
        self._use()
        return self._source, self._seen, self._effects

    def pending_through(self, view: View) -> tuple[EncodedSource, View] | None:
        """Returns the source and `view`; None unless the image is RGB, encoded, and not cropped, resized or changed."""
        seen = self._seen
        if seen is None or self._source.pixels is not None or self.mode != "RGB":
            return None
        if self._effects is not None or seen != View.whole(*self._size):
            return None
        self._use_in_rgb()
        return self._source, view

    def augmented(
        self, effects: EffectTable, view: View | None = None, *, keeps_info: bool = False
    ) -> EncodedImage | None:
        """Returns the image after effects on its pixels; None if it must be decoded for that.

        Args:
            effects: the effects, (1, any number).
            view: a view of the whole image, before them; None leaves it as it is.
            keeps_info: the result has the image's metadata, unless it has a border.
        """
        if (self.pending_view if view is None else self.pending_through(view)) is None:
            return None
        seen = self._seen if view is None else view
        assert seen is not None
        made = self._again(seen)
        if not keeps_info or seen.reaches_out:
            made._info = {}
        before = made._effects
        made._effects = effects if before is None else np.concatenate([before, effects], axis=1)
        return made

    @property
    def info(self) -> dict[Any, Any]:
        """The metadata dictionary that Pillow reads from the file; read at first use."""
        if self._info is None:
            if self._source.info is None:
                self._source.info = self._as_opened().info
            self._info = copy_of_info(self._source.info)
        return self._info

    @info.setter
    def info(self, value: dict[Any, Any]) -> None:
        self._info = value

    @property
    def readonly(self) -> int:
        """Pillow's flag; it is set until a file is loaded."""
        return (self._pixels is not None and getattr(self._pixels, "readonly", 0)) or self._readonly

    @readonly.setter
    def readonly(self, value: int) -> None:
        self._readonly = value

    def getexif(self) -> Exif:
        """See PIL.Image.Image.getexif; for a JPEG without metadata Pillow need not open it."""
        frame = None if self._source.header is None else self._source.header.jpeg
        is_unasked = self._seen is not None and self._info is None and self._exif is None
        if is_unasked and frame is not None and not frame.has_metadata:
            self._exif = Exif()
            self._exif._loaded = True
        return super().getexif()

    def copy(self) -> Image:
        """See PIL.Image.Image.copy."""
        return self._again(self._seen, self.mode) if self._seen is not None else super().copy()

    def convert(self, mode: str | None = None, *arguments: Any, **options: Any) -> Image:
        """See PIL.Image.Image.convert; to RGB nothing is decoded yet."""
        if self._seen is None or mode != "RGB" or arguments or options:
            self._use()
            if mode not in (None, "RGB", self.mode) and self._seen is not None and not self._seen.is_resized:
                context.notes.converted += 1
                self._source.is_converted = True
            return super().convert(mode, *arguments, **options)
        self._use_in_rgb()
        return self._again(self._seen)

    def crop(self, box: tuple[float, float, float, float] | None = None) -> Image:
        """See PIL.Image.Image.crop."""
        if self._seen is None or self._effects is not None or self.mode != "RGB" or box is None or len(box) != 4:
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
        if self._effects is not None:
            return super().resize(size, resample, box, reducing_gap)
        is_size = len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)
        seen = self._seen.resized(size, filter_) if is_size else None
        return super().resize(size, resample, box, reducing_gap) if seen is None else self._again(seen)

    def transpose(self, method: Transpose) -> Image:
        """See PIL.Image.Image.transpose."""
        seen = self._seen
        if seen is None or self.mode != "RGB" or method not in _FLIPS:
            return super().transpose(method)
        is_horizontal = method == Transpose.FLIP_LEFT_RIGHT
        if self._effects is not None:
            flip = one_effect(EffectKind.FLIP, float(is_horizontal), float(not is_horizontal))
            made = self.augmented(flip, keeps_info=True)
            return super().transpose(method) if made is None else made
        return self._again(seen.flipped(horizontally=is_horizontal, vertically=not is_horizontal))

    def filter(self, filter: Any) -> Image:  # noqa: A002 - Pillow's name
        """See PIL.Image.Image.filter."""
        made = filtered(self, filter) if self._seen is not None else None
        return super().filter(filter) if made is None else made

    def expanded(self, border: tuple[int, int, int, int], colour: Outside) -> EncodedImage | None:
        """Returns the image with a border, as `PIL.ImageOps.expand` makes it; None if it must be decoded for that.

        Args:
            border: width on the left, at the top, on the right, at the bottom; negative ones crop.
            colour: its colour.
        """
        left, top, right, bottom = border
        width, height = self.size
        seen = self._seen if self.mode == "RGB" and self._effects is None else None
        if seen is not None:
            seen = seen.cropped((-left, -top, width + right, height + bottom), colour)
        if seen is None:
            return None
        self._use()
        return EncodedImage(self._source, seen, "RGB", info={})

    def split(self) -> tuple[Image, ...]:
        """See PIL.Image.Image.split; programs also ask for the number of channels by it."""
        if self._seen is None or self.mode != "RGB":
            return super().split()
        whole = self.copy()
        return tuple(Band(whole, number) for number in range(3))

    def load(self) -> Any:
        """See PIL.Image.Image.load; decodes at the first access to a pixel, as many call it only to close the file."""
        self._use()
        if self._seen is None or self.format == "PNG":  # PNG: many call load() to verify its checksums
            return super().load()
        return PixelsOnDemand(self)

    def seek(self, frame: int) -> None:
        """See PIL.Image.Image.seek, which looks at pixels."""
        if frame or self._seen is None:
            super().seek(frame)

    def close(self) -> None:
        """See PIL.Image.Image.close."""
        if self._seen is not None:
            self._seen = None
        super().close()

    def _use(self) -> None:
        """Notes a use for which Pillow loads the image; raises what it raises if the file can no longer be read."""
        self._source.ask()
        self._is_used = True
        self.readonly = 0

    def _use_in_rgb(self) -> None:
        """Notes that it is used in RGB, whether or not it is converted to another mode, too."""
        if self.mode == "RGB":
            context.notes.converted -= 1
        self._source.is_in_rgb = True
        self._use()

    def _again(self, seen: View, mode: str = "RGB") -> EncodedImage:
        self._use()
        info = None if self._info is None else copy_of_info(self._info)
        return EncodedImage(self._source, seen, mode, info=info, effects=self._effects)

    # ---- what is Pillow's

    def _as_opened(self) -> Image:
        """Opens the file with Pillow, once, and returns Pillow's image."""
        if self._opened is None:
            with asking_pillow():
                self._opened = PIL.Image.open(io.BytesIO(self._source.read()))
        return self._opened

    def __reduce__(self) -> tuple[Any, ...]:
        cls = self.__class__
        return copyreg.__newobj__, (cls,), cls.__getstate__(self)  # type: ignore[attr-defined]

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not getattr(other, "__class__", None):  # as Pillow does
            return False
        theirs: Any = other
        return bool(self._plain() == (theirs._plain() if issubclass(type(other), EncodedImage) else theirs))

    __hash__ = None  # type: ignore[assignment]

    def _plain(self) -> Image:
        """Copies the image, with decoded pixels, to an instance of Pillow's own class."""
        return Image.copy(self)

    # ---- pixels

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self._seen is None or self.mode != "RGB":
            return super().__array_interface__
        array = self._decoded()  # memory of its own for each array, as Pillow gives
        names = "version", "shape", "typestr"
        own: Any = array.reshape(-1)
        return {name: array.__array_interface__[name] for name in names} | {"data": memoryview(own).toreadonly()}

    def _decoded(self, *, for_pillow: bool = False) -> Pixels:
        """Decodes the image, also to give it to Pillow, and returns RGB pixels (height, width, 3), in new memory."""
        assert self._seen is not None
        self._use()
        context.notes.touched += 1
        if self._source.shows_nearly_all(self._seen):
            context.notes.whole += 1
            if for_pillow:
                context.notes.note_handed()
        pixels = decode_source(self._source, self._seen, for_pillow=for_pillow)
        if self._effects is not None:
            load().convert(pixels, pixels.ctypes.data, Format(), self._effects)
        return pixels

    def _get_pixels(self) -> Any:
        if self._pixels is None and self._seen is not None:
            if self.mode == "RGB":
                decoded = PIL.Image.fromarray(self._decoded(for_pillow=True))
            else:
                self._use()
                decoded = self._as_opened()
                decoded.load()
                self._source.is_asked = False  # Pillow has decoded it
                self._source.is_converted = True
                context.notes.opened += 1
                context.notes.kinds.add(kind_of(decoded, PIL.Image.MAX_IMAGE_PIXELS))
            self._set_pixels(getattr(decoded, PIXELS))
        return self._pixels

    def _set_pixels(self, pixels: Any) -> None:
        self._pixels = pixels
        if pixels is not None:
            self._seen = None


setattr(EncodedImage, PIXELS, property(EncodedImage._get_pixels, EncodedImage._set_pixels))

name_as_pillows(EncodedImage)
