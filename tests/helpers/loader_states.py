"""States of loaders, and the labels that a loader gives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fastdata import DataLoader


def saved(loader: DataLoader) -> dict[str, Any]:
    """The state as a checkpoint in JSON would hold it."""
    return json.loads(json.dumps(loader.state_dict()))  # type: ignore[no-any-return]


def labels(batches: Iterable[Any]) -> list[list[int]]:
    """The first tensor of each batch: of a dataset of numbers, the numbers."""
    return [batch[0].tolist() for batch in batches]
