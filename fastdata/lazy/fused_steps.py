"""Applies a compiled transform to the image that it is called with, in the process and thread that calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.augment.effects import keeps_info
from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.fill import After, decode_source
from fastdata.lazy.pending_tensor import PendingImage, is_pending, pending
from fastdata.lazy.sample_context import Draw, context
from fastdata.lazy.undecoded import Undecoded, stored
from fastdata.loaders import pillow
from fastdata.loaders.backend import Pixels
from fastdata.loaders.pixel_memory import as_numpy
from fastdata.loaders.resample import see
from fastdata.pipeline.postprocess import Finish
from fastdata.tables import EffectTable
from fastdata.transforms.augmentations import has_tensors_arithmetic
from fastdata.transforms.compile import compile_steps
from fastdata.transforms.known import is_known_transform, is_tv_image
from fastdata.views.draw import draw_view
from fastdata.views.erased import Erased
from fastdata.views.generators import Generators
from fastdata.views.levels import Levels
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan, Size
from fastdata.views.view import View

__all__ = ["Fused", "runs_of"]

Agrees: TypeAlias = Callable[[Sequence[Callable[[Any], Any]], Plan], bool]
Runs: TypeAlias = tuple[tuple[tuple[Callable[[Any], Any], ...], Plan | None], ...]

_MOST_KEYS = 64  # one key per fused transform call in a sample, and per epoch
_SMALL_PX = 96 * 96  # of an image that has its pixels: making its tensor at once costs less than a description
_NEXT_SEGMENT = 0x8CB92BA72F3D8DD7  # between the seeds of a transform's segments; any large odd number


class Fused:
    """A compiled run of known steps, and the steps that follow it: the user's own and further known runs.

    The first run is empty if the first step is the user's.

    Args:
        steps: all steps of the transform.
        plan: compiled from them; its `runs` are the steps that follow.
        is_last: False if what it gives goes to steps that are not its own.
        agrees: see `runs_of`; for the same steps on tensors.

    Attributes:
        draws: True if a fused step is random, and draws by (seed, epoch, sample).
    """

    def __init__(
        self,
        steps: Sequence[Callable[[Any], Any]],
        plan: Plan,
        *,
        is_last: bool = True,
        agrees: Agrees = lambda steps, plan: True,
    ) -> None:
        self._known, self._plan = steps[: len(steps) - len(plan.unfused)], plan
        self._agrees = agrees
        self._following = plan.following if plan.draws else None
        self._follows = plan.following is not None
        self._rest = _segments(plan.runs)
        self._levels = Levels.of(plan.normalisation)
        self._may_wait = plan.in_one_pass and plan.output not in (Output.NUMPY, Output.PIL)
        self._stays_an_image = plan.in_one_pass and plan.output is Output.PIL and plan.augments
        # A float tensor has four times as many bytes as its pixels, so it is made in the memory of its batch.
        self._may_wait_with_pixels = self._may_wait and not plan.augments and is_last and not self._rest
        changes = plan.augments or plan.output is Output.NUMPY
        self._pixels = np.array if changes else np.asarray  # a copy if pixels are changed in place
        self._only_stores = not (plan.ops or plan.augments) and plan.output not in (Output.NUMPY, Output.PIL)
        is_random = plan.draws or any(isinstance(each, Fused) and each.draws for each in self._rest)
        self.draws: bool = is_random and not self._follows
        self._finishes: dict[tuple[Key, Size | None], Finish] = {}
        # The effects of samples, in rows; by key, and by the size of images where that follows from no step.
        self._ahead: dict[tuple[Key, Size | None], tuple[dict[tuple[int, int], int], EffectTable | None]] = {}
        self._last_size: Size | None = None
        self._of_tensors: dict[type[torch.Tensor], Fused | None] = {}

    def __call__(self, given: Any, draw: Draw) -> Any:
        """Applies all steps to an image; returns a pending tensor if it is still encoded and a tensor is wanted."""
        if not self._known:  # the first is the user's
            return self._behind(given, draw)
        if (tensors := _class_of_bytes(given)) is not None and (other := self._for_tensors(tensors)) is not None:
            return other._behind(other._seen_in_tensor(given, draw), draw)
        if not pillow.is_rgb(given):
            return self._plainly(given, draw)
        return self._behind(self._made_of(given, draw), draw)

    def _made_of(self, image: Any, draw: Draw) -> Any:
        """Applies the known run to an RGB image of Pillow's."""
        context.notes.fused += len(self._plan.fused)
        plan = self._plan
        if not hasattr(image, "pending_through") and (self._may_wait_with_pixels or self._only_stores):
            image = pillow.apply_view(image, self._view(image.size, draw)[0]) if plan.ops else image
            pixels = np.asarray(image)
            height, width = pixels.shape[:2]
            if not self._may_wait_with_pixels or height * width <= _SMALL_PX or context.decodes_at_once:
                return self._of_class(self._stored(pixels))
            source, whole = EncodedSource.of_pixels(pixels), View.whole(width, height)
            return pending(Undecoded(source, whole, self._levels, plan.tensor_class, channels_last=plan.channels_last))
        view, draw = self._view(image.size, draw)
        if self._may_wait or (plan.output is Output.PIL and not (plan.augments or plan.later)):
            return self._seen_through(image, view, draw)
        if self._stays_an_image and hasattr(image, "augmented"):
            effects = self._effects(self._finish(draw.key), draw)
            keeps = effects is not None and keeps_info(effects)
            if effects is not None and (made := image.augmented(effects, view, keeps_info=keeps)) is not None:
                return made
        return self._seen_now(image, view, draw)

    def _view(self, size_px: tuple[int, int], draw: Draw) -> tuple[View, Draw]:
        """Draws the view of an image of (width, height); returns it with what was drawn for the steps after it."""
        if self._following is not None:
            given = self._following.draw(_generators(), size_px[::-1])
            draw = replace(draw, given=given)
        numbers = None if draw.given is None else draw.given.numbers[0]
        return draw_view(self._plan.ops, size_px, draw.index, draw.occurrence, key=draw.key, given=numbers), draw

    def _plainly(self, given: Any, draw: Draw) -> Any:
        """Calls the original steps, with a value that is not an RGB image."""
        context.notes.plain.add(f"it is given {_described(given)}, not an RGB image")
        for step in self._known:
            given = step(given)
        return self._behind(given, draw)

    def _behind(self, value: Any, draw: Draw) -> Any:
        """Calls the steps that follow the known run."""
        if not self._rest:
            return value
        for number, step in enumerate(self._rest, start=1):
            if isinstance(step, Fused):
                value = step(value, replace(draw, key=draw.key.derived(number, _NEXT_SEGMENT), given=None))
            else:
                value = step(value)
        return value

    def _seen_in_tensor(self, image: torch.Tensor, draw: Draw) -> Any:
        """Applies the plan, compiled for tensors, to a uint8 tensor (3, H, W)."""
        if is_pending(image):
            own = image.undecoded  # type: ignore[attr-defined]
            if self._may_wait and own.is_whole:
                context.notes.fused += len(self._plan.fused)
                view, draw = self._view(own.view.size[::-1], draw)
                after, tensor_class = self._after(draw), self._plan.tensor_class
                return pending(Undecoded(own.source, view, self._levels, tensor_class, after=after))
            image = own.decoded()
        pixels = np.stack(list(image.as_subclass(torch.Tensor).numpy()), axis=2)  # three times as fast as torch's copy
        view, draw = self._view((pixels.shape[1], pixels.shape[0]), draw)
        context.notes.fused += len(self._plan.fused)
        value = self._finished(see(pixels, view), draw)
        if not value.is_contiguous():  # as torchvision's would be
            value = value.as_subclass(torch.Tensor).contiguous().as_subclass(type(value))
        return value

    def _for_tensors(self, given: type[torch.Tensor]) -> Fused | None:
        """Returns the same steps compiled for tensors of a class; None if none of them can be fused."""
        if given not in self._of_tensors:
            steps = (*self._known, *self._plan.unfused)
            keeps_class = given is torch.Tensor or all(map(has_tensors_arithmetic, steps))  # v1's give plain tensors
            plan = compile_steps(steps, given=given, follow=self._follows).plan if keeps_class else None
            if plan is not None:
                plan = replace(plan, runs=runs_of(plan.unfused, follow=self._follows, agrees=self._agrees))
                self._of_tensors[given] = Fused(steps, plan, agrees=self._agrees)
            else:
                self._of_tensors[given] = None
        return self._of_tensors[given]

    def _seen_through(self, image: Any, view: View, draw: Draw) -> Any:
        """Applies the plan to an image; returns a pending tensor if it is still encoded and a tensor is wanted."""
        plan = self._plan
        may_stay = plan.output is not Output.PIL and hasattr(image, "pending_through")
        seen, effects = image.pending_through(view) if may_stay else None, None
        if seen is None:
            image = pillow.apply_view(image, view)
            if plan.output is Output.PIL:
                if view.reaches_out:
                    image.info = {}  # padding makes a new image
                return image
            if (shown := getattr(image, "pending_view", None)) is not None:
                *seen, effects = shown
        if seen is not None:
            source, view = seen
            after, levels = self._after(draw, effects), self._levels
            return pending(
                Undecoded(source, view, levels, plan.tensor_class, after=after, channels_last=plan.channels_last)
            )
        return self._finished(self._pixels(image), draw)

    def _seen_now(self, image: Any, view: View, draw: Draw) -> Any:
        """Applies a plan with steps that cannot be left to a batch's decoding: the image is decoded now."""
        seen = image.pending_through(view) if hasattr(image, "pending_through") else None
        pixels = decode_source(*seen) if seen is not None else self._pixels(pillow.apply_view(image, view))
        return self._finished(pixels, draw, None if view.reaches_out else image)

    def _finished(self, pixels: Pixels, draw: Draw, image: Any = None) -> Any:
        """Applies the plan's steps after its first crops to pixels, which may be changed in place.

        `image` has the metadata of an image of Pillow's that they are made into, if the steps keep it.
        """
        size = self._repeated_size(pixels) if self._plan.size is None and not self._plan.later else None
        plan, finish, sample = self._plan, self._finish(draw.key, size), ([draw.index], [draw.occurrence])
        given = None if draw.given is None else [draw.given]
        keeps: list[bool] = []
        (augmented,) = finish.augmented([pixels], *sample, self._effects(finish, draw), given, keeps)
        if isinstance(augmented, ValueError):
            raise augmented
        if plan.output is Output.PIL:
            made = pillow.from_pixels(augmented)
            if image is not None and all(keeps):
                made.info = image.info.copy()
            return made
        if plan.output is Output.NUMPY:
            return as_numpy(augmented)
        (erased,) = finish.erased(*sample, given)
        return self._of_class(self._stored(augmented, erased))

    def _repeated_size(self, pixels: Pixels) -> Size | None:
        """(height, width), if the image before had the same: then those of a batch probably do."""
        before, self._last_size = self._last_size, pixels.shape[:2]
        return before if before == self._last_size else None

    def _effects(self, finish: Finish, draw: Draw) -> EffectTable | None:
        """Returns the sample's effects (1, K); they are drawn for all samples of its batch when one needs them."""
        if draw.given is not None:
            return finish.effects([draw.index], [draw.occurrence], [draw.given])
        key = draw.key, finish.plan.source_size
        sample, (rows, effects) = (draw.index, draw.occurrence), self._ahead.get(key, ({}, None))
        if sample not in rows:
            batch = context.batch
            batch = batch if sample in batch else [sample]
            rows, effects = {each: row for row, each in enumerate(batch)}, finish.effects(*zip(*batch, strict=True))
            self._ahead[key] = rows, effects
        return None if effects is None else effects[rows[sample] : rows[sample] + 1]

    def _stored(self, pixels: Pixels, erased: Sequence[Erased] = ()) -> torch.Tensor:
        return stored(pixels, self._levels, erased=erased, channels_last=self._plan.channels_last)

    def _of_class(self, value: torch.Tensor) -> torch.Tensor:
        return value if self._plan.tensor_class is None else value.as_subclass(self._plan.tensor_class)

    def _after(self, draw: Draw, effects: EffectTable | None = None) -> After | None:
        """Returns the augmentations to be drawn later, if any; one object draws for all samples of an epoch.

        `effects` come before them.
        """
        if not self._plan.augments:
            return After.drawn(effects)
        return After(self._finish(draw.key), draw.index, draw.occurrence, draw.given, effects)

    def _finish(self, key: Key, size: Size | None = None) -> Finish:
        """The steps after the first geometry; for images of one size, where that follows from no step."""
        finish = self._finishes.get((key, size))
        if finish is None:
            if len(self._finishes) >= _MOST_KEYS:
                self._finishes.clear()
                self._ahead.clear()
            plan = self._plan if size is None else replace(self._plan, ops=(), source_size=size)
            finish = self._finishes[key, size] = Finish(plan=plan, key=key)
        return finish


