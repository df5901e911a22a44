"""Words for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, what: str) -> str:
    """A number of things: "1 shard", "2 shards", "3 classes"; what: one of them."""
    plural = f"{what}es" if what.endswith(("s", "ch")) else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
