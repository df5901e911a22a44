"""Descriptions of images and batches that are still encoded, from which their tensors are decoded."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.fill import After, SeenImages, StoredRows, decode_rows, decode_source, drawn
from fastdata.lazy.sample_context import context
from fastdata.lazy.tensor_memory import take_over
from fastdata.loaders.backend import Pixels
from fastdata.native import load
from fastdata.tables import EffectTable, Format
from fastdata.views.erased import Erased
from fastdata.views.levels import Levels, stored_format
from fastdata.views.view import View

__all__ = ["PartOf", "Undecoded", "UndecodedBatch", "stored"]


class PartOf(NamedTuple):
    """The place of an image's memory in that of another, as torch's slices have it."""

    whole: Undecoded
    top: int = 0
    left: int = 0


@dataclass(slots=True)
class Undecoded:
    """The description of a pending image, from which it is decoded.

    Attributes:
        source: the encoded image.
        view: the view of it.
        levels: the arithmetic on its pixels.
        after: its augmentations: effects before the arithmetic, erased rectangles after it; None if there are none.
        tensor_class: the tensor's class (torchvision's tv_tensors.Image); None for a plain tensor.
        index: dataset index of its sample.
        channels_last: in memory the channels of a pixel lie side by side, as `pil_to_tensor` leaves them.
        memory_px: (height, width) of the image in whose memory it lies; None if it fills its memory.
        is_batch: a batch of this one image: the tensor has one more dimension, of length 1.
        part_of: the pending image whose memory it shares; None if it has its own.
        value: the decoded image; None until it is decoded.
        is_sent: True if pickling keeps the image pending, since the loader decodes it in the receiving process; else
            pickling decodes it.
        tensor: a weak reference to the pending tensor.
        is_inference: it was made in torch's inference mode, as the decoded tensor then is.
        parts: weak references to pending tensors that share its memory.
    """

    source: EncodedSource
    view: View
    levels: Levels
    tensor_class: type[torch.Tensor] | None = None
    index: Any = None
    after: After | None = None
    channels_last: bool = False
    memory_px: tuple[int, int] | None = None
    is_batch: bool = False
    part_of: PartOf | None = None
    value: torch.Tensor | None = None
    is_sent: bool = False
    tensor: weakref.ref[Any] | None = None
    is_inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    parts: list[weakref.ref[Any]] = field(default_factory=list)

    def to_send(self) -> tuple[Any, ...]:
        """Returns the leading attributes, from which another process makes it again."""
        own = self.source, self.view, self.levels, self.tensor_class, self.index, self.after
        return *own, self.channels_last, self.memory_px, self.is_batch

    @property
    def count(self) -> int:
        """Number of images."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor: (3, height, width), or (1, 3, height, width)."""
        return (1, 3, *self.view.size) if self.is_batch else (3, *self.view.size)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Strides of the image, in values."""
        height, width = self.memory_px or self.view.size
        return (1, 3 * width, 3) if self.channels_last else (height * width, width, 1)

    @property
    def is_dense(self) -> bool:
        """True if no other pixels lie between its own in memory."""
        height, width = self.memory_px or self.view.size
        return width == self.view.size[1] and (self.channels_last or height == self.view.size[0])

    @property
    def is_whole(self) -> bool:
        """True if it is the image as it was decoded: nothing was cropped, resized, flipped or computed."""
        header = self.source.header
        is_plain = not (self.levels.steps or self.is_batch) and self.after is None and header is not None
        return is_plain and self.view == View.whole(header.width, header.height)  # type: ignore[union-attr]

    @property
    def is_shared(self) -> bool:
        """True if writing to it may change another tensor that the program holds."""
        return _any_lives(self.parts, None) or self._is_shared_upwards()

    def _is_shared_upwards(self) -> bool:
        """True if the program holds what this is a part of, or another part of that."""
        if self.part_of is None:
            return False
        whole, mine = self.part_of.whole, self.tensor
        return _any_lives([whole.tensor, *whole.parts], mine) or whole._is_shared_upwards()

    def known(self) -> torch.Tensor | None:
        """Returns the image if it has been decoded, by itself or with the image that it is a part of."""
        if self.value is None and self.part_of is not None and (whole := self.part_of.whole.known()) is not None:
            self.settle(self._cut_from(whole))
        return self.value

    def settle(self, image: torch.Tensor) -> torch.Tensor:
        """Turns its tensor, and those that share its memory, into the decoded image; see `_settled`."""
        tensor = _settled(self, image)
        for reference in self.parts:
            if (part := reference()) is not None and "undecoded" in part.__dict__:
                part.undecoded.known()
        return tensor

    def decoded(self) -> torch.Tensor:
        """Returns the tensor itself, decoded at the first call; the image if the tensor is gone."""
        if self.known() is not None:
            return _tensor_of(self)
        if self.part_of is not None and self._is_shared_upwards():
            self.part_of.whole.decoded()
            self.known()
            return _tensor_of(self)
        effects, (erased,) = drawn([self.after])
        with torch.inference_mode(self.is_inference):
            pixels = self._pixels()
            image = self.finished(stored(pixels, self.levels, effects, erased, channels_last=self.channels_last))
        return self.settle(image)

    def decode_into(self, place: torch.Tensor) -> bool:
        """Decodes the image into (3, height, width) of the program's memory, and keeps nothing of it.

        Returns False, and writes nothing, for an image that has been decoded or shares its memory with another.
        """
        if self.known() is not None or self._is_shared_upwards():
            return False
        effects, (erased,) = drawn([self.after])
        stored(self._pixels(), self.levels, effects, erased, out=place)
        return True

    def _pixels(self) -> Pixels:
        if self.source.shows_nearly_all(self.view) and not context.decodes_at_once:
            context.notes.whole += 1
        return decode_source(self.source, self.view)

    def finished(self, image: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of a decoded image, (3, height, width) or in a batch, with its class and its strides."""
        image = image[0] if image.dim() == 4 else image
        image = image if image.dtype is torch.uint8 else image.data  # which is no view; torch's bytes are one
        if not self.is_dense and image.stride() != self.strides:
            image = torch.empty_strided((3, *self.view.size), self.strides, dtype=image.dtype).copy_(image)
        image = image.unsqueeze(0) if self.is_batch else image
        wanted = self.tensor_class or torch.Tensor
        return image if type(image) is wanted else image.as_subclass(wanted)

    def _cut_from(self, whole: torch.Tensor) -> torch.Tensor:
        assert self.part_of is not None
        (height, width), (_, top, left) = self.view.size, self.part_of
        part = whole.as_subclass(torch.Tensor)[..., top : top + height, left : left + width]
        part = part[0] if part.dim() == 4 else part
        part = part.unsqueeze(0) if self.is_batch else part
        return part if self.tensor_class is None else part.as_subclass(self.tensor_class)


