"""What the doctor measures of a loader alone, beside its speed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from drawn_clock import DrawnClock
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.diagnosis.loading import augments_batches, changed_loader, torchs_with, wait_at_pace

PACE_S = 0.1


class ReadAhead:
    """A loader with one worker that has at most `depth` batches ready, the last of each four of which takes 3.5 paces.

    On average a batch takes 0.95 paces, so with enough of them ahead nobody waits.
    """

    def __init__(self, clock: DrawnClock, depth: int) -> None:
        self.clock, self.depth = clock, depth

    def __iter__(self) -> Iterator[int]:
        taken_at = [self.clock.now] * self.depth  # of earlier batches: a place must be free before one is begun
        done_at = self.clock.now
        for index in range(400):
            done_at = max(done_at, taken_at[-self.depth]) + PACE_S * (3.5 if index % 4 == 3 else 0.1)
            self.clock.now = max(self.clock.now, done_at)
            taken_at.append(self.clock.now)
            yield index


def test_the_wait_at_a_pace_is_measured() -> None:
    waits = {}
    for depth in (1, 2, 8):
        clock = DrawnClock()
        loader = ReadAhead(clock, depth)
        waits[depth] = wait_at_pace(loader, PACE_S, seconds=20.0, clock=clock, sleep=clock.sleep)
    assert waits[1] == pytest.approx(PACE_S * 2.5 / 4, rel=0.02)  # what the slow one takes longer, one in four
    assert waits[2] == pytest.approx(PACE_S * 1.5 / 4, rel=0.02)  # it is begun one pace earlier
    assert waits[8] == pytest.approx(0.0, abs=PACE_S / 50)


@pytest.mark.parametrize("change", [torchs_with, changed_loader])
def test_a_changed_loader_has_other_batches_ahead(change: Any) -> None:
    kind = torch.utils.data.DataLoader if change is torchs_with else DataLoader
    loader = kind(list(range(8)), batch_size=2, num_workers=1)
    changed = change(loader, num_workers=1, prefetch_factor=7)
    assert changed.prefetch_factor == 7
    assert [batch.tolist() for batch in changed] == [batch.tolist() for batch in loader]


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
