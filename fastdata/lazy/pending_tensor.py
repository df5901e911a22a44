"""Tensors whose images have not been decoded yet: one image, or a batch that was stacked from such.

ToTensor and similar transforms make one from an image that is still encoded.  It knows its shape and dtype, remembers
arithmetic with constants per channel (scaling, normalising), can be stacked, and is sent to another process as a
description without pixels.  The loader decodes a whole batch of them at once, into its memory.  Any other operation on
one decodes it immediately and gives the result that a plain tensor would give.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch

from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.fill import After, SeenImages, StoredRows, decode_rows, decode_source, drawn, stored
from fastdata.lazy.sample_context import index_being_made, note_pending
from fastdata.pipeline.collate import collate_targets, is_timms
from fastdata.views.levels import Constant, Levels
from fastdata.views.view import View

__all__ = [
    "PendingBatch",
    "PendingImage",
    "Undecoded",
    "UndecodedBatch",
    "pending",
    "stacking_pending",
    "stacks_pending",
]


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
        value: the decoded image; None until it is decoded.
        is_sent: True if pickling keeps the image pending, since the loader decodes it in the receiving process; else
            pickling decodes it.
    """

    source: EncodedSource
    view: View
    levels: Levels
    tensor_class: type[torch.Tensor] | None = None
    index: Any = None
    after: After | None = None
    value: torch.Tensor | None = None
    is_sent: bool = False

    def description(self) -> tuple[Any, ...]:
        """Returns the function and arguments with which pickle makes the pending tensor again."""
        return pending, (self.source, self.view, self.levels, self.tensor_class, self.index, self.after)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor: (3, height, width)."""
        return 3, *self.view.size

    def decoded(self) -> torch.Tensor:
        """Returns the image, decoded at the first call."""
        if self.value is None:
            effects, (erased,) = drawn([self.after])
            value = stored(decode_source(self.source, self.view), self.levels, effects, erased)
            self.value = value if self.tensor_class is None else value.as_subclass(self.tensor_class)
        return self.value


@dataclass(slots=True)
class UndecodedBatch:
    """The description of a batch of pending images, from which it is decoded.

    Attributes:
        images: the encoded images, with their views.
        lead: leading dimensions of the tensor, whose product is the number of images: (N,), or (M, N) if stacked again.
        value: the decoded batch; None until it is decoded.
        is_sent: True if pickling keeps the batch pending; see `Undecoded.is_sent`.
    """

    images: SeenImages
    lead: tuple[int, ...]
    value: torch.Tensor | None = None
    is_sent: bool = False

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
        left, top, right, bottom = self.images.views.columns.crop_px[0].tolist()
        return 3, bottom - top, right - left

    def description(self) -> tuple[Any, ...]:
        """Returns the function and arguments with which pickle makes the pending batch again."""
        return _pending_batch, (self.images, self.lead)

    def decoded(self) -> torch.Tensor:
        """Returns the batch, decoded at the first call.

        Raises:
            OSError: an image cannot be read or decoded; the first such error.
        """
        if self.value is None:
            shape = len(self.images.sources), *self.image_shape
            value = torch.empty(shape, dtype=self.levels.dtype, device="cpu")
            for error in decode_rows(StoredRows(self.images, value)).values():
                raise error
            self.value = value.view(self.shape)
        return self.value


_CPU = torch.device("cpu")


class _Pending(torch.Tensor):
    """Base class of pending tensors, which have a shape and a dtype but no memory."""

    undecoded: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self.undecoded.decoded().clone()

    def as_subclass(self, cls: Any) -> Any:
        """See torch.Tensor.as_subclass."""
        return self.undecoded.decoded().as_subclass(cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        own = self.undecoded
        if own.value is None and own.is_sent:
            return own.description()
        return own.decoded().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        first = args[0] if args else None
        if isinstance(first, _Pending):
            if first.undecoded.value is None:
                answer = _without_pixels(func, first, args[1:], kwargs or {})
                if answer is not NotImplemented:
                    return answer
        elif func is torch.stack and (batch := _stacked(*args, **(kwargs or {}))) is not None:
            return batch
        named = {name: _plain(each) for name, each in (kwargs or {}).items()}
        result = func(*map(_plain, args), **named)
        for given in (first, (kwargs or {}).get("out")):  # in-place functions return the tensor itself
            if isinstance(given, _Pending) and result is given.undecoded.value:
                return given
        return result

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Decodes pending arguments of operations that do not pass through `__torch_function__`."""
        return func(*map(_plain, args), **{name: _plain(each) for name, each in (kwargs or {}).items()})


