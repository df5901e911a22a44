"""Advice from an observation: what to change, why, and how many times faster the program should then run."""

from __future__ import annotations

import math

from fastdata.diagnosis.advice_compute import about_compute, about_device
from fastdata.diagnosis.advice_data import about_data
from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import Advice, most_gain

__all__ = ["NOTHING", "advise"]

_WORTH = 1.02  # gains below that are not told,
NOTHING = 1.002  # nor those of faults up to this one
_HARDLY = 1.1  # times: choices of unknown gain are not told if a side that takes no time at all gains less
_ALIKE = 0.05  # gains that differ by less count as the same
_BEYOND_NOISE = 1.1  # gain
_CONVERTING = 1.7  # times the gain of a changed line: what a change must gain for which data is converted


def advise(seen: Observation) -> list[Advice]:
    """All advice, that with the largest gain first; faults before choices of the same gain."""
    found = [*about_data(seen), *about_compute(seen), *about_device(seen)]
    told = [each for each in found if not (_gains_nothing(each) or _is_noise(each) or _cannot_gain(seen, each))]
    return sorted(
        told, key=lambda each: (-round(_rank(each) / _ALIKE), not _is_clear_fault(each), -_or_one(each.reach))
    )


def _gains_nothing(advice: Advice) -> bool:
    """True if the measured gain, else the expected one, is too small; if both are unknown, by the side's speedup."""
    if math.isnan(_best(advice)):
        return advice.reach < _WORTH
    if advice.is_fault:
        return _best(advice) <= NOTHING
    return _best(advice) < _WORTH


def _cannot_gain(seen: Observation, advice: Advice) -> bool:
    """A choice of unknown gain, about a side that takes hardly any of a step: faster computing of 5 % of it, say."""
    if advice.is_fault or not math.isnan(_best(advice)):
        return False
    return most_gain(seen, advice.side) < _HARDLY  # False for NaN


def _is_noise(advice: Advice) -> bool:
    """A loss was expected, and what was measured is hardly a gain."""
    return not advice.is_fault and advice.gain < 1 and advice.measured < _BEYOND_NOISE


def _is_clear_fault(advice: Advice) -> bool:
    return advice.is_fault and not _best(advice) < _WORTH


def _best(advice: Advice) -> float:
    return advice.measured if not math.isnan(advice.measured) else advice.gain


def _rank(advice: Advice) -> float:
    """Worth of a change, for sorting: its gain, less if it converts the data; an unknown gain counts as a little."""
    known = _best(advice)
    if math.isnan(known):
        return 1.1 if advice.is_fault else 1.0
    return known / _CONVERTING if advice.converts else known


def _or_one(value: float) -> float:
    return 1.0 if math.isnan(value) else value
