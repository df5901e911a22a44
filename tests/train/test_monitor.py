"""What a run shows."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_clock import DrawnClock
from small_training import CLASSES, data, options, plain_model

from fastdata.device.syncs import SyncFinder
from fastdata.train import fit, monitor


def test_the_log_has_every_bit_of_every_loss(tmp_path: Path) -> None:
    falling: dict[str, Any] = {"lr_scheduler": "cosine"}
    result = fit(plain_model(), data(), data(), options(output_dir=str(tmp_path), epochs=2, print_freq=3, **falling))
    with (tmp_path / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == result.losses
    assert [int(row["update"]) for row in rows] == list(range(1, 11))
    assert [float(row["lr"]) for row in rows] == pytest.approx(
        [0.05 + 0.05 * math.cos(math.pi * n / 10) for n in range(10)]
    )
    assert {"lr", "images_per_s", "wait_share", "epoch"} <= set(rows[0])
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["losses"] == result.losses
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_the_epochs_loss_weighs_batches_by_their_size() -> None:
    model = plain_model()
    result = fit(model, data(36, 8), options=options(lr=1e-12, momentum=0.0, weight_decay=0.0))
    images, labels = data(36).dataset.tensors
    expected = torch.nn.functional.cross_entropy(model(images), labels).item()
    assert result.epochs[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_line_that_waits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mean().item()  # the line
            return self.inner(x)

    fit(Loud(), data(), options=options(detect_syncs=True))
    told = capsys.readouterr().out
    assert "training is slower with detect_syncs" in told
    assert f"{__file__}:" in told
    assert "x.mean().item()  # the line  (5 times)" in told


@pytest.mark.parametrize("opt", ["sgd", "adamw"])
def test_the_loop_itself_waits_nowhere(opt: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"model_ema": 0.2, "clip_grad_norm": 1.0, "mixup_alpha": 0.2, "accumulate": 2, "amp": "bf16"}
    fit(plain_model(), list(data()), options=options(detect_syncs=True, opt=opt, **more), num_classes=CLASSES)
    assert "no line waits for the device" in capsys.readouterr().out


def test_what_waits_is_told_from_what_does_not() -> None:
    finder = SyncFinder(torch.device("cpu"))
    with finder:
        x = torch.ones(3)
        (x + 1).sum()
        assert finder.places == {}
        x.sum().item()
        x.nonzero()
        with finder.pause():
            x.sum().item()
    assert sum(finder.places.values()) == 2


def test_the_table_of_the_step_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    fit(plain_model(), data(), options=options(profile="steps"))
    told = capsys.readouterr().out
    assert "training is slower with profile=steps" in told
    shares = [float(line.split()[-1].rstrip("%")) for line in told.splitlines() if line.endswith("%")]
    assert len(shares) == 5
    assert sum(shares) == pytest.approx(100, abs=0.5)


def test_a_trace_and_a_profile_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(plain_model(), data(), options=options(profile="cprofile", output_dir=str(tmp_path)))
    assert "train_epoch" in capsys.readouterr().out
    assert (tmp_path / "profile.pstats").exists()
    fit(plain_model(), data(), options=options(profile="trace", output_dir=str(tmp_path / "t")))
    assert "convolution_backward" in (tmp_path / "t" / "trace.json").read_text()


def test_anomalies_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain_model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.inner(x) * 0).sqrt() + self.inner(x)

    try:
        with (
            pytest.warns(UserWarning, match="Error detected in MulBackward"),
            pytest.raises(RuntimeError, match="nan"),
        ):
            fit(Wrong(), data(), options=options(detect_anomaly=True))
    finally:
        torch.autograd.set_detect_anomaly(False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tensorboard_log_is_written(tmp_path: Path) -> None:
    fit(plain_model(), data(), data(), options(output_dir=str(tmp_path), tensorboard=True))
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_a_log_gets_lines_within_an_epoch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """At any update when it is time; the loss is that of the last look."""
    monkeypatch.setattr(monitor, "_LINE_EVERY_S", 0.0)
    more: dict[str, Any] = {"epochs": 2, "accumulate": 2, "lr_scheduler": "cosine"}
    result = fit(plain_model(), data(64), options=options(print_freq=3, **more))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 8
    assert re.fullmatch(r"epoch 0  update 1/4  [0-9]+ images/s  waiting [0-9.]+%  lr 0\.0\d+  ETA 0:\d\d:\d\d", told[0])
    assert f"epoch 0  update 3/4  loss {result.losses[2]:.4f}  " in told[2]
    assert f"epoch 1  update 1/4  loss {result.losses[3]:.4f}  " in told[4]
    assert told[-1].endswith("lr 0  ETA 0:00:00")


def test_a_log_is_not_filled(capsys: pytest.CaptureFixture[str]) -> None:
    fit(plain_model(), data(), options=options(print_freq=1, epochs=3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("profile", ["none", "steps"])
def test_there_is_one_number_for_the_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], profile: str
) -> None:
    """A loader whose iterator takes long to make is waited for, too."""

    class Slow(list[Any]):
        def __iter__(self) -> Any:
            clock.sleep(0.5)
            return super().__iter__()

    clock = DrawnClock()
    for module in ("monitor", "wait_clock"):
        monkeypatch.setattr(f"fastdata.train.{module}.time", clock)
    monkeypatch.setattr(monitor, "shows_bars", lambda: True)
    (entry,) = fit(plain_model(), Slow(data()), options=options(profile=profile)).epochs
    assert entry["wait_share"] * 40 / entry["images_per_s"] == pytest.approx(0.5)
    assert "waiting " in capsys.readouterr().err.split("\r")[-1]
