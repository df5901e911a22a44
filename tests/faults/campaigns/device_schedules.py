"""Whenever a device does its work, every batch that the prefetcher hands over is whole while the consumer reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from simulated_device import Device, sums

ROUNDS = (1_500, 10_000, 1_000_000)


def prepare(folder: Path) -> Callable[[Random], str]:
    """Rounds of one epoch each, on a device that does some of its work whenever it is asked for something."""

    def one(rng: Random) -> str:
        depth, size = rng.randint(1, 5), rng.randrange(20)
        assert sums(Device(late="by chance", rng=rng), depth=depth, size=size) == list(range(size))
        return f"{depth} ahead"

    return one
