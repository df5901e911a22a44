"""What stands in the place of a transform of a dataset's own.

It does to an image what the transform's plan says, with views drawn by (seed, epoch, sample): to one that is still
encoded without decoding it, to any other with Pillow.  Everything else that it is asked or called for is the
transform's own.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastdata.loaders import pillow
from fastdata.loaders.backend import Pixels
from fastdata.loaders.fill import After, as_numpy, decode_source, stored
from fastdata.loaders.pending_image import pending
from fastdata.pipeline.finish import Finish
from fastdata.pipeline.seeded_draws import SeededDraws
from fastdata.pipeline.stages import see
from fastdata.transforms.augmentations import has_tensors_arithmetic
from fastdata.transforms.compile import compile_transform
from fastdata.transforms.known import is_tv_image
from fastdata.views.draw import draw_view
from fastdata.views.levels import Levels
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan
from fastdata.views.this_sample import Draw, count_decoded, next_draw
from fastdata.views.view import View

__all__ = ["Capture"]


_MOST_KEYS = 64  # one for each call in a sample, and epoch


class Capture:
    """Called in a transform's place; an instance of its class for whoever asks.

    Args:
        transform: the user's.
        plan: compiled from it.
        per_thread: it will be called in several threads, so each gets steps of its own.
    """

    def __init__(self, transform: Callable[..., Any], plan: Plan, *, per_thread: bool) -> None:
        self._fastdata = transform, plan, per_thread
        self._steps = _steps_of(transform)
        self._levels = Levels.of(plan.normalisation)
        self._may_wait = plan.in_one_pass and plan.output is not Output.NUMPY
        self._pixels = np.array if plan.augments or plan.output is Output.NUMPY else np.asarray  # to be changed, or not
        self._own = threading.local()
        self._finishes: dict[Key, Finish] = {}
        self._of_tensors: dict[type[torch.Tensor], Capture | None] = {}

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._fastdata[0])

    def __getattr__(self, name: str) -> Any:
        if name in ("_fastdata", "_steps"):
            raise AttributeError(name)
        return getattr(self._fastdata[0], name)

    def __repr__(self) -> str:
        return repr(self._fastdata[0])

    def __eq__(self, other: object) -> bool:
        return bool(self._fastdata[0] == (other._fastdata[0] if type(other) is Capture else other))

    def __hash__(self) -> int:
        return hash(self._fastdata[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._fastdata

    def __deepcopy__(self, memo: dict[int, Any]) -> Capture:
        return _again(*copy.deepcopy(self._fastdata, memo))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the transform returns; a pending tensor if the image is still encoded and a tensor is wanted."""
        transform, plan, _ = self._fastdata
        draw = next_draw()
        if draw is None or self._steps != _steps_of(transform):  # the user has changed it
            return transform(*args, **kwargs)
        given = args[0] if len(args) == 1 and not kwargs else None
        if isinstance(given, torch.Tensor) and _is_rgb(given) and (other := self._for_tensors(type(given))) is not None:
            return other._seen_in_tensor(given, draw)
        if given is None or not pillow.is_rgb(given):
            with SeededDraws(draw.seed):
                return transform(*args, **kwargs)
        view = draw_view(plan.ops, given.size, draw.index, draw.copy, key=draw.key)
        return self._with_tail(
            self._seen_through(given, view, draw) if self._may_wait else self._seen_now(given, view, draw), draw
        )

    def _seen_in_tensor(self, image: torch.Tensor, draw: Draw) -> Any:
        """What the plan, which is one of tensors, makes of a uint8 tensor (3, H, W)."""
        pixels = np.stack(list(image.as_subclass(torch.Tensor).numpy()), axis=2)  # three times as fast as torch's copy
        height, width = pixels.shape[:2]
        view = draw_view(self._fastdata[1].ops, (width, height), draw.index, draw.copy, key=draw.key)
        count_decoded()
        value = self._finished(see(pixels, view), draw)
        if not value.is_contiguous():  # as torchvision's would be
            value = value.as_subclass(torch.Tensor).contiguous().as_subclass(type(value))
        return self._with_tail(value, draw)

    def _for_tensors(self, given: type[torch.Tensor]) -> Capture | None:
        """The capture of the same transform called with tensors; None where nothing of it can be fused."""
        if given not in self._of_tensors:
            transform, _, per_thread = self._fastdata
            keeps_class = given is torch.Tensor or has_tensors_arithmetic(transform)  # v1's give plain tensors
            plan = compile_transform(transform, given=given).plan if keeps_class else None
            self._of_tensors[given] = None if plan is None else Capture(transform, plan, per_thread=per_thread)
        return self._of_tensors[given]

    def _with_tail(self, value: Any, draw: Draw) -> Any:
        """Calls the rest of the transform."""
        plan: Plan = self._fastdata[1]
        if plan.tail:
            with SeededDraws(draw.seed):
                for step in self._tail():
                    value = step(value)
        return value

    def _seen_through(self, image: Any, view: View, draw: Draw) -> Any:
        """What the plan makes of an image before the rest of the transform."""
        plan: Plan = self._fastdata[1]
        may_stay = plan.output is not Output.PIL and hasattr(image, "pending_through")
        seen = image.pending_through(view) if may_stay else None
        if seen is None:
            image = pillow.apply_view(image, view)
            if plan.output is Output.PIL:
                return image
            seen = getattr(image, "pending_view", None)
        if seen is not None:
            source, view = seen
            return pending(source, view, self._levels, plan.tensor_class, after=self._after(draw))
        return self._finished(self._pixels(image), draw)

    def _seen_now(self, image: Any, view: View, draw: Draw) -> Any:
        """The same where more is done than can be left to a batch of images: it is decoded now."""
        seen = image.pending_through(view) if hasattr(image, "pending_through") else None
        return self._finished(
            decode_source(*seen) if seen is not None else self._pixels(pillow.apply_view(image, view)), draw
        )

    def _finished(self, pixels: Pixels, draw: Draw) -> Any:
        """What becomes of pixels, which may be changed in place, after the plan's first crops."""
        plan, finish, sample = self._fastdata[1], self._finish(draw.key), ([draw.index], [draw.copy])
        (augmented,) = finish.augmented([pixels], *sample)
        if isinstance(augmented, ValueError):
            raise augmented
        if plan.output is Output.NUMPY:
            return as_numpy(augmented)
        (erased,) = finish.erased(*sample)
        value = stored(augmented, self._levels, erased=erased)
        return value if plan.tensor_class is None else value.as_subclass(plan.tensor_class)

    def _after(self, draw: Draw) -> After | None:
        """What is done behind the view; one object draws for all samples of an epoch."""
        plan: Plan = self._fastdata[1]
        return After(self._finish(draw.key), draw.index, draw.copy) if plan.augments else None

    def _finish(self, key: Key) -> Finish:
        finish = self._finishes.get(key)
        if finish is None:
            if len(self._finishes) >= _MOST_KEYS:
                self._finishes.clear()
            finish = self._finishes[key] = Finish(plan=self._fastdata[1], key=key)
        return finish

    def _tail(self) -> Sequence[Callable[[Any], Any]]:
        _, plan, per_thread = self._fastdata
        if not per_thread:
            return plan.tail
        own: Sequence[Callable[[Any], Any]] | None = getattr(self._own, "tail", None)
        if own is None:
            own = self._own.tail = copy.deepcopy(plan.tail)
        return own


def _is_rgb(value: torch.Tensor) -> bool:
    """True for a uint8 image (3, H, W) in memory, of a class of which transforms are known."""
    return (
        (type(value) is torch.Tensor or is_tv_image(type(value)))
        and value.dtype is torch.uint8
        and value.dim() == 3
        and value.shape[0] == 3
        and value.numel() > 0
        and value.device.type == "cpu"
        and value.layout is torch.strided
    )


def _steps_of(transform: Any) -> list[int]:
    """Which steps a Compose has, to see if that has changed."""
    return list(map(id, getattr(transform, "transforms", None) or ()))


def _again(transform: Callable[..., Any], plan: Plan, per_thread: bool) -> Capture:
    return Capture(transform, plan, per_thread=per_thread)
