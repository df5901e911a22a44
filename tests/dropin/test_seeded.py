"""Draws of transforms that are not fused depend on the sample alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fastdata.patches.random_functions import SeededDraws

DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(3),
    "randint": lambda: torch.randint(0, 100, (5,)),
    "randperm": lambda: torch.randperm(9),
    "uniform_": lambda: torch.empty(4).uniform_(-1, 1),
    "rand_like": lambda: torch.rand_like(torch.empty(2, 3)),
    "randn_like": lambda: torch.randn_like(torch.empty(2, 3, dtype=torch.float64)),
    "randn_like by name": lambda: torch.randn_like(input=torch.empty(2, 3)),
    "randint_like": lambda: torch.randint_like(torch.empty(4, dtype=torch.int64), 3, 90),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_depends_on_the_seed_alone(name: str) -> None:
    before = torch.get_rng_state()
    drawn = []
    for seed in (1, 1, 2):
        with SeededDraws(seed):
            drawn.append(DRAWS[name]())
    plain = DRAWS[name]()
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert (drawn[0].dtype, drawn[0].shape) == (plain.dtype, plain.shape)
    torch.set_rng_state(before)
    with SeededDraws(3):
        DRAWS[name]()
    assert torch.equal(torch.get_rng_state(), before)