class PendingImage(_Pending):
    """A pending tensor (3, height, width) of one image; made by `pending`."""

    undecoded: Undecoded

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        own = self.__dict__.get("undecoded")
        return PendingImage if own is None or own.tensor_class is None else own.tensor_class


class PendingBatch(_Pending):
    """A pending batch (N, 3, height, width); made from pending images by `torch.stack` and torch's default_collate.

    M batches of one shape and arithmetic stack to (M, N, 3, height, width).
    """

    undecoded: UndecodedBatch


def pending(
    source: EncodedSource,
    view: View,
    levels: Levels,
    tensor_class: type[torch.Tensor] | None = None,
    index: Any = None,
    after: After | None = None,
) -> PendingImage:
    """Makes a pending tensor (3, height, width) of an encoded image; `index` defaults to the current sample's."""
    index = index if index is not None else index_being_made()
    made: PendingImage = _made(PendingImage, Undecoded(source, view, levels, tensor_class, index, after))
    return made


def _pending_batch(images: SeenImages, lead: tuple[int, ...]) -> PendingBatch:
    made: PendingBatch = _made(PendingBatch, UndecodedBatch(images, lead))
    return made


def _made(cls: Any, undecoded: Any) -> Any:
    tensor = torch.Tensor._make_wrapper_subclass(cls, undecoded.shape, dtype=undecoded.levels.dtype, device=_CPU)
    tensor.__dict__["undecoded"] = undecoded
    note_pending(tensor)
    return tensor


def _plain(value: Any) -> Any:
    """Returns an argument with decoded images in place of pending ones."""
    if isinstance(value, _Pending):
        return value.undecoded.decoded()
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _stacked(tensors: Any, dim: int = 0, *, out: Any = None) -> PendingBatch | None:
    """Stacks images, or batches, that are all pending and of one shape and arithmetic; returns None for others."""
    if dim != 0 or out is not None or not isinstance(tensors, list | tuple) or not tensors:
        return None
    if all(type(each) is PendingBatch and each.undecoded.value is None for each in tensors):
        return _stacked_batches([each.undecoded for each in tensors])
    if not all(type(each) is PendingImage and each.undecoded.value is None for each in tensors):
        return None
    images = [each.undecoded for each in tensors]
    first = images[0]
    alike = all(image.view.size == first.view.size and image.levels == first.levels for image in images)
    return _pending_batch(SeenImages.of(images), (len(images),)) if alike else None


def _stacked_batches(batches: Sequence[UndecodedBatch]) -> PendingBatch | None:
    first = batches[0]
    if not all(each.shape == first.shape and each.levels == first.levels for each in batches):
        return None
    return _pending_batch(SeenImages.together([each.images for each in batches]), (len(batches), *first.lead))


