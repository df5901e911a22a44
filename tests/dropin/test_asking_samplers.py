"""A sampler is asked for indices when torch asks it: it may draw from a generator that the program uses, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from own_tables import VALIDATE, Table, make_table
from torch.utils.data import Sampler

from fastdata import DataLoader, ImageFolder

BATCHES = 15


class Episodes(Sampler[list[int]]):
    """Draws each batch when it is asked, as samplers of few-shot learning do."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(BATCHES):
            self.asked += 1
            yield torch.randperm(14)[:3].tolist()


def trained(cls: Any, table: Path, **options: Any) -> list[Any]:
    """What two epochs of a program see that draws numbers itself: questions so far, and the samples."""
    sampler, seen = Episodes(), []
    torch.manual_seed(1)
    loader = cls(Table(table, VALIDATE), batch_sampler=sampler, **options)
    for _ in range(2):
        for _, labels in loader:
            torch.randn(3)
            seen.append((sampler.asked, labels.tolist()))
    return seen


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "prefetch_factor": 4},
        {"num_workers": 1, "prefetch_factor": 1},
        {"num_workers": 2, "persistent_workers": True},
    ],
    ids=str,
)
def test_it_is_asked_when_torch_asks(table: Path, options: dict[str, Any]) -> None:
    assert trained(DataLoader, table, **options) == trained(torch.utils.data.DataLoader, table, **options)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 1, "prefetch_factor": 1}, {"num_workers": 2}, {"num_workers": 2, "in_order": False}],
    ids=str,
)
def test_batches_of_which_nothing_is_left_do_not_end_the_epoch(tmp_path: Path, options: dict[str, Any]) -> None:
    """They are passed over without a question of the program's."""
    table = make_table(tmp_path)
    rows = Table(table, VALIDATE).rows
    damaged = [number for number in range(14) if 4 <= number <= 12]
    for number in damaged:
        path = table / rows[number][0]
        data = path.read_bytes()
        path.write_bytes(data[:300] + bytes(len(data) - 302) + data[-2:])
    loader = DataLoader(Table(table, VALIDATE), 1, on_error="skip", **options)
    with pytest.warns(UserWarning, match="left out"):
        labels = sorted(int(label) for _, (label,) in loader)
    assert labels == [number for number in range(14) if number not in damaged]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_without_samples_is_what_torch_makes_of_it(folder: Path, workers: int) -> None:
    dataset = ImageFolder(folder, v1.Compose([v1.CenterCrop(20), v1.ToTensor()]))
    for collate in (None, list):
        made: list[Any] = []
        for cls in (torch.utils.data.DataLoader, DataLoader):
            batches = iter(cls(dataset, batch_sampler=[[1], [], [2]], num_workers=workers, collate_fn=collate))
            next(batches)
            try:
                made.append(next(batches))
            except IndexError:
                made.append(IndexError)
        assert made[0] == made[1]
