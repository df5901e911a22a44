"""A state may be taken before the first batch, after any and after the last: a resumed run gives what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_routes import BATCH, ROUTES, SIZE, drawn, seed_all
from loader_states import saved
from streams import CountingIterator
from torch.utils.data import IterableDataset

from fastdata import DataLoader


@pytest.mark.parametrize("before", ["nothing", "an epoch", "a part of one"])
@pytest.mark.parametrize("name", ROUTES)
def test_what_is_missing_comes_after_any_state(folder: Path, name: str, before: str) -> None:
    def made() -> DataLoader[Any]:
        options = ROUTES[name](folder)
        return DataLoader(batch_size=BATCH, **options)

    seed_all(1)
    loader = made()
    if before == "an epoch":
        list(loader)
    elif before == "a part of one":
        next(iter(loader))
    iterator = iter(loader)
    states, whole = [saved(loader)], []
    for batch in iterator:
        whole.append(drawn(batch))
        states.append(saved(loader))
    for count, state in enumerate(states[:-1]):
        seed_all(99)
        resumed = made()
        resumed.load_state_dict(state)
        assert [drawn(batch) for batch in resumed] == whole[count:], f"after {count} of {len(whole)} batches"


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
