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
    "cores_in_use",
    "expected_step_s",
    "gain_of",
    "most_gain",
    "others_used",
    "step_seconds",
    "tried",
    "wait_share",
]

BUSY = 0.75  # share of the cores from which on who wants more has to take them from somebody


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One change.

    Attributes:
        key: name of the change, stable over releases.
        side: side of the step that it makes faster: "data" or "compute".
        why: the measurement behind it, in words.
        change: the change to make, as it is to be typed where that is possible.
        gain: expected speedup of the program; NaN if that was not measured.
        measured: speedup of the step when the change was tried; NaN if it was not tried.
        reach: speedup of the side alone, without regard to the other side.
        is_fault: something that nobody wants, as opposed to a choice.
        converts: the data must be written anew, or read once, for it.
    """

    key: str
    side: str
    why: str
    change: str
    gain: float = math.nan
    measured: float = math.nan
    reach: float = math.nan
    is_fault: bool = False
    converts: bool = False


def tried(seen: Observation, key: str) -> float:
    """Measured speedup of a step with a change; NaN if it was not tried."""
    before, after = seen.trials.get(key, (math.nan, math.nan))
    return before / after


def cores_in_use(measured: Stretch | Loading | None) -> float | None:
    """Cores that were busy meanwhile, by this program or another one; None if not measured."""
    if measured is None or measured.cores is None:
        return None
    return measured.cores + (measured.others or 0.0)


def others_used(seen: Observation) -> float:
    """Cores that other programs used while it was measured: the most of all stretches.

    The load average bears witness only where the system's counters tell nothing: threads beyond the program's own.
    """
    measured = [seen.real, seen.repeated, seen.alone, *seen.changed.values()]
    known = [each.others for each in measured if each is not None and each.others is not None]
    if known or seen.load.average is None:
        return max(known, default=0.0)
    return min(float(seen.cpus), max(0.0, seen.load.average - seen.load.own_threads))


def step_seconds(seen: Observation) -> tuple[float, float, float]:
    """A step as it is, its compute, and its data if nobody computed; NaN for what was not measured."""
    real = seen.real.step_s if seen.real is not None else math.nan
    # A repeated batch is there at once; what is waited for is another loader's, which feeds the same steps.
    compute = seen.repeated.busy_s if seen.repeated is not None else math.nan
    if math.isnan(compute) and seen.real is not None:
        compute = seen.real.busy_s
    data = seen.alone.batch_s if seen.alone is not None else math.nan
    return real, compute, data


def expected_step_s(
    seen: Observation, *, compute_times: float = 1.0, data_times: float = 1.0, with_workers: bool = False
) -> float:
    """Seconds of a step whose compute and data are so many times faster; with_workers: that load meanwhile."""
    real, compute, data = step_seconds(seen)
    if math.isnan(real) or seen.real is None:
        return data / data_times
    if seen.facts.device == "cpu" and not (_share_cores(seen) and seen.num_workers):
        compute = seen.real.busy_s  # batches may cost unequally, so it is not that of the repeated one
    if math.isnan(data):
        data = max(0.0, real - compute)
    faster = data / data_times
    if seen.num_workers == 0:
        return max(compute / compute_times, faster) if with_workers else compute / compute_times + faster
    # What a step takes beyond the longer of the two: both want the same cores, or some batches take longer than others.
    beyond = max(0.0, real - max(compute, data)) if seen.real.wait_s > 0 else 0.0
    helps = 1.0 if seen.restarts_in_each_step else min(1 / data_times, 1 / compute_times)
    return max(compute / compute_times, faster) + beyond * helps


def _share_cores(seen: Observation) -> bool:
    """True if computing and loading compete for the same cores; where some are idle, neither slows the other."""
    in_use = cores_in_use(seen.real)
    return seen.real is not None and (in_use if in_use is not None else seen.cpus) > BUSY * seen.cpus


def gain_of(
    seen: Observation, *, compute_times: float = 1.0, data_times: float = 1.0, with_workers: bool = False
) -> float:
    """Expected speedup of a step whose compute and data are so many times faster; NaN if that is not known."""
    if math.isnan(compute_times) or math.isnan(data_times):
        return math.nan
    now = expected_step_s(seen)
    then = expected_step_s(seen, compute_times=compute_times, data_times=data_times, with_workers=with_workers)
    return now / then if then > 0 else math.nan


def most_gain(seen: Observation, side: str) -> float:
    """Speedup of a step if computing ("compute") or loading ("data") takes no time; NaN if unknown."""
    if side == "compute":
        return gain_of(seen, compute_times=math.inf)
    return gain_of(seen, data_times=math.inf)


def wait_share(seen: Observation) -> float:
    """Share of a step in which the program waits for data; NaN if no step was seen.

    A step cannot be shorter than loading its batch takes; one that seems to be has lived on batches made before.  On a
    device that computes in the background, waiting is what a step takes beyond computing on a batch that is there.
    """
    real, compute, data = step_seconds(seen)
    if math.isnan(real) or seen.real is None:
        return math.nan
    if seen.num_workers == 0:
        return seen.real.wait_s / real
    busy = compute if seen.facts.device != "cpu" else seen.real.busy_s
    step = max(real, data) if not math.isnan(data) else real
    return min(1.0, max(0.0, 1 - busy / step))
