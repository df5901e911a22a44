"""Plans of several stages: augmentations of images of many sizes, crops and resizes behind augmentations.

Each image is done by itself: the augmentations of one stage in place, then the geometry of the next into new memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.augment.effects import keeps_info
from fastdata.loaders.backend import Pixels
from fastdata.loaders.resample import see
from fastdata.native import load
from fastdata.tables import EffectKind, EffectTable, Format
from fastdata.views.draw import draw_view
from fastdata.views.given import Given
from fastdata.views.philox import Key
from fastdata.views.plan import Plan, Stage
from fastdata.views.steps import SizeStep
from fastdata.views.streams import Draws

__all__ = ["stacked", "stages"]

_NEXT_STAGE = 0xA0761D6478BD642F  # between the seeds of the stages' geometry; any large odd number


def stages(
    plan: Plan,
    pixels: Pixels,
    index: int,
    occurrence: int,
    *,
    key: Key,
    given: Given | None = None,
    keeps: list[bool] | None = None,
) -> Pixels:
    """RGB pixels (height, width, 3) of one image after all stages.

    Args:
        plan: plan of the transform.
        pixels: contiguous, after the geometry of the first stage; may be changed.
        index: the sample.
        occurrence: number of times that the sample came before in the epoch.
        key: seed and epoch of the draws.
        given: numbers that were drawn for the sample already; not for plans with steps that change sizes.
        keeps: gets one more entry for each step that may take an image's metadata away: False if it does.

    Raises:
        ValueError: a RandomCrop is larger than the image, as in torchvision.
    """
    done = 0
    for number, stage in enumerate((Stage(effects=plan.effects), *plan.later)):
        own = Draws(key=key, indices=np.array([index]), occurrences=np.array([occurrence]), step=done)
        done += len(stage.steps)
        if stage.turn is not None:
            pixels, own = _turned(pixels, stage.turn, own), replace(own, step=own.step + 1)
        if number:
            height, width = pixels.shape[:2]
            numbers = None if given is None else given.numbers[number]
            own_key = key.derived(number, _NEXT_STAGE)
            view = draw_view(stage.ops, (width, height), index, occurrence, key=own_key, given=numbers)
            pixels = see(pixels, view)
            if keeps is not None:
                keeps.append(not view.reaches_out)
        if stage.effects:
            table = _augment(pixels, stage, own, None if given is None else given.parameters[own.step : done])
            if keeps is not None:
                keeps.append(keeps_info(table))
    return pixels


def stacked(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, npt.NDArray[Any]]:
    """Returns the parameters of N samples, in columns, from those of each."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _augment(pixels: Pixels, stage: Stage, draws: Draws, given: Sequence[Mapping[str, Any]] | None) -> EffectTable:
    """Does the augmentations of a stage in place; returns their effects."""
    height, width = pixels.shape[:2]
    size, tables = (height, width), []
    for at, effect in enumerate(stage.effects):
        own = replace(draws, step=draws.step + at)
        tables.append(effect.effects(effect.draw(own, size) if given is None else stacked([given[at]]), size))
    table = np.concatenate(tables, axis=1)
    load().convert(pixels, pixels.ctypes.data, Format(), table)
    return table


def _turned(pixels: Pixels, step: SizeStep, draws: Draws) -> Pixels:
    height, width = pixels.shape[:2]
    parameters = step.draw(draws, (height, width))
    effect = step.effects(parameters, (height, width))
    if effect["kind"][0, 0] == EffectKind.NONE:
        return pixels
    return load().warp(pixels, effect, step.new_size(parameters, (height, width)))
