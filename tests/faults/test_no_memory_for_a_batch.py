"""A batch that there is no memory for: its error comes at its place, and the epoch goes on behind it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchvision.transforms as v1
from folders import numbered
from torchvision.datasets import ImageFolder

from fastdata import DataLoader

SIDE_PX = 2048
TOO_MANY = 3_000_000  # images of 50 MB: 151 TB, more than an address space has


@pytest.mark.parametrize("backend", ["pil", "native", "synthetic"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_error_comes_at_its_place_and_the_next_batch_behind_it(folder: Path, workers: int, backend: str) -> None:
    large = v1.Compose([v1.Resize((SIDE_PX, SIDE_PX)), v1.ToTensor()])
    batches = [[0], [1] * TOO_MANY, [2], [3]]
    loader = DataLoader(
        numbered(ImageFolder(folder, large)), batch_sampler=batches, num_workers=workers, backend=backend
    )
    iterator = iter(loader)
    assert next(iterator)[1].tolist() == [0]
    with pytest.raises((MemoryError, RuntimeError), match=r"(?i)allocate|memory"):
        next(iterator)
    assert [labels.tolist() for _, labels in iterator] == [[2], [3]]
