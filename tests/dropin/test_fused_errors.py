"""Datasets of one's own whose images fail, vanish or change, and mistakes in their code."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import folders
import images
import pytest
import torch
from own_tables import TRAIN, VALIDATE, Table, batches, same
from PIL import Image

import fastdata
from fastdata import DataLoader
from fastdata.dataloader import map_style


@pytest.fixture
def damaged(table: Path, tmp_path: Path) -> Path:
    """One file is cut short, one is no image, one is missing."""
    whole = (table / "0/04.jpg").read_bytes()
    copy = folders.changed_copy(
        table, tmp_path / "damaged", {"0/04.jpg": whole[: len(whole) // 2], "1/05.jpg": b"no image"}
    )
    (copy / "0/08.jpg").unlink()
    return copy


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}])
def test_samples_that_fail_are_skipped_or_replaced_and_nothing_else_is_lost(
    damaged: Path, options: dict[str, Any]
) -> None:
    dataset = Table(damaged, TRAIN)
    loader = DataLoader(dataset, 4, on_error="skip", **options)
    labels = [label for _, labels in loader for label in labels.tolist()]
    assert labels == [0, 1, 2, 3, 6, 7, 9, 10, 11, 12, 13]
    assert loader.stats()["failures"] == 3
    assert {index for index, *_ in loader.stats()["quarantine"]} == {4, 5, 8}
    replaced = DataLoader(dataset, 4, on_error="replace", seed=1, **options)
    first, second = list(replaced), list(DataLoader(dataset, 4, on_error="replace", seed=1))
    assert [len(labels) for _, labels in first] == [4, 4, 4, 2]
    assert same(first, second)


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_those_that_torch_would_show(damaged: Path, workers: int) -> None:
    ours, theirs = (
        iter(kind(Table(damaged, TRAIN), 1, num_workers=workers)) for kind in (DataLoader, torch.utils.data.DataLoader)
    )
    outcomes: list[list[Any]] = [[], []]
    for outcome, iterator in zip(outcomes, (ours, theirs), strict=True):
        while True:
            try:
                outcome.append(next(iterator)[1].item())
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is
                outcome.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]
    assert "UnidentifiedImageError" in outcomes[0]


class Vanishing(Table):
    """Its files are gone when the sample has been made."""

    def __getitem__(self, index: int) -> Any:
        name, label = self.rows[index]
        with tempfile.NamedTemporaryFile(suffix=".jpg") as file:
            file.write((self.folder / name).read_bytes())
            file.flush()
            return self.transform(Image.open(file.name).convert("RGB")), int(label)


@pytest.mark.parametrize("workers", [0, 1])
def test_temporary_files_may_be_gone_before_they_are_decoded(table: Path, workers: int) -> None:
    dataset = Vanishing(table, VALIDATE)
    assert same(
        batches(DataLoader(dataset, 4, num_workers=workers)),
        batches(torch.utils.data.DataLoader(Table(table, VALIDATE), 4)),
    )


class Removing(Table):
    """Deletes a file of the dataset that is still to be decoded, or puts a smaller one in its place."""

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        path = self.folder / self.rows[index][0]
        if index == 1:
            path.unlink()
        if index == 6:
            path.write_bytes(images.jpeg(8, 8))
        return sample


@pytest.fixture
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the test count as older than the program, so their paths are kept."""
    monkeypatch.setattr(map_style, "program_began", lambda: time.time() + 60)


@pytest.mark.usefixtures("old_files")
def test_files_that_vanish_or_change_before_they_are_decoded_are_made_again(table: Path, tmp_path: Path) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    iterator, outcomes = iter(DataLoader(Removing(copy, VALIDATE), 2, num_workers=1)), []
    while True:
        try:
            outcomes.append(next(iterator)[1].tolist())
        except StopIteration:
            break
        except fastdata.DecodeError as error:
            outcomes.append((error.index, os.path.basename(error.location)))
    assert [each for each in outcomes if isinstance(each, tuple)] == [(1, "01.jpg")]  # 6 was made again
    assert len(outcomes) == 7


class Faulty(Table):
    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise KeyError("a mistake of the user's")
        return None if index == 5 else super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}])
def test_mistakes_of_the_users_are_never_skipped(table: Path, options: dict[str, Any]) -> None:
    iterator = iter(DataLoader(Faulty(table, VALIDATE), 2, on_error="skip", **options))
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(KeyError, match="a mistake"):
        next(iterator)
    with pytest.raises(TypeError):  # None cannot be collated
        next(iterator)
    assert next(iterator)[1].tolist() == [6, 7]


@pytest.mark.usefixtures("old_files")
def test_errors_of_datasets_without_transforms_name_their_sample(table: Path, tmp_path: Path) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    outcomes = []
    iterator = iter(DataLoader(Removing(copy, lambda image: VALIDATE(image)), 2, num_workers=1))
    while True:
        try:
            next(iterator)
        except StopIteration:
            break
        except fastdata.DecodeError as error:
            outcomes.append(error.index)
    assert outcomes == [1]


@pytest.mark.usefixtures("old_files")
@pytest.mark.parametrize("collate", [None, list])
def test_what_only_the_decoder_finds_is_skipped_with_every_collate_function(
    table: Path, tmp_path: Path, collate: Callable[[Any], Any] | None
) -> None:
    copy = folders.changed_copy(table, tmp_path / "copy", {})
    loader = DataLoader(Removing(copy, VALIDATE), 2, num_workers=1, collate_fn=collate, on_error="skip")
    assert sum(len(batch if collate is list else batch[1]) for batch in loader) == 13
    assert [index for index, *_ in loader.stats()["quarantine"]] == [1]
    assert loader.stats()["samples"] == 13