def stacking_pending(collate_tensors: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps torch's function that collates tensors so that pending images of one shape become a pending batch."""

    @wraps(collate_tensors)
    def collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        stacked = _stacked(tuple(batch)) if isinstance(batch[0], _Pending) else None
        if stacked is not None:
            return stacked
        return collate_tensors(list(map(_plain, batch)), collate_fn_map=collate_fn_map)

    return collate


def stacks_pending(collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Returns the function itself, or for timm's fast_collate one that leaves pending images pending."""
    return partial(_stack_as_timm, collate_fn) if is_timms(collate_fn) else collate_fn


def _stack_as_timm(fast_collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    if not all(
        type(sample) is tuple and type(sample[0]) is PendingImage and sample[0].dtype is torch.uint8
        for sample in samples
    ):
        return fast_collate(samples)
    return torch.stack([sample[0] for sample in samples]), collate_targets(
        fast_collate, [sample[1] for sample in samples]
    )


# ---- what needs no pixels

_STEPS: dict[Any, tuple[str, bool]] = {}  # function: (step of `Levels`, True if in place)
for _name, _spellings in {
    "add": ("add", "__add__", "__radd__"),
    "sub": ("sub", "__sub__"),
    "mul": ("mul", "__mul__", "__rmul__"),
    "div": ("div", "__truediv__"),
}.items():
    _STEPS.update({getattr(torch.Tensor, spelling): (_name, False) for spelling in _spellings})
    _STEPS[getattr(torch, _name)] = (_name, False)
    for _in_place in (f"{_name}_", {"div": "__itruediv__"}.get(_name, f"__i{_name}__")):
        _STEPS[getattr(torch.Tensor, _in_place)] = (_name, True)

_COPIES = (torch.Tensor.clone, torch.clone)
_SAME = (torch.Tensor.contiguous, torch.Tensor.detach)
_CASTS = {torch.Tensor.float: torch.float32, torch.Tensor.half: torch.float16, torch.Tensor.bfloat16: torch.bfloat16}
_FACTS = frozenset(
    {
        torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
        torch.Tensor.dtype.__get__,  # type: ignore[attr-defined]
        torch.Tensor.ndim.__get__,  # type: ignore[attr-defined]
        torch.Tensor.layout.__get__,  # type: ignore[attr-defined]
        torch.Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
        torch.Tensor.size,
        torch.Tensor.dim,
        torch.Tensor.numel,
        torch.Tensor.is_floating_point,
        torch.is_floating_point,
        torch.Tensor.is_complex,
        torch.Tensor.__len__,
    }
)
_OF_THE_CPU = {
    torch.Tensor.device.__get__: torch.device("cpu"),
    torch.Tensor.is_cuda.__get__: False,  # type: ignore[attr-defined]
}


def _without_pixels(func: Callable[..., Any], image: _Pending, more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns a function's result if it can be had without decoding, else NotImplemented."""
    if func in _OF_THE_CPU:
        return _OF_THE_CPU[func]
    own = image.undecoded
    if func in _FACTS:
        return func(torch.empty(own.shape, dtype=own.levels.dtype, device="meta"), *more, **named)
    if not isinstance(image, PendingImage):
        return NotImplemented
    levels, in_place = _levels_after(func, own.levels, more, named)
    erases = own.after is not None and own.after.by.erases
    if levels is None or (erases and levels is not own.levels):  # erased rectangles must be filled last
        return NotImplemented
    if in_place:
        own.levels = levels
        return image
    return pending(own.source, own.view, levels, own.tensor_class, own.index, own.after)


def _levels_after(
    func: Callable[..., Any], levels: Levels, more: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Levels | None, bool]:
    """Returns the arithmetic after a function, None if it is not such; and True if the tensor itself is the result."""
    dtype = _only_dtype(more, named) if func is torch.Tensor.to else None if more or named else _CASTS.get(func)
    if levels.steps and (dtype is levels.dtype or (func in _SAME and not more and not named)):
        return levels, True  # torch gives the tensor itself, or another that shares its memory
    if func in _COPIES and not more and not named:
        return levels, False
    if dtype is not None:
        return levels.then("to", dtype), False
    if func in _STEPS and len(more) == 1 and not named and (constant := _constant(more[0])) is not None:
        step, in_place = _STEPS[func]
        longer = levels.then(step, constant)
        fits = longer is not None and (longer.dtype is levels.dtype or not in_place)
        return longer if fits else None, in_place
    return None, False


def _only_dtype(more: tuple[Any, ...], named: dict[str, Any]) -> torch.dtype | None:
    """Returns the dtype that `Tensor.to` is called with, if it is the only request."""
    named = {name: value for name, value in named.items() if not (name in ("copy", "non_blocking") and value is False)}
    given = [*more, *named.values()]
    only = len(given) == 1 and isinstance(given[0], torch.dtype) and set(named) <= {"dtype"}
    return given[0] if only else None


def _constant(value: Any) -> Constant | None:
    """Converts a number, or a tensor with one value or one per channel, to a constant of `Levels`; None for others."""
    if isinstance(value, bool | int | float):
        return value
    if type(value) is not torch.Tensor or value.device.type != "cpu" or value.requires_grad:
        return None
    if value.shape not in ((3, 1, 1), (1, 1, 1)) or not value.is_floating_point():
        return None  # a tensor without dimensions would not decide the result's dtype
    return tuple(value.flatten().tolist()), value.dtype
