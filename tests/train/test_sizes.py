"""Sizes of images that a model does not take are told before training begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_training import SMALL_FLAGS
from torch import nn

from fastdata import OptionError
from fastdata.models import check_sizes, create_model
from fastdata.train.__main__ import main


@pytest.mark.parametrize(
    ("name", "side", "takes"),
    [("vit_b_16", 64, 224), ("inception_v3", 64, 75), ("timm/vit_tiny_patch16_224", 64, 224), ("alexnet", 32, 64)],
)
def test_a_size_that_does_not_fit_is_named_with_one_that_does(name: str, side: int, takes: int) -> None:
    model = create_model(name, 4)
    message = rf"train_crop_size={side}: model='{name}' does not accept images of {side}×{side} pixels \(.+\); "
    with pytest.raises(OptionError, match=message + f"it accepts {takes}: use --train-crop-size {takes}"):
        check_sizes(model, name, {"train_crop_size": side, "val_crop_size": 224})
    check_sizes(model, name, {"train_crop_size": 224})
    assert model.training
    assert all(not parameter.is_meta for parameter in model.parameters())


class Asking(nn.Module):
    """Looks at values, which images without any have not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1:
            raise ValueError("never")
        return x.mean((2, 3))


def test_a_model_that_looks_at_values_is_asked_with_some() -> None:
    check_sizes(Asking(), "mine", {"val_crop_size": 8})
    with pytest.raises(OptionError, match="other sizes tried fail as well"):
        check_sizes(nn.Sequential(Asking(), nn.Linear(5, 2)), "mine", {"val_crop_size": 8})


def test_the_command_says_it_in_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*SMALL_FLAGS, "--model", "timm/vit_tiny_patch16_224", "--train-crop-size", "224", "--val-crop-size", "32"]
    assert main(["--data-path", str(folder), *flags]) == 1
    told = capsys.readouterr().err
    assert told.startswith(
        "OptionError: --val-crop-size 32: --model timm/vit_tiny_patch16_224 does not accept images of 32×32"
    )
    assert told.endswith("it accepts 224: use --val-crop-size 224\n")
