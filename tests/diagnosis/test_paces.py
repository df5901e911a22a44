"""What the doctor measures of a loader alone, beside its speed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.diagnosis.loading import augments_batches, changed_loader, torchs_with, wait_at_pace

PACE_S = 0.1
AT_LEAST_S = 0.02  # mean wait: one batch in eight takes five paces, of which two can be made up by what is ready


class NowAndThen(torch.utils.data.Dataset[torch.Tensor]):
    """Every eighth sample takes as long as five steps of the program: on average less than a step."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(5 * PACE_S * (index % 8 == 7))
        return torch.zeros(1)


@pytest.mark.parametrize("change", [torchs_with, changed_loader])
def test_more_batches_ahead_even_out_slow_ones(change: Any) -> None:
    kind = torch.utils.data.DataLoader if change is torchs_with else DataLoader
    loader = kind(NowAndThen(), batch_size=1, num_workers=1)
    waits = {
        depth: wait_at_pace(change(loader, num_workers=1, prefetch_factor=depth), PACE_S, seconds=3.0)
        for depth in (2, 8)
    }
    assert waits[2] > AT_LEAST_S
    assert waits[8] < waits[2]


def test_a_pace_cannot_be_held_over_epochs_of_one_batch() -> None:
    assert wait_at_pace(DataLoader(list(range(4)), batch_size=4), 0.0, seconds=5.0) != 0.0  # NaN
    assert wait_at_pace(DataLoader([], batch_size=4), 0.0, seconds=5.0) != 0.0


@pytest.mark.parametrize(
    ("steps", "expected"), [([v1.ColorJitter(0.4)], True), ([], False), ([lambda image: image], False)]
)
def test_augmentations_that_batches_can_have_are_seen(steps: list[Any], expected: bool, folder: Path) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.RandomResizedCrop(32), *steps, v1.ToTensor()]))
    asked = changed_loader(torch.utils.data.DataLoader(dataset, 4), augment_on="device")
    assert augments_batches(asked) is expected
