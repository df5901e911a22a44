"""Damage to files: bytes with some random changes, as bad disks, cut transfers and fuzzers make them."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

_SIZES = (0, 1, 2, 7, 8, 255, 256, 4096, 32768, 65535)
_LENGTHS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**6, 2**31, 2**32, 2**63, 2**64, 10**30, -(10**30), 0.5, 1e300, float("nan")),
    *("", "x", "\ud800", "\0", "a" * 1000, [], [0], [None, None], [[1, 2]], [[0, 0]], {}, {"a": {}}),
)
Damage = Callable[[bytearray, Random, Sequence[bytes]], None]


def mutated(data: bytes, rng: Random, others: Sequence[bytes] = (b"",)) -> bytes:
    """A copy with 1 to 8 changes of any kind; parts of `others` may be spliced in."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 8))):
        rng.choice(ALL)(changed, rng, others)
    return bytes(changed)


def damaged(data: bytes, rng: Random) -> bytes:
    """A copy that differs: with one flipped bit, one overwritten run, one wrong length, or cut short."""
    while True:
        changed = bytearray(data)
        rng.choice((flip_bit, flip_bit, overwrite, truncate, set_length))(changed, rng, ())
        if changed != data:
            return bytes(changed)


def with_other_value(content: Any, rng: Random) -> Any:
    """A copy of what JSON can hold, in which one value, or one that holds others, is another or is missing."""
    content = copy.deepcopy(content)
    places: list[tuple[Any, Any]] = []
    waiting = [content]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict | list):
            keys = list(each) if isinstance(each, dict) else list(range(len(each)))
            places += [(each, key) for key in keys]
            waiting += [each[key] for key in keys]
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    elif type(holder[key]) is int and rng.random() < 0.5:
        holder[key] = holder[key] ^ 1 << rng.randrange(70)
    else:
        holder[key] = rng.choice(_VALUES)
    return content


def _run(data: bytearray, rng: Random) -> slice:
    """Some bytes in a row; mostly few."""
    begin = rng.randrange(len(data) + 1)
    return slice(begin, begin + rng.choice((1, 2, 4, 16, 64, 1 + len(data) // 4)))


def flip_bit(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Flips one bit."""
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def overwrite(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Puts zeros, ones or noise over a run."""
    run = _run(data, rng)
    count = len(data[run])
    data[run] = rng.choice((bytes(count), b"\xff" * count, rng.randbytes(count)))


def delete(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Removes a run."""
    del data[_run(data, rng)]


def duplicate(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Repeats a run at another place."""
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[_run(data, rng)]


def truncate(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Cuts the end off."""
    del data[rng.randrange(len(data) + 1) :]


def splice(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Goes on with the end of another file."""
    other = rng.choice(others)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


def insert_marker(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Inserts what a JPEG has for a marker."""
    at = rng.randrange(len(data) + 1)
    data[at:at] = bytes((0xFF, rng.choice((0x00, 0xC0, 0xC2, 0xC4, 0xD0, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xFF))))


def set_size(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Makes two bytes near the beginning, where sizes and lengths are, another number, in either byte order."""
    if len(data) >= 2:
        struct.pack_into(rng.choice("<>") + "H", data, rng.randrange(min(len(data) - 1, 700)), rng.choice(_SIZES))


def set_length(data: bytearray, rng: Random, others: Sequence[bytes]) -> None:
    """Makes eight bytes a length: of nothing, of gigabytes, or one that is negative when signed."""
    if len(data) >= 8:
        at = rng.randrange(len(data) // 4 - 1) * 4 if rng.random() < 0.8 and len(data) >= 12 else 0
        struct.pack_into("<Q", data, at, rng.choice(_LENGTHS))


ALL: tuple[Damage, ...] = (
    flip_bit,
    flip_bit,
    overwrite,
    delete,
    duplicate,
    truncate,
    splice,
    insert_marker,
    set_size,
)
