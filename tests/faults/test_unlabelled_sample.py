"""One sample of a batch has no label: it is named, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torchvision.transforms as v1

from fastdata import DataLoader, ShardDataset
from fastdata.errors import NoLabel

SMALL = v1.Compose([v1.Resize((20, 24)), v1.ToTensor()])


@pytest.mark.parametrize("backend", ["native", "pil"])
def test_an_unlabelled_sample_is_named(converted: Path, backend: str) -> None:
    dataset = ShardDataset(converted, SMALL)
    dataset.labels[2] = -1
    with pytest.raises(NoLabel, match=r"sample 2 \(.*shard-000000\.tar at byte \d+, key .*\) has no label.*Subset"):
        list(DataLoader(dataset, 4, backend=backend))
