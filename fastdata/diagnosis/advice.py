"""Advice from an observation: what to change, why, and how many times faster the program should then run."""

from __future__ import annotations

import math

from fastdata.diagnosis.advice_compute import about_compute
from fastdata.diagnosis.advice_data import about_data
from fastdata.diagnosis.observation import Observation
from fastdata.diagnosis.speedup_model import Advice, most_gain

__all__ = ["NOTHING", "advise"]

_WORTH = 1.02  # gains below that are not told,
NOTHING = 1.002  # nor those of faults up to this one
_HARDLY = 1.1  # times: choices of unknown gain are not told if a side that takes no time at all gains less
_ALIKE = 0.05  # gains that differ by less count as the same
_CONVERTING = 1.7  # times the gain of a changed line: what a change must gain for which data is converted


def advise(seen: Observation) -> list[Advice]:
    """All advice, that with the largest gain first; faults before choices of the same gain."""
    found = [*about_data(seen), *about_compute(seen)]
    told = [each for each in found if not (_gains_nothing(each) or _cannot_gain(seen, each))]
    return sorted(
        told, key=lambda each: (-round(_rank(each) / _ALIKE), not _is_clear_fault(each), -_or_one(each.reach))
    )


def _gains_nothing(advice: Advice) -> bool:
    """True if the gain is too small; if it is unknown, by the side's speedup."""
    if math.isnan(advice.gain):
        return advice.reach < _WORTH
    return advice.gain <= NOTHING if advice.is_fault else advice.gain < _WORTH


def _cannot_gain(seen: Observation, advice: Advice) -> bool:
    """A choice of unknown gain, about a side that takes hardly any of a step: faster computing of 5 % of it, say."""
    if advice.is_fault or not math.isnan(advice.gain):
        return False
    return most_gain(seen, advice.side) < _HARDLY  # False for NaN


def _is_clear_fault(advice: Advice) -> bool:
    return advice.is_fault and not advice.gain < _WORTH


def _rank(advice: Advice) -> float:
    """Worth of a change, for sorting: its gain, less if it converts the data; an unknown gain counts as a little."""
    if math.isnan(advice.gain):
        return 1.1 if advice.is_fault else 1.0
    return advice.gain / _CONVERTING if advice.converts else advice.gain


def _or_one(value: float) -> float:
    return 1.0 if math.isnan(value) else value
