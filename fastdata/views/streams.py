"""Numbers of the random streams, one per purpose: the fourth word of the generator's counter, assigned only here.

Two purposes with the same number would draw the same values for a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.views.philox import Floats, Key, philox4x32, uniform

__all__ = ["Draws", "Stream", "seeds"]

Ints: TypeAlias = npt.NDArray[np.int64]


class Stream(IntEnum):
    """Numbers of streams; the native core repeats GEOMETRY's."""

    GEOMETRY = 0  # steps of a plan's geometry are numbered from here
    SUBSTITUTE = 1003  # samples in place of damaged ones
    SAMPLES = 2001  # EpochSampler's order
    SHARDS = 2002  # order of whole shards
    MIXTURE = 2003  # which source of a mixture comes when
    MIX_LAM = 3001  # share of each image in what MixUp and CutMix make
    CUT_ACROSS = 3002  # CutMix's box
    CUT_DOWN = 3003
    AUGMENTATIONS = 4000  # steps of a transform are numbered from here
    ERASED = 1_000_000  # noise in rectangles, sixteen for each step


def seeds(key: Key, stream: Stream, indices: Sequence[int], occurrences: Sequence[int]) -> list[int]:
    """Returns a seed for each of N samples, for code with a generator of its own.

    Args:
        key: seed and epoch.
        stream: purpose of the seeds.
        indices: indices of the samples.
        occurrences: distinguishes several seeds of one sample.

    Returns:
        Integers of 63 bits, so that they fit into an int64: the 32 bits of the generator's first word, and below them
        the upper 31 of its second.
    """
    counter = (np.array(indices, np.int64), np.array(occurrences, np.int64), 0, stream)
    first, second, *_ = philox4x32(counter, key.words())
    return [high << 31 | low >> 1 for high, low in zip(first.tolist(), second.tolist(), strict=True)]


@dataclass(frozen=True, kw_only=True)
class Draws:
    """The random numbers of one step for N samples.

    Attributes:
        key: seed and epoch.
        indices: int64, (N,): indices of the samples.
        occurrences: int64, (N,): how often each has come before in the epoch.
        step: place of the augmentation in the transform.
    """

    key: Key
    indices: Ints
    occurrences: Ints
    step: int = 0

    def four(self, number: int) -> list[Floats]:
        """Returns four arrays (N,) of uniform numbers in [0, 1), for the step's draw of this number."""
        counter = (self.indices, self.occurrences, number, Stream.AUGMENTATIONS + self.step)
        return [uniform(words) for words in philox4x32(counter, self.key.words())]
