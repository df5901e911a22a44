"""The counter-based random number generator (Philox): each number is a pure function of a key and a counter.

The key is (seed, epoch) and the counter holds the sample, so no number depends on the order of draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import native

__all__ = ["Key", "Words", "normal", "philox4x32", "portable_exp", "random_words", "uniform"]

Words: TypeAlias = npt.NDArray[np.uint64]
Floats: TypeAlias = npt.NDArray[np.float64]

_LOW_32 = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Key:
    """The generator's key: seed and epoch.

    Attributes:
        seed: any integer; its low 64 bits count.
        epoch: the epoch's number.
    """

    seed: int
    epoch: int

    def derived(self, number: int, purpose: int) -> Key:
        """Returns a different key for each number, and the key itself for 0; `purpose` is a large odd constant."""
        return Key(seed=self.seed + number * purpose, epoch=self.epoch)

    def words(self) -> tuple[int, int]:
        """Returns two 32-bit Philox keys, mixed from seed and epoch by SplitMix64's finaliser."""
        x = (self.seed + 0x9E3779B97F4A7C15 * (self.epoch + 1)) & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        x = ((x ^ x >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        x ^= x >> 31
        return x & 0xFFFFFFFF, x >> 32


def philox4x32(counter: Sequence[npt.ArrayLike], key: tuple[int, int]) -> list[Words]:
    """Computes ten rounds of Philox-4x32.

    Args:
        counter: four arrays of 32-bit counters that broadcast together.
        key: two 32-bit words.

    Returns:
        Four uint64 arrays holding 32 random bits each, of the broadcast shape.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    core = native.available()
    if core is not None and np.ndim(counter[3]) == 0:
        first, second, third = np.broadcast_arrays(*(np.asarray(c, np.int64) for c in counter[:3]))
        words = core.philox(first.ravel(), second.ravel(), third.ravel(), int(counter[3]), key)  # type: ignore[arg-type]
        return [word.reshape(first.shape) for word in words]
    c0, c1, c2, c3 = (np.asarray(c, dtype=np.uint64) for c in counter)
    k0, k1 = key
    shift = np.uint64(32)
    for _ in range(10):
        p0, p1 = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            p1 >> shift ^ c1 ^ np.uint64(k0),
            p1 & _LOW_32,
            p0 >> shift ^ c3 ^ np.uint64(k1),
            p0 & _LOW_32,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return list(np.broadcast_arrays(c0, c1, c2, c3))


def random_words(numbers: npt.ArrayLike, stream: int, key: Key) -> Words:
    """uint64, (N,): 64 random bits for each of N numbers, in one stream."""
    high, low = philox4x32((numbers, 0, 0, stream), key.words())[:2]
    return np.asarray(high << np.uint64(32) | low, np.uint64)


def uniform(words: Words) -> Floats:
    """Maps 32 random bits to [0, 1)."""
    return np.asarray(words * 2.0**-32, dtype=np.float64)


def normal(share: Floats, other: Floats) -> Floats:
    """Computes standard normal numbers from two uniform ones in [0, 1) for each.  Source: Box and Muller, 1958."""
    return np.asarray(np.sqrt(-2.0 * np.log(1.0 - share)) * np.cos(2 * np.pi * other), dtype=np.float64)


def portable_exp(x: Floats) -> Floats:
    """Computes e to the power of x with additions, multiplications and divisions alone.

    Library functions differ in the last bit from machine to machine, and a view must not.

    Args:
        x: exponents of absolute value below 700.
    """
    turns = np.rint(x * 1.4426950408889634)  # 1 / ln 2
    rest = (x - turns * 0.6931471803691238) - turns * 1.9082149292705877e-10  # ln 2 in two parts
    total = np.ones_like(rest)
    for term in range(13, 0, -1):
        total = 1.0 + total * rest / term
    return np.asarray(np.ldexp(total, turns.astype(np.int32)), dtype=np.float64)
