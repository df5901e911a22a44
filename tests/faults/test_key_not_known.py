"""A damaged image in a shard whose index is gone: the error says all that is still known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torchvision.transforms as v1
from folders import flip

from fastdata import DataLoader, DecodeError, ShardDataset


@pytest.mark.parametrize("backend", ["pil", "native"])
def test_the_shard_the_offset_and_the_number_of_the_record(own: Path, backend: str) -> None:
    dataset = ShardDataset(own, v1.Compose([v1.Resize((16, 16)), v1.ToTensor()]))
    row = int(dataset.shard_ends[0]) + 1
    offset, shard = int(dataset._offsets[row]), own / "shard-000001.tar"
    flip(shard, offset + 40)
    os.remove(shard.with_suffix(".idx"))
    with pytest.raises(DecodeError) as caught:
        list(DataLoader(dataset, 4, num_workers=0, backend=backend))
    assert f"{shard} at byte {offset}, record 1 of its index" in str(caught.value)
    assert "key ?" not in str(caught.value)
