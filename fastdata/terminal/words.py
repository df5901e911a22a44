"""Words for people."""

from __future__ import annotations

__all__ = ["counted", "three_digits"]


def counted(number: int, what: str) -> str:
    """A number of things: "1 shard", "2 shards", "3 classes"; what: one of them."""
    plural = f"{what}es" if what.endswith(("s", "ch")) else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def three_digits(value: float) -> str:
    """A number with three significant digits, and all of those before the point: "0.0123", "4.56", "2437"."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
