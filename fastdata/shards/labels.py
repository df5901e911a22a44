"""Labels: class numbers, or class names that are converted to numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from fastdata.errors import ConversionError
from fastdata.shards.format import NO_LABEL

__all__ = [
    "LABEL_NAMES",
    "MOST_LABELS",
    "checked_class",
    "class_number",
    "class_numbers",
    "classes_for",
    "integer_label",
]

MOST_LABELS = 1 << 62
LABEL_NAMES = ("label", "labels", "cls", "target", "fine_label")  # what columns and JSON entries are called

_NAMED = 5  # classes in a message


def integer_label(value: Any, where: str) -> int:
    """A label as a class number, or `NO_LABEL`; accepts what Python accepts as an index, except bool.

    Args:
        value: the label in the source.
        where: file and sample, with which messages begin.

    Raises:
        ConversionError: it is not an integer, or out of range.
    """
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise ConversionError(
            f"{where} has the label {value!r} of type {type(value).__name__}; labels must be integers from 0, or "
            f"{NO_LABEL} for no label: convert it in the source, for example with int(label)"
        )
    if not NO_LABEL <= number < MOST_LABELS:
        raise ConversionError(
            f"{where} has the label {number}; labels must be from 0 to {MOST_LABELS - 1}, or {NO_LABEL} for no label"
        )
    return number


def classes_for(labels: Iterable[tuple[int | str, str]], given: list[str] | None) -> list[str] | None:
    """Class names by number, if labels are names: the given names, else all that occur, sorted; None for numbers.

    Args:
        labels: all labels, each with its file and sample, for messages.
        given: class names by number, if they are known.

    Raises:
        ConversionError: some labels are names and others are numbers.
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
            raise ConversionError(
                f"labels must be all numbers or all names: {numbered}, but {named}; change one of them in the source"
            )
    return given if given is not None or not names else sorted(names)


def class_numbers(classes: list[str] | None) -> dict[str, int]:
    """Class numbers by name."""
    return {name: number for number, name in enumerate(classes or ())}


def class_number(label: int | str, numbers: dict[str, int], where: str) -> int:
    """A label as a class number.

    Raises:
        ConversionError: the label is a name that is not among the classes.
    """
    if not isinstance(label, str):
        return label
    if label not in numbers:
        known = ", ".join([*list(numbers)[:_NAMED], *["..."] * (len(numbers) > _NAMED)]) or "none"
        raise ConversionError(
            f"{where} has the label {label!r}, which is neither a number nor one of the known classes ({known}); list "
            "all class names with fastdata convert SOURCE DEST --classes FILE, or let convert number those that occur"
        )
    return numbers[label]


def checked_class(label: int | str, numbers: dict[str, int], where: str) -> int:
    """A label as the number of one of the classes, if these are known.

    Raises:
        ConversionError: there is no such class.
    """
    number = class_number(label, numbers, where)
    if numbers and number >= len(numbers):
        raise ConversionError(
            f"{where} has the label {number}, but there are {len(numbers)} classes, numbered from 0; correct the "
            "label, or the list of classes"
        )
    return number
