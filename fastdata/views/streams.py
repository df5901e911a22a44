"""Which stream of random numbers is for what: the fourth word of the generator's counter, given out here alone.

Two purposes with one number would draw the same values for a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.views.philox import Floats, Key, philox4x32, uniform

__all__ = ["Draws", "Stream"]

Ints: TypeAlias = npt.NDArray[np.int64]


class Stream(IntEnum):
    """Numbers of streams; the native core has GEOMETRY's."""

    GEOMETRY = 0  # steps of a plan's geometry are numbered from here
    TAIL = 1001  # seeds of transforms that are called per sample
    COLLATE = 1002  # of collate_fn
    SUBSTITUTE = 1003  # samples in place of damaged ones
    TARGET = 1004  # seeds of target_transform
    SAMPLES = 2001  # EpochSampler's order
    SHARDS = 2002  # the same of whole shards
    MIX_SHARES = 3001  # MixUp's and CutMix's shares
    CUT_ACROSS = 3002  # CutMix's box
    CUT_DOWN = 3003
    AUGMENTATIONS = 4000  # steps of a transform are numbered from here


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one step for N samples.

    Attributes:
        key: seed and epoch.
        indices: int64, (N,): the samples.
        copies: int64, (N,): how often each has come before in the epoch.
        step: place of the augmentation in the transform.
    """

    key: Key
    indices: Ints
    copies: Ints
    step: int = 0

    def four(self, number: int) -> list[Floats]:
        """The step's draw of some number: four arrays (N,) of [0, 1)."""
        counter = (self.indices, self.copies, number, Stream.AUGMENTATIONS + self.step)
        return [uniform(words) for words in philox4x32(counter, self.key.words())]
