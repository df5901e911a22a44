"""Two samples of random numbers: how likely it is that they differ so much although one distribution gave both."""

from __future__ import annotations

import numpy as np
import torch

FEWEST = 5  # expected of a value in the smaller sample; chi-squared holds for counts that are not tiny


def largest_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance: the largest between the two samples' distribution functions."""
    points = np.unique(np.concatenate([a, b]))
    below_a = np.searchsorted(np.sort(a), points, side="right") / len(a)
    below_b = np.searchsorted(np.sort(b), points, side="right") / len(b)
    return float(np.abs(below_a - below_b).max())


def p_of_gap(a: np.ndarray, b: np.ndarray) -> float:
    """Of a distance of this size, at most: the first term of Kolmogorov's series."""
    effective = len(a) * len(b) / (len(a) + len(b))
    return min(1.0, 2.0 * float(np.exp(-2.0 * effective * largest_gap(a, b) ** 2)))


def p_of_ends(a: np.ndarray, b: np.ndarray) -> float:
    """Of so many values beyond the other sample's least or greatest, at most.

    The k greatest values of both together all come from one sample with a probability of at most its share of the
    values, to the power of k.  A range that is a little too wide or narrow shows here long before it does in the gap.
    """
    return min(
        (len(one) / (len(one) + len(other))) ** int(beyond)
        for one, other in ((a, b), (b, a))
        for beyond in ((one > other.max()).sum(), (one < other.min()).sum())
    )


def p_of_counts(a: np.ndarray, b: np.ndarray) -> float:
    """Of chi-squared for how often each value comes; rows of several columns are one value.  Rare values are one."""
    values = _numbered(np.concatenate([a, b]))
    counts = np.stack([np.bincount(part, minlength=values.max() + 1) for part in np.split(values, [len(a)])])
    shares = np.array([[len(a)], [len(b)]]) / len(values)
    is_rare = (counts.sum(axis=0) * shares.min()) < FEWEST
    counts = np.column_stack([counts[:, ~is_rare], counts[:, is_rare].sum(axis=1)])
    counts = counts[:, counts.sum(axis=0) > 0]
    expected = counts.sum(axis=0) * shares
    squares, freedom = float(((counts - expected) ** 2 / expected).sum()), counts.shape[1] - 1
    if freedom == 0:
        return 1.0
    return float(torch.special.gammaincc(torch.tensor(freedom / 2.0).double(), torch.tensor(squares / 2.0).double()))


def _numbered(rows: np.ndarray) -> np.ndarray:
    """A number from 0 for each of the values that there are."""
    numbers = np.zeros(len(rows), np.int64)
    for column in rows.reshape(len(rows), -1).T:
        _, places = np.unique(column, return_inverse=True)
        numbers = numbers * (places.max() + 1) + places
    return np.unique(numbers, return_inverse=True)[1]
