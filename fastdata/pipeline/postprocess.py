"""Steps after decoding: augmentations and float arithmetic on a batch of images, on the host or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

import numpy as np
import torch

from fastdata.augment.base import Parameters
from fastdata.augment.ops import normalise
from fastdata.loaders.backend import Pixels
from fastdata.native import load
from fastdata.pipeline.stages import stacked, stages
from fastdata.tables import EffectTable, Format
from fastdata.views.erased import Erased
from fastdata.views.given import Given
from fastdata.views.philox import Key
from fastdata.views.plan import Plan
from fastdata.views.steps import BatchStep, HostStep
from fastdata.views.streams import Draws

__all__ = ["Drawn", "Finish"]

Drawn: TypeAlias = tuple[Parameters, ...]  # of each augmentation; host arrays


@dataclass(frozen=True, kw_only=True)
class Finish:
    """The steps of a plan after decoding.

    Attributes:
        plan: the plan with the augmentations and the normalisation.
        key: seed and epoch of the draws.
    """

    plan: Plan
    key: Key

    def draw(
        self,
        indices: Sequence[int],
        copies: Sequence[int],
        given: Sequence[Given | None] | None = None,
        *,
        augmented: bool = False,
    ) -> Drawn:
        """The parameters of N samples for every step of `apply`; `given` are numbers that were drawn already."""
        first, steps = len(self.plan.all_effects), self.plan.augmentations
        if augmented:
            return self._parameters(self.plan.float_augmentations, first + len(steps), indices, copies, given)
        return self._parameters((*steps, *self.plan.float_augmentations), first, indices, copies, given)

    def effects(
        self, indices: Sequence[int], copies: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> EffectTable | None:
        """Effects that the native core applies to the pixels of N samples in one pass; None if there are none."""
        size, steps = self.plan.size, self.plan.effects
        if not (steps and self.plan.in_one_pass) or not len(indices):
            return None
        assert size is not None
        drawn = self._parameters(steps, 0, indices, copies, given)
        return np.concatenate([each.effects(own, size) for each, own in zip(steps, drawn, strict=True)], axis=1)

    def effects_on_batches(
        self, indices: Sequence[int], copies: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> EffectTable:
        """The augmentations of whole batches as effects, for N samples; each must be `Augmentation.on_host`."""
        size, steps = self.plan.size, self.plan.augmentations
        assert size is not None
        drawn = self._parameters(steps, len(self.plan.all_effects), indices, copies, given)
        tables = [each.effects(own, size) for each, own in zip(steps, drawn, strict=True)]  # type: ignore[attr-defined]
        return np.concatenate(tables, axis=1)

    def _parameters(
        self,
        steps: Sequence[HostStep | BatchStep],
        first: int,
        indices: Sequence[int],
        copies: Sequence[int],
        given: Sequence[Given | None] | None,
    ) -> Drawn:
        """The parameters of steps of which the first has number `first` among the plan's random ones."""
        if given is not None and None not in given:
            known = [each for each in given if each is not None]
            return tuple(stacked([each.parameters[first + at] for each in known]) for at in range(len(steps)))
        size = self.plan.size
        assert size is not None
        columns = np.asarray(indices, np.int64), np.asarray(copies, np.int64)
        drawn = [
            each.draw(Draws(key=self.key, indices=columns[0], copies=columns[1], step=step), size)
            for step, each in enumerate(steps, start=first)
        ]
        return tuple(drawn if given is None else map(partial(_with_given, given), count(first), drawn))

    def augmented(
        self,
        images: Sequence[Pixels],
        indices: Sequence[int],
        copies: Sequence[int],
        effects: EffectTable | None = None,
        given: Sequence[Given | None] | None = None,
    ) -> list[Pixels | ValueError]:
        """Applies the fused steps after the first view to the RGB pixels of N images, which may be changed in place.

        An image in which a later crop does not fit is replaced by torchvision's error.  `effects` are those of the
        samples, if they have been drawn already; `given` are the numbers for them.
        """
        if not self.plan.in_one_pass:
            numbers = given if given is not None else [None] * len(images)
            return [self._staged(*each) for each in zip(images, indices, copies, numbers, strict=True)]
        effects = self.effects(indices, copies, given) if effects is None else effects
        if effects is not None:
            for row, pixels in enumerate(images):
                load().convert(pixels, pixels.ctypes.data, Format(), effects[row : row + 1])
        return list(images)

    def _staged(self, pixels: Pixels, index: int, copy: int, given: Given | None) -> Pixels | ValueError:
        try:
            return stages(self.plan, pixels, index, copy, key=self.key, given=given)
        except ValueError as error:
            return error

    def erase(self, images: torch.Tensor, drawn: Drawn) -> None:
        """Does on the host, in the images' own memory, what comes after the float arithmetic."""
        for augmentation, parameters in zip(self.plan.float_augmentations, drawn, strict=True):
            for row, erased in enumerate(augmentation.erased(parameters)):
                for each in erased:
                    each.apply(images[row])

    @property
    def erases(self) -> bool:
        """True if rectangles may be filled after the float arithmetic."""
        return bool(self.plan.float_augmentations)

    def erased(
        self, indices: Sequence[int], copies: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> list[Sequence[Erased]]:
        """Rectangles that `erase` would fill in N images that are still to be decoded."""
        steps = self.plan.float_augmentations
        found: list[list[Erased]] = [[] for _ in indices]
        for step, parameters in zip(steps, self.draw(indices, copies, given) if steps else (), strict=True):
            for own, each in zip(found, step.erased(parameters), strict=True):
                own.extend(each)
        return list(found)

    def apply(self, images: torch.Tensor, drawn: Drawn, *, augmented: bool = False) -> torch.Tensor:
        """Finishes uint8 images (N, 3, H, W), in their memory format; no step waits for their device.

        With `augmented`, the augmentations of whole batches have been done, as effects, and were not drawn.
        """
        steps, layout = iter(drawn), memory_format_of(images)
        for augmentation in () if augmented else self.plan.augmentations:
            images = augmentation.apply(images, next(steps))
        if self.plan.normalisation is not None:
            images = normalise(images, self.plan.normalisation)
        for augmentation in self.plan.float_augmentations:
            images = augmentation.apply(images, next(steps))
        return images.contiguous(memory_format=layout)  # which blurring and equalising do not keep


def memory_format_of(images: torch.Tensor) -> torch.memory_format:
    """Returns channels_last for a batch that is so and not contiguous, too; else contiguous."""
    is_last = images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _with_given(given: Sequence[Given | None], number: int, drawn: Parameters) -> Parameters:
    """The parameters of step `number` that were drawn for N samples, with those that were given in their places."""
    rows = [
        {name: values[row] for name, values in drawn.items()} if each is None else each.parameters[number]
        for row, each in enumerate(given)
    ]
    return stacked(rows)