def _any_lives(tensors: Iterable[weakref.ref[Any] | None], except_for: weakref.ref[Any] | None) -> bool:
    living = [tensor for each in tensors if each is not None and (tensor := each()) is not None]
    mine = except_for() if except_for is not None else None
    return any(tensor is not mine for tensor in living)


@dataclass(slots=True)
class UndecodedBatch:
    """The description of a batch of pending images, from which it is decoded.

    Attributes:
        images: the encoded images, with their views.
        lead: leading dimensions of the tensor, whose product is the number of images: (N,), or (M, N) if stacked again.
        value: the decoded batch; None until it is decoded.
        is_sent: True if pickling keeps the batch pending; see `Undecoded.is_sent`.
        tensor: a weak reference to the pending tensor.
        is_inference: see `Undecoded.is_inference`.
    """

    images: SeenImages
    lead: tuple[int, ...]
    value: torch.Tensor | None = None
    is_sent: bool = False
    tensor: weakref.ref[Any] | None = None
    is_inference: bool = field(default_factory=torch.is_inference_mode_enabled)

    def to_send(self) -> tuple[Any, ...]:
        """Returns the leading attributes, from which another process makes it again."""
        return self.images, self.lead

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.images.sources)

    @property
    def levels(self) -> Levels:
        """The arithmetic on the images' pixels."""
        return self.images.levels

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor: (*lead, 3, height, width)."""
        return *self.lead, *self.image_shape

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of each image: (3, height, width)."""
        left, top, right, bottom = self.images.windows.crop_px[0].tolist()
        return 3, bottom - top, right - left

    def known(self) -> torch.Tensor | None:
        """Returns the batch if it has been decoded."""
        return self.value

    def decoded(self) -> torch.Tensor:
        """Returns the batch, decoded at the first call.

        Raises:
            OSError: an image cannot be read or decoded; the first such error.
        """
        if self.value is not None:
            return _tensor_of(self)
        shape = len(self.images.sources), *self.image_shape
        context.notes.decoded += sum(not source.is_decoded for source in self.images.sources)
        with torch.inference_mode(self.is_inference):
            value = torch.empty(shape, dtype=self.levels.dtype, device="cpu")
            for error in decode_rows(StoredRows(self.images, value)):
                raise error
            return self.settle(value if len(self.lead) == 1 else value.view(self.shape))

    def finished(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns a decoded batch."""
        return batch

    def settle(self, batch: torch.Tensor) -> torch.Tensor:
        """Turns its tensor into the decoded batch; see `_settled`."""
        return _settled(self, batch)


def _settled(own: Undecoded | UndecodedBatch, value: torch.Tensor) -> torch.Tensor:
    """Turns the pending tensor of a description into the decoded one, and returns it; `value` if the tensor is gone."""
    tensor = own.tensor() if own.tensor is not None else None
    own.value = value.detach()
    if tensor is not None and take_over(tensor, value):
        return tensor  # type: ignore[no-any-return]
    own.value = value
    return value


def _tensor_of(own: Undecoded | UndecodedBatch) -> torch.Tensor:
    """Returns the tensor that a decoded description's pending tensor has become."""
    tensor = own.tensor() if own.tensor is not None else None
    assert own.value is not None
    return own.value if tensor is None or "undecoded" in tensor.__dict__ else tensor


def stored(
    pixels: Pixels,
    levels: Levels,
    effects: EffectTable | None = None,
    erased: Sequence[Erased] = (),
    *,
    channels_last: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Converts RGB pixels (height, width, 3) to a tensor (3, height, width), in memory with the channels in planes.

    Args:
        pixels: the pixels.
        levels: the arithmetic on them.
        effects: effects on them, before that.
        erased: rectangles filled after that.
        channels_last: leave the channels of a pixel side by side in memory.
        out: takes the values instead of new memory; the values of a row must be neighbours.
    """
    if effects is not None:
        pixels = np.array(pixels)
        load().convert(pixels, pixels.ctypes.data, Format(), effects)
    format_ = stored_format(levels, channels_first=not channels_last)
    if out is None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        out = torch.empty((1, 3, *pixels.shape[:2]), dtype=levels.dtype, device="cpu", memory_format=layout)[0]
    else:
        format_ = replace(format_, strides=(out.stride(1), out.stride(0)))
    load().convert(np.ascontiguousarray(pixels), out.data_ptr(), format_)
    for each in erased:
        each.apply(out)
    return out
