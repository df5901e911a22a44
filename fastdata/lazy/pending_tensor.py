"""Tensors whose images have not been decoded yet: one image, or a batch that was stacked from such.

ToTensor and similar transforms make one from an image that is still encoded.  It knows its shape and dtype, remembers
arithmetic with constants per channel (scaling, normalising), slices, flips and torchvision's resizes and padding, can
be stacked, and is sent to another process as a description without pixels.  The loader decodes a whole batch of them
at once, into its memory.  Any other operation on one decodes it immediately and gives the result that a plain tensor
would give.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any

import torch

from fastdata.lazy.fill import SeenImages, StoredRows, fill_from_pixels
from fastdata.lazy.pending_steps import after_call, same_memory
from fastdata.lazy.sample_context import context
from fastdata.lazy.tensor_memory import refuse_memory
from fastdata.lazy.undecoded import Undecoded, UndecodedBatch
from fastdata.pipeline.collate import collate_targets, is_timms
from fastdata.transforms.known import is_tv_image

__all__ = [
    "PendingBatch",
    "PendingImage",
    "is_pending",
    "pending",
    "real",
    "stack_pixels",
    "stacking_pending",
    "stacks_pending",
    "stands_in",
]


_CPU = torch.device("cpu")


class _Pending(torch.Tensor):
    """Base class of pending tensors, which have a shape and a dtype but no memory.

    One that is decoded becomes a tensor of the class that it stands for.
    """

    undecoded: Any
    users_class: type = torch.Tensor

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self).users_class

    def __deepcopy__(self, *memo: Any) -> Any:
        return real(self).__deepcopy__(*memo)

    def as_subclass(self, *cls: Any, **named: Any) -> Any:
        """See torch.Tensor.as_subclass."""
        return real(self).as_subclass(*cls, **named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if is_pending(self) and self.undecoded.is_sent:
            return _received, self.undecoded.to_send()
        return real(self).__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        first: Any = args[0] if args else None
        if is_pending(first):
            answer = _without_pixels(func, first, args[1:], kwargs or {})
            if answer is not NotImplemented:
                return answer
        elif func is torch.stack and (batch := _stacked(_to_stack(args, kwargs or {}))) is not None:
            return batch
        elif func in _WRITES and is_pending(args[-1]) and not kwargs and _is_written(func, *args):
            return first if func is torch.Tensor.copy_ else None
        named = {name: _plain(each) for name, each in (kwargs or {}).items()}
        result = func(*map(_plain, args), **named)
        for given in (first, (kwargs or {}).get("out")):  # in-place functions return the tensor itself
            if issubclass(type(given), _Pending) and result is getattr(given.__dict__.get("undecoded"), "value", None):
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
    """A pending tensor (3, height, width) of one image; made by `pending`.

    Code that asks for the type of one and makes another tensor with it, ``type(image)(values)``, gets the class that it
    stands for.  ``values.as_subclass(type(image))`` gives an object of this class with memory of its own, and without
    `undecoded`; its functions give plain tensors, and in a batch it is replaced.
    """

    undecoded: Undecoded

    def __new__(cls, *arguments: Any, **named: Any) -> Any:
        """Makes a tensor of the class that this one stands for."""
        return cls.users_class(*arguments, **named)

    def as_subclass(self, *given: Any, **named: Any) -> Any:
        """See torch.Tensor.as_subclass; a plain tensor and torchvision's Image stay pending."""
        if len(given) != 1 or named or not isinstance(given[0], type):
            return super().as_subclass(*given, **named)
        cls = given[0].users_class if issubclass(given[0], PendingImage) else given[0]
        if is_pending(self) and (cls is torch.Tensor or is_tv_image(cls)):
            return pending(same_memory(self.undecoded, None if cls is torch.Tensor else cls))
        return super().as_subclass(cls)


class _StandsFor(type(torch.Tensor)):  # type: ignore[misc]
    """The metaclass of pending images that stand for a class of torchvision's: equal to it, and found where it is.

    torchvision's transforms look types up in dictionaries of their own and of the user's: ``{tv_tensors.Image: 0}``.
    """

    users_class: Any

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.users_class

    def __hash__(cls) -> int:
        return hash(cls.users_class)


