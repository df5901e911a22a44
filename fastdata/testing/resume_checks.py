"""Checks that a loader goes on exactly where another one has stopped."""

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
) -> None:
    """Stops a loader before the first batch and after every one; a new one must give the rest.

    Args:
        make_loader: makes a loader with `state_dict` and `load_state_dict` over the same data each time, as a program
            does that is started again.  An epoch must be short: it is read once for each of its batches.
        before: called with the first loader, before the epoch that is compared: to read another epoch, for example.
        seed: of torch's, Python's and NumPy's global generators before the first loader; those that resume begin with
            another one, since a program that is started again has other numbers, too.
        through_json: pass each state through JSON, as a checkpoint in JSON does.

    Raises:
        AssertionError: a batch is missing, comes twice or is another; it says after how many batches.
        TypeError: a state holds something that JSON has not, with `through_json`.
    """
    _seed_all(seed)
    loader = make_loader()
    if before is not None:
        before(loader)

    def saved() -> Any:
        state = loader.state_dict()  # at once: it may be an object that changes
        return json.loads(json.dumps(state)) if through_json else copy.deepcopy(state)

    iterator = iter(loader)
    states, whole = [saved()], []
    for batch in iterator:
        whole.append(_plain(batch))
        states.append(saved())
    assert whole, "the loader gives no batch, so nothing can be compared"
    for count, state in enumerate(states):
        _seed_all(seed + 1 + count)
        resumed = make_loader()
        resumed.load_state_dict(state)
        rest = [_plain(batch) for batch in resumed]
        place = f"resumed after {count} of {len(whole)} batches"
        assert len(rest) == len(whole) - count, f"{place}: {len(rest)} batches instead of {len(whole) - count}"
        for number, (batch, expected) in enumerate(zip(rest, whole[count:], strict=True), count):
            assert repr(batch) == repr(expected), f"{place}: batch {number} is another"


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
