"""Dataclasses whose fields are also command line flags: accepted values are declared once, and checked."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastdata.errors import OptionError

__all__ = ["add_flags", "argument", "check", "check_flags", "flag", "from_flags", "positive"]


def flag(
    default: Any,
    help: str,  # noqa: A002 - as argparse has it
    *,
    short: str | None = None,
    choices: Sequence[str] | None = None,
    lies_in: str | None = None,
    bare: str | float | None = None,
) -> Any:
    """A dataclass field that is also a command line flag.

    Args:
        default: the field's default value; if it is None, None is always accepted.
        help: describes the field, in --help and in error messages.
        short: a second name of the flag, such as "-b".
        choices: the accepted strings.
        lies_in: the interval of accepted numbers, such as "[0, 1)".
        bare: the value if the flag is given without one.
    """
    metadata = {"help": help, "short": short, "choices": choices, "lies_in": lies_in, "bare": bare}
    return dataclasses.field(default=default, metadata=metadata)


def check(good: bool, message: str) -> None:
    """Raises OptionError with the message unless `good`."""
    if not good:
        raise OptionError(message)


def argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wraps a parser for argparse's `type`, so that argparse prints the message of its OptionError."""

    def parsed(text: str) -> Any:
        try:
            return parse(text)
        except OptionError as error:
            told = re.sub(r"^\w+=", "", str(error))  # argparse names the option itself
            raise argparse.ArgumentTypeError(told) from error

    return parsed


def positive(text: str) -> int:
    """A whole number above 0, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def check_flags(options: Any) -> None:
    """Checks each field, and converts it to its declared type (for example an int to float).

    Raises:
        OptionError: a value has another type, is not one of the choices, or is outside of its interval.
    """
    hints = typing.get_type_hints(type(options))
    for each in dataclasses.fields(options):
        value, interval = getattr(options, each.name), each.metadata["lies_in"]
        literals = _literals(hints[each.name])
        choices = literals or each.metadata["choices"]
        if value is None and each.default is None:
            continue
        kind = "str" if literals else str(each.type).partition(" |")[0].partition("[")[0]
        try:
            value = _KINDS[kind](value)
        except (TypeError, ValueError) as error:
            raise OptionError(f"{each.name}={value!r} is not of type {kind} ({each.metadata['help']})") from error
        object.__setattr__(options, each.name, value)
        if choices is not None:
            check(value in choices, f"{each.name}={value!r} is not accepted; use one of {', '.join(choices)}")
        if interval is not None:
            told = f"{each.name}={value!r} is not in {interval} ({each.metadata['help']})"
            check(all(_is_inside(one, interval) for one in (value if isinstance(value, tuple) else (value,))), told)


def _literals(hint: object) -> tuple[str, ...]:
    """The values of a Literal type; none of other types."""
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError
    return int(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _two(value: Any) -> tuple[float, float]:
    first, second = value
    return _real(first), _real(second)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "int": _whole,
    "float": _real,
    "bool": _truth,
    "str": os.fspath,
    "tuple": _two,
}


def _is_inside(value: float, interval: str) -> bool:
    low, high = map(float, interval[1:-1].split(","))
    return (low < value or (interval[0] == "[" and value == low)) and (
        value < high or (interval[-1] == "]" and value == high)
    )


def add_flags(parser: argparse.ArgumentParser, cls: Any) -> None:
    """Adds a flag for each field of a dataclass, in an argument group of its own."""
    group, hints = parser.add_argument_group(cls.__name__), typing.get_type_hints(cls)
    for each in dataclasses.fields(cls):
        names = [*filter(None, [each.metadata["short"]]), f"--{each.name.replace('_', '-')}"]
        default = "" if each.default in (None, "") else f" (default: {each.default})"
        more: dict[str, Any] = {"default": each.default, "help": each.metadata["help"] + default, "dest": each.name}
        hint = hints[each.name]
        kind = typing.get_args(hint)[0] if isinstance(hint, types.UnionType) else hint
        if kind is bool:
            more["action"] = argparse.BooleanOptionalAction
        elif typing.get_origin(kind) is tuple:
            more |= {"type": float, "nargs": 2, "metavar": "X"}
        else:
            literals = _literals(hint)
            more |= {"type": str if literals else kind, "choices": literals or each.metadata["choices"]}
            if (bare := each.metadata["bare"]) is not None:
                more |= {"nargs": "?", "const": bare}
                more["help"] += f"; {bare} if no value is given"
        group.add_argument(*names, **more)


def from_flags(cls: Any, given: argparse.Namespace) -> Any:
    """An instance of the class from the parsed flags."""
    return cls(**{each.name: getattr(given, each.name) for each in dataclasses.fields(cls)})
