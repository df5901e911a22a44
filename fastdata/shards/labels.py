"""Labels: class numbers, or class names that become numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from fastdata.errors import ConversionError
from fastdata.shards.format import NO_LABEL

__all__ = ["LABEL_NAMES", "MOST_LABELS", "class_number", "class_numbers", "classes_for", "integer_label"]

MOST_LABELS = 1 << 62
LABEL_NAMES = ("label", "labels", "cls", "target", "fine_label")  # what columns and JSON entries are called

_NAMED = 5  # classes in a message


def integer_label(value: Any, where: str) -> int:
    """A class number, or `NO_LABEL`; whatever Python takes as an index, but no truth value.

    Args:
        value: what the source gave.
        where: what messages begin with.

    Raises:
        ConversionError: it is nothing of that kind.
    """
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise ConversionError(
            f"{where} has the label {value!r}, of type {type(value).__name__}; labels are integers from 0, and "
            f"{NO_LABEL} for none: convert it at the source, as int(label) if it is whole"
        )
    if not NO_LABEL <= number < MOST_LABELS:
        raise ConversionError(
            f"{where} has the label {number}; accepted are 0 to {MOST_LABELS - 1}, and {NO_LABEL} for none"
        )
    return number


def classes_for(labels: Iterable[tuple[int | str, str]], given: list[str] | None) -> list[str] | None:
    """The names by number for labels of which some may be names: the given ones, else those that occur, sorted.

    Args:
        labels: each with the words for where it is.
        given: names by number, if they are known.

    Raises:
        ConversionError: some are names and some are numbers.
    """
    names: set[str] = set()
    numbered = named = ""
    for label, where in labels:
        if isinstance(label, str):
            names.add(label)
            named = named or f"{where} has the name {label!r}"
        elif label != NO_LABEL:
            numbered = numbered or f"{where} has the number {label}"
        if named and numbered:
            raise ConversionError(f"labels are numbers or names, not both: {numbered}, and {named}; mend one of them")
    return given if given is not None or not names else sorted(names)


def class_numbers(classes: list[str] | None) -> dict[str, int]:
    """Numbers by name."""
    return {name: number for number, name in enumerate(classes or ())}


def class_number(label: int | str, numbers: dict[str, int], where: str) -> int:
    """A label as a number.

    Raises:
        ConversionError: it is a name that is not among the classes.
    """
    if not isinstance(label, str):
        return label
    if label not in numbers:
        known = ", ".join([*list(numbers)[:_NAMED], *["..."] * (len(numbers) > _NAMED)]) or "none"
        raise ConversionError(
            f"{where} has the label {label!r}, which is no number and none of the classes that are known ({known}); "
            "name them all with fastdata convert SOURCE DEST --classes FILE, or let convert number those that occur"
        )
    return numbers[label]