@cache
def _standing_for(tensor_class: type[torch.Tensor]) -> type[PendingImage]:
    """Returns the class of pending images of another class than torch.Tensor."""

    def wrap(tensor: torch.Tensor, like: Any, **facts: Any) -> Any:
        """See torchvision.tv_tensors.wrap."""
        return tensor.as_subclass(tensor_class)

    names = {"wrap": staticmethod(wrap), "users_class": tensor_class, "__repr__": tensor_class.__repr__}
    if hasattr(tensor_class, "_make_repr"):  # torchvision's, which its __repr__ calls
        names["_make_repr"] = tensor_class._make_repr
    made: type[PendingImage] = _named(_StandsFor("PendingImage", (PendingImage,), names))
    return made


def _named(cls: Any) -> Any:
    """Gives a class the name of the one that it stands for, which the user knows from messages."""
    cls.__name__, cls.__qualname__ = cls.users_class.__name__, cls.users_class.__qualname__
    cls.__module__ = cls.users_class.__module__
    return cls


class PendingBatch(_Pending):
    """A pending batch (N, 3, height, width); made from pending images by `torch.stack` and torch's default_collate.

    M batches of one shape and arithmetic stack to (M, N, 3, height, width).
    """

    undecoded: UndecodedBatch


_named(PendingImage)
_named(PendingBatch)


def is_pending(value: Any) -> bool:
    """True for a tensor that has not been decoded yet."""
    return issubclass(type(value), _Pending) and "undecoded" in value.__dict__ and value.undecoded.known() is None


def stands_in(value: Any) -> bool:
    """True for a tensor of a class of this module that is not pending, and should not be met outside of a sample."""
    return issubclass(type(value), _Pending) and not is_pending(value)


def real(tensor: Any) -> Any:
    """Returns a tensor of the class that torch would have given it, decoded if it was pending."""
    if not issubclass(type(tensor), _Pending):
        return tensor
    if "undecoded" in tensor.__dict__:
        return tensor.undecoded.decoded()
    with torch._C.DisableTorchFunctionSubclass():
        memory, place = tensor.untyped_storage(), (tensor.storage_offset(), tensor.size(), tensor.stride())
        dtype = tensor.dtype
    return torch.empty(0, dtype=dtype).set_(memory, *place).as_subclass(type(tensor).users_class)


def pending(undecoded: Undecoded) -> torch.Tensor:
    """Makes the pending tensor (3, height, width) of an encoded image; its index defaults to the current sample's.

    In a stream, which cannot be asked again, it is decoded at once.
    """
    if undecoded.index is None:
        undecoded.index = context.index
    if context.decodes_at_once:
        return undecoded.finished(undecoded.decoded())
    cls = PendingImage if undecoded.tensor_class is None else _standing_for(undecoded.tensor_class)
    made: PendingImage = _made(cls, undecoded)
    return made


def _received(*attributes: Any) -> Any:
    """Makes a pending tensor that another process has sent."""
    if isinstance(attributes[0], SeenImages):
        return _made(PendingBatch, UndecodedBatch(*attributes))
    return pending(Undecoded(*attributes))


def _made(cls: Any, undecoded: Any) -> Any:
    tensor = torch.Tensor._make_wrapper_subclass(cls, undecoded.shape, dtype=undecoded.levels.dtype, device=_CPU)
    tensor.__dict__["undecoded"] = undecoded
    refuse_memory(tensor)
    undecoded.tensor = weakref.ref(tensor)
    if isinstance(undecoded, Undecoded) and undecoded.part_of is not None:
        undecoded.part_of.whole.parts.append(undecoded.tensor)
    context.note_pending(tensor)
    return tensor


