"""Expected gain of a change: a step takes the longer of computing and loading, and a change shortens one of them.

If the loader works in the caller's thread, a step takes the sum of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastdata.diagnosis.observation import Loading, Observation, Stretch

__all__ = [
    "BUSY",
    "Advice",
    "advice",
    "cores_in_use",
    "expected_step_s",
    "gain_of",
    "most_gain",
    "others_used",
    "step_seconds",
    "wait_share",
]

BUSY = 0.75  # share of cores in use from which on further work takes cores away from other work


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change.

    Attributes:
        key: name of the change, stable over releases.
        side: side of the step that it makes faster: "data" or "compute".
        why: the measurement behind it, in words.
        change: the change to make, as it is to be typed where that is possible.
        gain: expected speedup of a whole step; NaN if measurements for it are missing.
        reach: expected speedup of the side alone, however long the other side takes; NaN if not known.
        is_fault: nobody wants things as they are, so even a small gain is told; False for a choice.
        converts: all data must be read once for it, or written anew, so it is listed lower.
    """

    key: str
    side: str
    why: str
    change: str
    gain: float = math.nan
    reach: float = math.nan
    is_fault: bool = False
    converts: bool = False


def cores_in_use(measured: Stretch | Loading | None) -> float | None:
    """Cores that were busy meanwhile, by this program or another one; None if not measured."""
    if measured is None or measured.cores is None:
        return None
    return measured.cores + (measured.others or 0.0)


def others_used(seen: Observation) -> float:
    """Cores that other programs used while the program was measured: the most in any of its measurements.

    Only if none of these has a count, it is estimated from the load average, less the program's own threads.
    """
    measured = [seen.real, seen.alone, *seen.changed.values()]
    known = [each.others for each in measured if each is not None and each.others is not None]
    if known or seen.load.average is None:
        return max(known, default=0.0)
    return min(float(seen.cpus), max(0.0, seen.load.average - seen.load.own_threads))


def step_seconds(seen: Observation) -> tuple[float, float, float]:
    """Returns (real, compute, data), seconds of a step as it is, of its computing, and of loading a batch alone.

    Each is NaN if it was not measured.
    """
    real, compute = (seen.real.step_s, seen.real.compute_s) if seen.real is not None else (math.nan, math.nan)
    return real, compute, seen.alone.batch_s if seen.alone is not None else math.nan


def expected_step_s(
    seen: Observation, *, compute_speedup: float = 1.0, data_speedup: float = 1.0, with_workers: bool = False
) -> float:
    """Expected seconds of a step whose computing and loading take less time.

    Args:
        seen: the observation.
        compute_speedup: number of times that computing is faster.
        data_speedup: number of times that loading is faster.
        with_workers: worker processes load meanwhile, although the loader now works in the caller's thread.
    """
    real, compute, data = step_seconds(seen)
    if math.isnan(real) or seen.real is None:
        return data / data_speedup
    if math.isnan(data):
        data = max(0.0, real - compute)
    faster = data / data_speedup
    if seen.num_workers == 0:
        return max(compute / compute_speedup, faster) if with_workers else compute / compute_speedup + faster
    # Time beyond the longer of the two: both compete for cores, or some batches take longer than others.  It shrinks
    # with the side that becomes faster, except where each step begins a new iterator.
    excess = max(0.0, real - max(compute, data)) if seen.real.wait_s > 0 else 0.0
    excess_left = 1.0 if seen.restarts_in_each_step else min(1 / data_speedup, 1 / compute_speedup)
    return max(compute / compute_speedup, faster) + excess * excess_left


def gain_of(
    seen: Observation, *, compute_speedup: float = 1.0, data_speedup: float = 1.0, with_workers: bool = False
) -> float:
    """Expected speedup of a step, NaN if that is not known; see `expected_step_s`."""
    if math.isnan(compute_speedup) or math.isnan(data_speedup):
        return math.nan
    now = expected_step_s(seen)
    then = expected_step_s(seen, compute_speedup=compute_speedup, data_speedup=data_speedup, with_workers=with_workers)
    return now / then if then > 0 else math.nan


def advice(
    seen: Observation, key: str, side: str, times: float, why: str, change: str, *,
    is_fault: bool = False, converts: bool = False,
) -> Advice:  # fmt: skip
    """Advice that makes one side of the step this number of times faster, NaN if that is not known."""
    gain = gain_of(seen, compute_speedup=times) if side == "compute" else gain_of(seen, data_speedup=times)
    return Advice(
        key=key, side=side, why=why, change=change, gain=gain, reach=times, is_fault=is_fault, converts=converts,
    )  # fmt: skip


def most_gain(seen: Observation, side: str) -> float:
    """Speedup of a step if computing ("compute") or loading ("data") takes no time; NaN if unknown."""
    if side == "compute":
        return gain_of(seen, compute_speedup=math.inf)
    return gain_of(seen, data_speedup=math.inf)


def wait_share(seen: Observation) -> float:
    """Share of a step in which the program waits for data; NaN if no step was seen.

    A step that seems shorter than loading its batch has used batches loaded earlier, so it counts as long as loading.
    On a device that computes in the background, waiting is what a step takes beyond the device's own time.
    """
    real, compute, data = step_seconds(seen)
    if math.isnan(real) or seen.real is None:
        return math.nan
    if seen.num_workers == 0:
        return seen.real.wait_s / real
    step = max(real, data) if not math.isnan(data) else real
    return min(1.0, max(0.0, 1 - compute / step))
