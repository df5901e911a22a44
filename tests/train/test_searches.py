"""The searches for a batch size and a learning rate."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from small_training import CLASSES, data, options, plain_model

from fastdata import OptionError
from fastdata.errors import TrainError
from fastdata.train import searches


@pytest.mark.parametrize("limit", [8, 9, 64, 100, 1000, 1023, 100000])
def test_the_largest_batch_is_found_with_head_room(limit: int) -> None:
    asked = []

    def fits(size: int) -> bool:
        asked.append(size)
        return size <= limit

    found = searches.largest_that_fits(fits)
    assert found % 8 == 0
    assert 0.75 * min(limit, 65536) - 8 <= found <= max(8, 0.9 * limit)
    assert len(asked) < 25


def test_nothing_fits() -> None:
    with pytest.raises(TrainError, match="not even a batch size of 8"):
        searches.largest_that_fits(lambda size: False)
    with pytest.raises(OptionError, match="needs a CUDA device"):
        searches.find_batch_size(plain_model(), options(), 16, CLASSES)


def test_the_range_test_leaves_the_model_alone_and_suggests(tmp_path: Path) -> None:
    model = plain_model()
    before = copy.deepcopy(model.state_dict())
    found = searches.find_lr(model, data(), options(output_dir=str(tmp_path)), steps=60)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert 1e-5 < found.suggestion < 5
    assert found.rates == sorted(found.rates)
    assert (tmp_path / "lr.csv").read_text().startswith("lr,loss\n")
    assert (tmp_path / "lr.png").stat().st_size > 1000
    scaled = searches.find_lr(plain_model(), data(), options(lr_scaling="linear", base_batch=2), steps=60)
    assert scaled.suggestion == pytest.approx(found.suggestion / 4)  # fit multiplies by 8 / 2
    assert "suggested peak learning rate" in str(found)