@cache
def _generators() -> Generators:
    return Generators.of_this_process()


def runs_of(steps: Sequence[Callable[[Any], Any]], *, follow: bool, agrees: Agrees) -> Runs:
    """Splits steps into known runs, each with its plan, and single steps without one, which are called.

    Args:
        steps: the steps, for example those from a user's own step on.
        follow: see `compile_steps`.
        agrees: with `follow`, tells if a plan is to be used.
    """
    runs: list[tuple[tuple[Callable[[Any], Any], ...], Plan | None]] = []
    at = 0
    while at < len(steps):
        end = at
        while end < len(steps) and is_known_transform(steps[end]):
            end += 1
        plan = compile_steps(steps[at:end], ends_with_pil=True, follow=follow).plan if end > at else None
        if plan is not None and follow and not agrees(steps[at:], plan):
            plan = None
        run = tuple(steps[at : at + 1] if plan is None else steps[at : at + len(plan.fused)])
        runs.append((run, None if plan is None else replace(plan, unfused=())))
        at += len(run)
    return tuple(runs)


def _segments(runs: Runs) -> list[Any]:
    """Makes what is called, one after the other, for the steps behind the first run."""
    made: list[Any] = []
    for number, (run, plan) in enumerate(runs, start=1):
        is_last = number == len(runs)
        made.append(run[0] if plan is None else Fused(run, plan, is_last=is_last))
    return made


def _described(value: Any) -> str:
    mode = getattr(value, "mode", None)
    if mode == "RGB" and 0 in getattr(value, "size", ()):
        return "an empty image"
    return f"an image in mode {mode}" if isinstance(mode, str) else f"a value of type {type(value).__name__}"


def _class_of_bytes(value: Any) -> type[torch.Tensor] | None:
    """The class of a uint8 image tensor (3, H, W), pending or not, for which transforms are known; None for others."""
    if is_pending(value):
        is_image = isinstance(value, PendingImage) and value.dtype is torch.uint8 and not value.undecoded.is_batch
        return (value.undecoded.tensor_class or torch.Tensor) if is_image else None
    return type(value) if isinstance(value, torch.Tensor) and _is_rgb(value) else None


def _is_rgb(value: torch.Tensor) -> bool:
    """True for a uint8 image tensor (3, H, W) in CPU memory, of a class for which transforms are known."""
    return (
        (type(value) is torch.Tensor or is_tv_image(type(value)))
        and value.dtype is torch.uint8
        and value.dim() == 3
        and value.shape[0] == 3
        and value.numel() > 0
        and value.device.type == "cpu"
        and value.layout is torch.strided
    )
