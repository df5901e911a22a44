"""How much of one kind of work another one hides."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["hidden_share"]


def hidden_share(copies: Sequence[tuple[float, float]], kernels: Sequence[tuple[float, float]]) -> float:
    """Share of the copies' time during which a kernel runs.

    Args:
        copies: (begin, end) of each copy, in any unit of time.
        kernels: (begin, end) of each kernel, in the same unit; they may overlap.
    """
    merged: list[list[float]] = []
    for begin, end in sorted(kernels):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    total = sum(end - begin for begin, end in copies)
    hidden = sum(max(0.0, min(end, stop) - max(begin, start)) for begin, end in copies for start, stop in merged)
    return hidden / total if total else 0.0
