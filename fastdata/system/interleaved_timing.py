"""Times several ways to do the same, taking turns, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

__all__ = ["least_ms"]


def least_ms(
    ways: Mapping[str, Sequence[Callable[[], object]]], *, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of each call: the least of some rounds, in which the ways take turns call by call.

    Args:
        ways: the calls of each; one way may do in one call what another does in many.
        rounds: at most.
        seconds: no new round begins after so long.
    """
    least = {name: [float("inf")] * len(calls) for name, calls in ways.items()}
    deadline = time.perf_counter() + seconds
    for _ in range(rounds):
        for number in range(max(map(len, ways.values()), default=0)):
            for name, calls in ways.items():
                if number < len(calls):
                    began = time.perf_counter()
                    calls[number]()
                    least[name][number] = min(least[name][number], 1e3 * (time.perf_counter() - began))
        if time.perf_counter() > deadline:
            break
    return least
