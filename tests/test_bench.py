"""The arithmetic behind published figures."""

from __future__ import annotations

import pytest

from fastdata.bench import hidden_share


@pytest.mark.parametrize(
    ("copies", "kernels", "share"),
    [
        ([(0, 10)], [(0, 10)], 1.0),
        ([(0, 10)], [], 0.0),
        ([(0, 10), (20, 30)], [(5, 25)], 0.5),
        ([(0, 10)], [(2, 6), (4, 8), (3, 5)], 0.6),  # overlapping kernels count once
        ([], [(0, 1)], 0.0),
    ],
)
def test_the_hidden_share_of_copies(
    copies: list[tuple[int, int]], kernels: list[tuple[int, int]], share: float
) -> None:
    assert hidden_share(copies, kernels) == pytest.approx(share)
