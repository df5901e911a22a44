"""A ledger of an epoch: what was delivered, skipped and replaced makes the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Ledger:
    """Entries of all ranks of one epoch.

    Args:
        size: samples of the dataset.
        damaged: those that cannot be decoded.
    """

    def __init__(self, size: int, damaged: Iterable[int]) -> None:
        self.size, self.damaged = size, Counter(damaged)
        self.delivered, self.failed = Counter[int](), Counter[int]()

    def note(self, delivered: Iterable[int], failed: Iterable[int]) -> None:
        """Enters samples that the caller was given, and samples that the loader says have failed."""
        self.delivered.update(delivered)
        self.failed.update(failed)

    def check(self, *, replaced: bool) -> None:
        """Raises AssertionError if anything is missing, doubled or not told.

        Args:
            replaced: each sample that failed has another one in its place, which comes twice then.
        """
        assert self.failed == self.damaged, f"told {self.failed}, damaged are {self.damaged}"
        whole = Counter(range(self.size)) - self.damaged
        missing, more = whole - self.delivered, self.delivered - whole
        assert not missing, f"never delivered: {sorted(missing)}"
        assert more.total() == (self.damaged.total() if replaced else 0), f"more than once: {sorted(more.elements())}"
        assert not set(more) & set(self.damaged), f"damaged and yet delivered: {sorted(more)}"