def _plain(value: Any) -> Any:
    """Returns an argument with decoded images in place of pending ones."""
    if issubclass(type(value), _Pending):
        return real(value)
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _to_stack(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns the tensors of a call of torch.stack if it stacks along the first dimension, into new memory."""
    named = dict(named)
    tensors, *dims = args or (named.pop("tensors", None),)
    dims += [named.pop(name) for name in ("dim", "axis") if name in named]
    is_new = named.pop("out", None) is None
    return tensors if dims in ([], [0]) and is_new and not named else None


def _stacked(tensors: Any, *, lend: Callable[[int], Any] | None = None) -> torch.Tensor | None:
    """Stacks images, or batches, that are all pending and of one shape and arithmetic; returns None for others.

    What images that have their pixels are stacked to is no more pending.

    Args:
        tensors: the images, or batches.
        lend: returns memory of so many bytes, uint8, for such a batch; None, or a result of None, for new memory.
    """
    if not isinstance(tensors, list | tuple) or not tensors:
        return None
    if not all(map(is_pending, tensors)):
        return None
    if all(type(each) is PendingBatch for each in tensors):
        return _stacked_batches([each.undecoded for each in tensors])
    if any(type(each) is PendingBatch for each in tensors):
        return None
    images = [each.undecoded for each in tensors]
    first, have_pixels = images[0], {image.source.is_decoded for image in images}
    alike = all(image.view.size == first.view.size and image.levels == first.levels for image in images)
    if not alike or len(have_pixels) > 1 or any(image.is_batch for image in images):
        return None
    if have_pixels == {False}:
        return _batch_of(SeenImages.of(images), (len(images),))
    shape, dtype = (len(images), *first.shape), first.levels.dtype
    memory = lend(math.prod(shape) * dtype.itemsize) if lend is not None else None
    batch = torch.empty(shape, dtype=dtype, device="cpu") if memory is None else memory.view(dtype).view(shape)
    fill_from_pixels(StoredRows(SeenImages.of(images), batch))
    return batch


def _batch_of(images: SeenImages, lead: tuple[int, ...]) -> PendingBatch:
    made: PendingBatch = _made(PendingBatch, UndecodedBatch(images, lead))
    return made


def _stacked_batches(batches: Sequence[UndecodedBatch]) -> PendingBatch | None:
    first = batches[0]
    if not all(each.shape == first.shape and each.levels == first.levels for each in batches):
        return None
    return _batch_of(SeenImages.together([each.images for each in batches]), (len(batches), *first.lead))


def stacking_pending(collate_tensors: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps torch's function that collates tensors so that pending images of one shape become a pending batch."""

    @wraps(collate_tensors)
    def collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
        stacked = _stacked(tuple(batch)) if isinstance(batch[0], _Pending) else None
        if stacked is not None:
            return stacked
        return collate_tensors(list(map(_plain, batch)), collate_fn_map=collate_fn_map)

    return collate


def stack_pixels(tensors: Sequence[Any], lend: Callable[[int], Any]) -> torch.Tensor | None:
    """Stacks pending images that have their pixels already, in memory that is lent; returns None for others."""
    if not all(isinstance(each, PendingImage) and is_pending(each) for each in tensors):
        return None
    return _stacked(tensors, lend=lend) if all(each.undecoded.source.is_decoded for each in tensors) else None


def stacks_pending(collate_fn: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Returns the function itself, or for timm's fast_collate one that leaves pending images pending."""
    return partial(_stack_as_timm, collate_fn) if is_timms(collate_fn) else collate_fn


def _stack_as_timm(fast_collate: Callable[[list[Any]], Any], samples: list[Any]) -> Any:
    if not all(
        type(sample) is tuple and isinstance(sample[0], PendingImage) and sample[0].dtype is torch.uint8
        for sample in samples
    ):
        return fast_collate(samples)
    return torch.stack([sample[0] for sample in samples]), collate_targets(
        fast_collate, [sample[1] for sample in samples]
    )


# ---- writing to memory of the program's, such as a padded batch

_WRITES = (torch.Tensor.copy_, torch.Tensor.__setitem__)


def _is_written(func: Callable[..., Any], to: Any, *more: Any) -> bool:
    """Decodes a pending image where ``to.copy_(image)`` or ``to[index] = image`` puts it; False: torch has to copy."""
    if type(to) is not torch.Tensor or to.requires_grad or to.is_inference():
        return False
    if not issubclass(type(more[-1]), PendingImage):
        return False
    place, own = to, more[-1].undecoded
    if func is torch.Tensor.__setitem__:
        index = more[0] if type(more[0]) is tuple else (more[0],)
        if not all(type(each) in (int, slice) or each is Ellipsis for each in index):
            return False
        place = to[index]
    if place.shape != own.shape or place.dtype != own.levels.dtype or place.device != _CPU:
        return False
    place = place.detach()[0] if own.is_batch else place.detach()
    (plane, row, step), (height, width) = place.stride(), own.view.size
    overlaps = row < width or plane < row * (height - 1) + width  # or the channels of a pixel lie side by side
    if step != 1 or overlaps or place.is_neg() or not own.decode_into(place):
        return False
    torch.autograd.graph.increment_version(to)
    return True


# ---- what needs no pixels

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
    if not issubclass(type(image), PendingImage):
        return NotImplemented
    result = after_call(func, own, more, named)
    return image if result is own else result if result is NotImplemented else pending(result)
