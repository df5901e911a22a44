"""Names of parameters that are the same in every run, which the default ones of functions are not."""

from __future__ import annotations


def name_of(parameter: object) -> str:
    """A function's name; of anything else its text."""
    return str(getattr(parameter, "__name__", parameter))
