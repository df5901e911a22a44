"""Steps after decoding: augmentations and float arithmetic on a batch of images, on the host or on a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias

import numpy as np
import torch

from fastdata.augment.base import Parameters
from fastdata.augment.batch_program import BatchProgram, Operation
from fastdata.augment.effects import keeps_info
from fastdata.augment.ops import normalise
from fastdata.loaders.backend import Pixels
from fastdata.native import load
from fastdata.pipeline.stages import stacked, stages
from fastdata.tables import EffectTable, Format
from fastdata.views.erased import Erased
from fastdata.views.given import Given
from fastdata.views.philox import Key
from fastdata.views.plan import Normalisation, Plan
from fastdata.views.steps import BatchStep, HostStep
from fastdata.views.streams import Draws

__all__ = ["Finish"]

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

    def on_batch(
        self,
        indices: Sequence[int],
        occurrences: Sequence[int],
        given: Sequence[Given | None] | None = None,
        *,
        augmented: bool = False,
        levelled: bool = False,
    ) -> BatchProgram:
        """Draws what is done to a batch of N samples that is left uint8, with the float arithmetic.

        `given` are numbers that were drawn already.  With `augmented`, the augmentations of whole batches have been
        done, as effects; with `levelled`, the float arithmetic has been, of a batch without augmentations.
        """
        plan, operations = self.plan, list[Operation]()
        if not augmented:
            operations += self._operations(plan.augmentations, self._augmenting(indices, occurrences, given))
        if plan.normalisation is not None and not levelled:
            operations.append(_normalise(plan.normalisation))
        operations += self._operations(plan.float_augmentations, self._erasing(indices, occurrences, given))
        return BatchProgram(operations)

    def effects(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> EffectTable | None:
        """Effects that the native core applies to the pixels of N samples in one pass; None if there are none."""
        size, steps = self.plan.size, self.plan.effects
        if not (steps and self.plan.in_one_pass) or not len(indices):
            return None
        assert size is not None
        drawn = self._parameters(steps, 0, indices, occurrences, given)
        return np.concatenate([each.effects(own, size) for each, own in zip(steps, drawn, strict=True)], axis=1)

    def effects_on_batches(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> EffectTable:
        """The augmentations of whole batches as effects, for N samples; each must be `Augmentation.on_host`."""
        size, steps = self.plan.size, self.plan.augmentations
        assert size is not None
        drawn = self._augmenting(indices, occurrences, given)
        tables = [each.effects(own, size) for each, own in zip(steps, drawn, strict=True)]  # type: ignore[attr-defined]
        return np.concatenate(tables, axis=1)

    def _parameters(
        self,
        steps: Sequence[HostStep | BatchStep],
        first: int,
        indices: Sequence[int],
        occurrences: Sequence[int],
        given: Sequence[Given | None] | None,
    ) -> Drawn:
        """The parameters of steps of which the first has number `first` among the plan's random ones."""
        if not steps:
            return ()
        if given is not None and None not in given:
            known = [each for each in given if each is not None]
            return tuple(stacked([each.parameters[first + at] for each in known]) for at in range(len(steps)))
        size = self.plan.size
        assert size is not None
        columns = np.asarray(indices, np.int64), np.asarray(occurrences, np.int64)
        drawn = [
            each.draw(Draws(key=self.key, indices=columns[0], occurrences=columns[1], step=step), size)
            for step, each in enumerate(steps, start=first)
        ]
        return tuple(drawn if given is None else map(partial(_with_given, given), count(first), drawn))

    def augmented(
        self,
        images: Sequence[Pixels],
        indices: Sequence[int],
        occurrences: Sequence[int],
        effects: EffectTable | None = None,
        given: Sequence[Given | None] | None = None,
        keeps: list[bool] | None = None,
    ) -> list[Pixels | ValueError]:
        """Applies the fused steps after the first view to the RGB pixels of N images, which may be changed in place.

        An image in which a later crop does not fit is replaced by torchvision's error.  `effects` are those of the
        samples, if they have been drawn already; `given` are the numbers for them.  `keeps` gets entries that are False
        where a step takes an image's metadata away.
        """
        if not self.plan.in_one_pass:
            numbers = given if given is not None else [None] * len(images)
            return [self._staged(*each, keeps) for each in zip(images, indices, occurrences, numbers, strict=True)]
        effects = self.effects(indices, occurrences, given) if effects is None else effects
        if effects is not None:
            if keeps is not None:
                keeps.append(keeps_info(effects))
            for row, pixels in enumerate(images):
                load().convert(pixels, pixels.ctypes.data, Format(), effects[row : row + 1])
        return list(images)

    def _staged(
        self, pixels: Pixels, index: int, occurrence: int, given: Given | None, keeps: list[bool] | None
    ) -> Pixels | ValueError:
        try:
            return stages(self.plan, pixels, index, occurrence, key=self.key, given=given, keeps=keeps)
        except ValueError as error:
            return error

    def _operations(self, steps: Sequence[BatchStep], drawn: Drawn) -> Iterator[Operation]:
        for step, own in zip(steps, drawn, strict=True):
            assert self.plan.size is not None
            yield from step.batch_operations(own, self.plan.size)

    def _augmenting(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given | None] | None
    ) -> Drawn:
        """The parameters of N samples for the augmentations of whole batches."""
        return self._parameters(self.plan.augmentations, len(self.plan.all_effects), indices, occurrences, given)

    def _erasing(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given | None] | None
    ) -> Drawn:
        """The parameters of N samples for what comes after the float arithmetic."""
        first = len(self.plan.all_effects) + len(self.plan.augmentations)
        return self._parameters(self.plan.float_augmentations, first, indices, occurrences, given)

    def erase(
        self,
        images: torch.Tensor,
        indices: Sequence[int],
        occurrences: Sequence[int],
        given: Sequence[Given | None] | None = None,
    ) -> None:
        """Does on the host, in the memory of N images, what comes after the float arithmetic."""
        if not self.erases:
            return
        for image, erased in zip(images, self.erased(indices, occurrences, given), strict=True):
            for each in erased:
                each.apply(image)

    @property
    def erases(self) -> bool:
        """True if rectangles may be filled after the float arithmetic."""
        return bool(self.plan.float_augmentations)

    def erased(
        self, indices: Sequence[int], occurrences: Sequence[int], given: Sequence[Given | None] | None = None
    ) -> list[Sequence[Erased]]:
        """Rectangles that `erase` would fill in N images that are still to be decoded."""
        found: list[list[Erased]] = [[] for _ in indices]
        steps = self.plan.float_augmentations
        for step, parameters in zip(steps, self._erasing(indices, occurrences, given), strict=True):
            for own, each in zip(found, step.erased(parameters), strict=True):
                own.extend(each)
        return list(found)


def _normalise(normalisation: Normalisation) -> Operation:
    statistics = [each for each in (normalisation.mean, normalisation.std) if each is not None]
    values = tuple(torch.tensor(each, dtype=normalisation.dtype, device="cpu") for each in statistics)
    return Operation(partial(normalise, normalisation=normalisation), values)


def _with_given(given: Sequence[Given | None], number: int, drawn: Parameters) -> Parameters:
    """The parameters of step `number` that were drawn for N samples, with those that were given in their places."""
    rows = [
        {name: values[row] for name, values in drawn.items()} if each is None else each.parameters[number]
        for row, each in enumerate(given)
    ]
    return stacked(rows)
