"""A state may be taken before the first batch, after any and after the last: a resumed run gives what is missing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_routes import BATCH, ROUTES, SIZE, drawn
from loader_states import saved
from streams import CountingIterator
from torch.utils.data import IterableDataset

from fastdata import DataLoader
from fastdata.testing import check_resume

BEFORE: dict[str, Callable[[Any], object] | None] = {
    "nothing": None,
    "an epoch": list,
    "a part of one": lambda loader: next(iter(loader)),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("name", ROUTES)
def test_what_is_missing_comes_after_any_state(folder: Path, name: str, before: str) -> None:
    check_resume(lambda: DataLoader(batch_size=BATCH, **ROUTES[name](folder)), before=BEFORE[before], seed=1)


class Goes(CountingIterator, IterableDataset[int]):
    """Its own iterator, which goes on where it is: only a state puts it back."""


def test_a_state_before_the_first_batch_puts_a_dataset_back_that_has_been_read_to_its_end() -> None:
    dataset = Goes(SIZE)
    loader = DataLoader(dataset, BATCH)
    iterator = iter(loader)
    state = saved(loader)
    whole = [drawn(batch) for batch in iterator]
    resumed = DataLoader(dataset, BATCH)
    resumed.load_state_dict(state)
    assert [drawn(batch) for batch in resumed] == whole
