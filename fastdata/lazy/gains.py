"""Learns from the latest samples whether images gain anything by staying encoded, and if not, leaves them to others.

Small images are decoded one by one, whole ones wanted as a library's tensors, others used in another mode than RGB, as
masks are: leaving such encoded only costs a second opening.  Pixels and random numbers are the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastdata.lazy.encoded_source import EncodedSource
from fastdata.lazy.sample_context import context

__all__ = ["Gains"]

_TRIED = 4  # samples, or images of a mode, one after the other that gained nothing, after which they are left to others
_TRIED_AGAIN = 16  # batches from one to the next whose first sample shows whether that is still so
_TRIED_SOON = (1, 4)  # further such batches, unless that was so in an earlier epoch


class Gains:
    """Tally of what a fetcher's latest images have gained by staying encoded.

    Args:
        for_others: they gained nothing in an earlier epoch.
    """

    def __init__(self, *, for_others: bool) -> None:
        # The latest samples, one after the other, none of whose images has gained anything.
        self._in_vain = _TRIED if for_others else 0
        self._tried_soon = () if for_others else _TRIED_SOON
        self._in_vain_of: dict[str, int] = {}  # the same of images in a mode other than RGB

    def leaves_all(self, batch: int) -> bool:
        """True if no image of a batch stays encoded; `batch` as for `leave`."""
        return self._in_vain >= _TRIED and not self._is_trial(batch)

    def leave(self, batch: int, *, is_first: bool) -> None:
        """Decides for the next sample: which images may stay encoded, and which are opened by the user's library.

        Args:
            batch: number of batches that were made before.
            is_first: the sample is the first of its batch.
        """
        again = is_first and self._is_trial(batch)
        tries = self._in_vain < _TRIED or again
        context.leaves_encoded, context.is_for_others = tries, not tries
        modes = () if again else [mode for mode, count in list(self._in_vain_of.items()) if count >= _TRIED]
        context.modes_for_pillow = frozenset(modes)

    def note(self, sources: Sequence[EncodedSource]) -> None:
        """Notes what the images of a sample, those that stayed encoded when they were opened, have gained."""
        if sources:
            self._in_vain = self._in_vain + 1 if all(source.is_for_others for source in sources) else 0
        for source in sources:
            if (mode := source.mode) != "RGB":
                self._in_vain_of[mode] = self._in_vain_of.get(mode, 0) + 1 if source.is_for_others else 0

    def _is_trial(self, batch: int) -> bool:
        return batch in self._tried_soon or batch % _TRIED_AGAIN == 0
