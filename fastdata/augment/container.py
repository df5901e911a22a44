"""Several augmentations: all or none, one of them, or all in random order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastdata.augment.base import Augmentation, Ints, Parameters, check_probability
from fastdata.augment.effects import nothing
from fastdata.errors import OptionError
from fastdata.tables import EffectTable
from fastdata.views.streams import Draws

__all__ = ["RandomApply", "RandomChoice", "RandomOrder", "parts_of"]

_INNER_STEPS = 64


class _Several(Augmentation):
    """Applies some of several augmentations to each image, in turns."""

    def __init__(self, transforms: Sequence[Augmentation]) -> None:
        self.transforms = list(transforms)
        if not self.transforms or not all(isinstance(each, Augmentation) for each in self.transforms):
            raise OptionError(f"transforms={self.transforms}; accepted: augmentations of this package")
        if any(each.changes_size for each in self.transforms):
            raise OptionError("one of its transforms changes the size of images")
        if len(self.transforms) > _INNER_STEPS:
            raise OptionError(f"{len(self.transforms)} transforms; accepted: at most {_INNER_STEPS}")

    @property
    def on_batches(self) -> bool:
        """See `Augmentation.on_batches`."""
        return self.on_host and all(each.on_batches for each in self.transforms)

    @property
    def on_host(self) -> bool:
        """See `Augmentation.on_host`."""
        return all(each.on_host for each in self.transforms)

    @abstractmethod
    def _draw_turns(self, draws: Draws) -> Ints:
        """Numbers (N, turns) of the augmentation that is done in each turn; -1 for none."""

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        drawn: dict[str, Any] = {"turns": self._draw_turns(draws)}
        for number, each in enumerate(self.transforms):
            inner = replace(draws, step=_INNER_STEPS * (draws.step + 1) + number)  # numbers that no other step has
            drawn.update({f"{number} {name}": values for name, values in each.draw(inner, size).items()})
        return drawn

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`."""
        tables = [each.effects(self._own(parameters, number), size) for number, each in enumerate(self.transforms)]
        turns = parameters["turns"]
        longest = max(table.shape[1] for table in tables)
        result = nothing(len(turns), turns.shape[1] * longest)
        for number, table in enumerate(tables):
            for turn in range(turns.shape[1]):
                rows = np.flatnonzero(turns[:, turn] == number)
                result[rows, turn * longest : turn * longest + table.shape[1]] = table[rows]
        return result

    def _own(self, parameters: Parameters, number: int) -> dict[str, Any]:
        """Parameters of the augmentation with this number."""
        prefix = f"{number} "
        return {name.removeprefix(prefix): each for name, each in parameters.items() if name.startswith(prefix)}


def parts_of(augmentation: Augmentation) -> list[Augmentation]:
    """Augmentations that another one contains; [] if it contains none."""
    return augmentation.transforms if isinstance(augmentation, _Several) else []


class RandomApply(_Several):
    """Applies all of several augmentations with probability `p`, else none.

    Args:
        transforms: the augmentations, in order.
        p: probability.
    """

    def __init__(self, transforms: Sequence[Augmentation], p: float = 0.5) -> None:
        super().__init__(transforms)
        self.p = check_probability(p)

    def _draw_turns(self, draws: Draws) -> Ints:
        chosen = draws.four(0)[0] < self.p
        return np.where(chosen[:, np.newaxis], np.arange(len(self.transforms)), -1)


class RandomChoice(_Several):
    """Applies one of several augmentations.

    Args:
        transforms: the augmentations.
        p: relative probability of each; None for all alike.
    """

    def __init__(self, transforms: Sequence[Augmentation], p: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        self.p = None if p is None else [float(share) for share in p]
        if self.p is not None and (len(self.p) != len(self.transforms) or min(self.p) < 0 or sum(self.p) <= 0):
            raise OptionError(f"p={p}; expected a share of at least 0 for each of {len(self.transforms)} transforms")

    def _draw_turns(self, draws: Draws) -> Ints:
        shares = np.ones(len(self.transforms)) if self.p is None else np.array(self.p)
        ends = np.cumsum(shares / shares.sum())
        chosen = np.searchsorted(ends, draws.four(0)[0], side="right")
        last = np.flatnonzero(shares)[-1]  # which rounding must not miss
        turn: Ints = np.minimum(chosen, last)[:, np.newaxis]
        return turn


class RandomOrder(_Several):
    """Applies all of several augmentations, in random order."""

    def _draw_turns(self, draws: Draws) -> Ints:
        count = len(self.transforms)
        shares = [column for number in range(-(-count // 4)) for column in draws.four(number)][:count]
        order: Ints = np.argsort(np.stack(shares, axis=1), axis=1, kind="stable")
        return order
