"""Checks that a loader goes on exactly where another one has stopped, also in the epochs behind."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["check_resume"]


def check_resume(
    make_loader: Callable[[], Any],
    *,
    before: Callable[[Any], object] | None = None,
    seed: int = 0,
    through_json: bool = True,
    later_epochs: int = 1,
) -> None:
    """Stops a loader before an epoch, in it after every batch, and behind it; a new loader must give all that follows.

    Args:
        make_loader: makes a loader with `state_dict` and `load_state_dict` over the same data each time, as a program
            does that is started again.  An epoch must be short: it is read once for each of its batches.
        before: called with the first loader, before the epoch that is compared: to read another epoch, for example.
        seed: of torch's, Python's and NumPy's global generators before the first loader; those that resume begin with
            another one, since a program that is started again has other numbers, too.
        through_json: pass each state through JSON, as a checkpoint in JSON does.
        later_epochs: epochs behind the interrupted one that must be equal, too.

    Raises:
        AssertionError: a batch is missing, comes twice or is another; it says in which epoch, and where the loader had
            been stopped.
        TypeError: a state holds something that JSON has not, with `through_json`.
    """
    _seed_all(seed)
    loader = make_loader()
    if before is not None:
        before(loader)

    def saved() -> Any:
        state = loader.state_dict()  # at once: it may be an object that changes
        return json.loads(json.dumps(state)) if through_json else copy.deepcopy(state)

    stops = [("before the epoch", 0, saved())] if before is None else []  # else it may be in an epoch that was left
    iterator, first = iter(loader), []
    stops.append(("after 0 batches", 0, saved()))
    for batch in iterator:
        first.append(_plain(batch))
        stops.append((f"after {len(first)} batches", len(first), saved()))
    assert first, "the loader gives no batch, so nothing can be compared"
    whole = [first]
    for _ in range(later_epochs):
        stops += [("before the next epoch", len(first), saved())] if len(whole) == 1 else []
        whole.append([_plain(batch) for batch in loader])
    for count, (stop, given, state) in enumerate(stops):
        _seed_all(seed + 1 + count)
        resumed = make_loader()
        resumed.load_state_dict(state)
        missing = [first[given:], *whole[1:]]
        for number, expected in enumerate(missing[1:] if "next" in stop else missing):
            _check_equal([_plain(batch) for batch in resumed], expected, f"resumed {stop}, epoch {number}")


def _check_equal(batches: list[Any], expected: list[Any], place: str) -> None:
    assert len(batches) == len(expected), f"{place}: {len(batches)} batches instead of {len(expected)}"
    for number, (batch, other) in enumerate(zip(batches, expected, strict=True)):
        assert repr(batch) == repr(other), f"{place}: batch {number} of those that were missing is another"


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _plain(value: Any) -> Any:
    """Nested lists and numbers, which `repr` shows in full."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
