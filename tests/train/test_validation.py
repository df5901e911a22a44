"""The validation that follows an epoch's training, and what is kept if it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from small_training import data, options, plain_model

from fastdata.train import fit
from fastdata.train.checkpoint_files import load_checkpoint


class Damaged(torch.utils.data.Dataset[Any]):
    """Validation images of which one cannot be read."""

    def __init__(self) -> None:
        self.inner, self.mended = data().dataset, False

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        if index == 20 and not self.mended:
            raise OSError("a damaged image")
        return self.inner[index]


def test_an_epoch_whose_validation_fails_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training goes on behind it, after the validation; every draw is that of a run in which nothing failed."""

    def run(name: str, val: Damaged, **more: Any) -> Any:
        given = options(output_dir=str(tmp_path / name), epochs=2, model_ema=0.5, **more)
        loader = data(shuffle=True, generator=torch.Generator().manual_seed(5))
        return fit(plain_model(), loader, torch.utils.data.DataLoader(val, 8, shuffle=True), given)

    good, val = Damaged(), Damaged()
    good.mended = True
    whole = run("whole", good)
    for _ in range(2):  # the second time nothing but the validation is tried
        with pytest.raises(OSError, match="a damaged image"):
            run("failed", val, resume="auto")
        (path,) = (tmp_path / "failed").glob("*.pt")
        assert path.name == "checkpoint-00000005.pt"
        assert not load_checkpoint(path)["validated"]
    val.mended = True
    result = run("failed", val, resume="auto")
    assert "epoch 0 has not been validated yet" in capsys.readouterr().out
    assert result.losses == whole.losses
    for name in ("epoch", "loss", "val_loss", "val_accuracy"):
        assert [entry[name] for entry in result.epochs] == [entry[name] for entry in whole.epochs]


def test_a_validation_that_fails_at_the_very_end_is_made_up_for(tmp_path: Path) -> None:
    val, given = Damaged(), options(output_dir=str(tmp_path), resume="auto")
    with pytest.raises(OSError, match="a damaged image"):
        fit(plain_model(), data(), torch.utils.data.DataLoader(val, 8), given)
    val.mended = True
    result = fit(plain_model(), data(), torch.utils.data.DataLoader(val, 8), given)
    assert len(result.losses) == 5
    assert "val_loss" in result.epochs[0]
    assert load_checkpoint(next(tmp_path.glob("*.pt")))["validated"]
