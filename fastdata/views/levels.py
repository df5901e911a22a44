"""Arithmetic on every pixel's level, as data: what a channel's 256 levels become.

Converting an image to float and normalising it gives each pixel a value that depends on its channel and level alone.
So a chain of such steps is a table of 3 x 256 values, computed by torch itself, step by step, which gives the bits
that torch would give for the whole image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from fastdata.views.plan import Normalisation

__all__ = ["Constant", "Levels"]

Constant: TypeAlias = float | int | tuple[tuple[float, ...], torch.dtype]  # a number, or one per channel with its dtype


@dataclass(frozen=True)
class Levels:
    """What is done to uint8 RGB levels.

    Attributes:
        steps: in order: ("to", dtype), or ("add" | "sub" | "mul" | "div", constant).
    """

    steps: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, normalisation: Normalisation | None) -> Levels:
        """The steps of a plan's float arithmetic; none for uint8 output."""
        if normalisation is None:
            return cls()
        steps: list[tuple[str, Any]] = [("to", normalisation.dtype)]
        if normalisation.scaling == "divide":
            steps.append(("div", 255))
        elif normalisation.scaling == "multiply":
            steps.append(("mul", 1.0 / 255))
        if normalisation.mean is not None and normalisation.std is not None:
            steps.append(("sub", (normalisation.mean, normalisation.dtype)))
            steps.append(("div", (normalisation.std, normalisation.dtype)))
        return cls(tuple(steps))

    def then(self, step: str, argument: torch.dtype | Constant) -> Levels | None:
        """With one step more; None where the result is no float that the native core stores (16 or 32 bits)."""
        return _longer(self, step, argument)

    @property
    def dtype(self) -> torch.dtype:
        """Of the result."""
        return self.table().dtype

    def table(self) -> torch.Tensor:
        """The value of every (channel, uint8 level): shape (3, 256); not to be written to."""
        return _table(self.steps)


@lru_cache(maxsize=256)  # one object for equal chains, so a batch is pickled with one of each
def _longer(levels: Levels, step: str, argument: Any) -> Levels | None:
    longer = Levels((*levels.steps, (step, argument)))
    dtype = longer.dtype
    return longer if dtype.is_floating_point and dtype.itemsize in (2, 4) else None


@lru_cache(maxsize=256)
def _table(steps: tuple[tuple[str, Any], ...]) -> torch.Tensor:
    if not steps:
        return torch.arange(256, dtype=torch.uint8).repeat(3, 1)
    *before, (step, argument) = steps
    table = _table(tuple(before))
    if step == "to":
        return table.to(argument)
    if isinstance(argument, tuple):
        values, dtype = argument
        argument = torch.tensor(values, dtype=dtype).view(-1, 1)
    result: torch.Tensor = getattr(table, step)(argument)
    return result.contiguous()
