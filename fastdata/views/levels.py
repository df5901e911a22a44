"""Arithmetic on pixel levels, as data: a table of the results for each channel's 256 levels.

Converting an image to float and normalising it gives each pixel a value that depends on its channel and level alone.
So a chain of such steps is a table of channels x 256 values, computed by torch itself, step by step: the same bits
that torch would compute for the whole image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from fastdata.system.cached_property import lazy
from fastdata.tables import Format
from fastdata.views.plan import Normalisation

__all__ = ["UINT8", "Constant", "Levels", "stored_format"]

Constant: TypeAlias = float | int | tuple[tuple[float, ...], torch.dtype]  # a number, or one per channel with its dtype


_MOST_KEPT = 256


@dataclass(frozen=True, eq=False)
class Levels:
    """A chain of arithmetic steps on uint8 RGB levels.

    Attributes:
        steps: the steps in order, each ("to", dtype), or ("add" | "sub" | "mul" | "div", constant).
    """

    steps: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, normalisation: Normalisation | None) -> Levels:
        """Returns the steps of a plan's float arithmetic; none for uint8 output."""
        if normalisation is None:
            return UINT8
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
        """Returns the chain with one more step; None unless the result is a 16 or 32-bit float, as the core stores."""
        return _longer(self, step, argument)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Levels) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    @lazy
    def key(self) -> tuple[Any, ...]:
        """The value by which chains are compared and hashed: the steps, and the dtype of the result."""
        return (*(_spelled(*step) for step in self.steps), self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the result."""
        return self.table().dtype

    def table(self, channels: int = 3) -> torch.Tensor:
        """Returns the value of every (channel, uint8 level): shape (channels, 256); not to be written to."""
        return self._table if channels == 3 else _table_of(self.steps, channels)

    @lazy
    def _table(self) -> torch.Tensor:
        return _table_of(self.steps, 3)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (self.steps,)


UINT8 = Levels()  # no steps

# One object for equal chains, so a batch is pickled with one of each, and a table is computed once in a process.
_longer_of: dict[Any, Levels | None] = {}
_received_of: dict[Any, Levels] = {}


def _longer(levels: Levels, step: str, argument: Any) -> Levels | None:
    key = levels.key, _spelled(step, argument), torch.get_default_dtype()
    if key not in _longer_of:
        if len(_longer_of) >= _MOST_KEPT:
            _longer_of.clear()
        longer = Levels((*levels.steps, (step, argument)))
        dtype = longer.dtype
        fits = dtype.is_floating_point and dtype.itemsize in (2, 4)
        _longer_of[key] = longer if fits else None
    return _longer_of[key]


def _received(steps: tuple[tuple[str, Any], ...]) -> Levels:
    """Returns the chain that another process has sent."""
    key = tuple(_spelled(*step) for step in steps), torch.get_default_dtype()
    if key not in _received_of:
        if len(_received_of) >= _MOST_KEPT:
            _received_of.clear()
        _received_of[key] = Levels(steps)
    return _received_of[key]


def _spelled(step: str, argument: Any) -> str:
    """Returns a step as text: Python takes 1 and 1.0, and 0.0 and -0.0, for equal, torch does not."""
    return f"{step} {argument!r}"


def _table_of(steps: tuple[tuple[str, Any], ...], channels: int) -> torch.Tensor:
    table = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(channels, 1)
    for step, argument in steps:
        if step == "to":
            table = table.to(argument)
            continue
        if isinstance(argument, tuple):
            values, dtype = argument
            argument = torch.tensor(values, dtype=dtype, device="cpu").view(-1, 1)
        table = getattr(table, step)(argument)
    return table.contiguous()


def stored_format(levels: Levels, *, channels_first: bool = True, channels: int = 3) -> Format:
    """Returns the native core's pixel format for some arithmetic; `channels` is 3, or 1 to store the first alone."""
    if not levels.steps:
        return Format(channels_first=channels_first, channels=channels)
    table = levels.table(channels)
    numpy_knows: Any = table.view(torch.int16) if table.dtype is torch.bfloat16 else table
    return Format(channels_first=channels_first, table=numpy_knows.numpy(), channels=channels)
