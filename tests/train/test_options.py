"""Options that cannot work, alone or together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_training import options

from fastdata import OptionError
from fastdata.terminal.flags import from_flags
from fastdata.train import TrainOptions
from fastdata.train.__main__ import parser
from fastdata.train.data import DataOptions


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"lr": 0.0}, r"lr=0.0 is not in \(0, inf\) \(peak learning rate"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": "0.1"}, r"lr='0.1' is not of type float \(peak learning rate"),
        ({"opt": "adamw", "betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\) is not in \[0, 1\)"),
        ({"opt": "adam"}, "opt='adam' is not accepted; use one of sgd, adamw, lars, lamb"),
        ({"opt": "lars", "betas": (0.9, 0.99)}, "betas=.* needs opt='adamw' or 'lamb'; opt='lars'"),
        ({"amp": "fp16"}, "amp='fp16' needs a CUDA device.*amp='bf16' works anywhere"),
        ({"amp": "fp8"}, "amp='fp8' is not accepted; use one of none, bf16, fp16"),
        ({"lr_scheduler": "onecycle", "lr_warmup_epochs": 0.5}, "has its own warm-up"),
        ({"lr_warmup_epochs": 3.0}, "must be less than epochs=1"),
        ({"epochs": 2.5}, r"epochs=2.5 is not of type int \(number of passes over the training data\)"),
        ({"epochs": True}, "epochs=True is not of type int"),
        ({"channels_last": "no"}, "channels_last='no' is not of type bool"),
        ({"device": None}, "device=None is not of type str"),
        ({"betas": 0.9, "opt": "adamw"}, r"betas=0.9 is not of type tuple \(two numbers, for adamw and lamb"),
        ({"betas": (0.9,), "opt": "adamw"}, r"betas=\(0.9,\) is not of type tuple"),
        ({"seed": -1}, "seed=-1"),
        ({"static_graph": True, "accumulate": 2}, "static_graph=True does not work with accumulate=2"),
        ({"resume": "auto"}, "resume='auto' needs output_dir"),
        ({"model_ema": 1.5}, "model_ema=1.5"),
        ({"clip_grad_norm": 0.0}, "default: no clipping"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"mixup_alpha": -1.0}, r"mixup_alpha=-1.0 is not in \[0, inf\)"),
    ],
    ids=str,
)
def test_wrong_options_teach(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**wrong)


def test_values_get_the_type_they_are_declared_with(tmp_path: Path) -> None:
    made = options(epochs=np.int64(3), lr=1, betas=[0.9, 0.95], opt="adamw", output_dir=tmp_path)
    assert (made.epochs, made.lr, made.betas, made.output_dir) == (3, 1.0, (0.9, 0.95), str(tmp_path))
    assert [type(value) for value in (made.epochs, made.lr)] == [int, float]
    assert [DataOptions(data_path=tmp_path, workers=workers).workers for workers in (4, "4", "auto")] == [
        "4",
        "4",
        "auto",
    ]
    with pytest.raises(OptionError, match="workers='²'"):
        DataOptions(workers="²")


def test_some_flags_need_no_value() -> None:
    """As in torchvision's reference, where --amp and --model-ema have none."""
    given = from_flags(TrainOptions, parser().parse_args(["--amp", "--model-ema", "--compile", "--profile", "-b", "8"]))
    assert (given.amp, given.model_ema, given.compile, given.profile) == ("bf16", 0.9999, "default", "steps")
    given = from_flags(TrainOptions, parser().parse_args(["--amp", "none", "--model-ema", "0.5"]))
    assert (given.amp, given.model_ema, given.compile) == ("none", 0.5, "none")


@pytest.mark.parametrize(
    ("has_cuda", "accelerator", "taken"),
    [(True, "cuda", "cuda"), (False, "xpu", "xpu"), (False, "mps", "mps"), (False, None, "cpu")],
)
def test_auto_takes_the_accelerator_that_there_is(
    has_cuda: bool, accelerator: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdata.system.cuda.is_available", lambda: has_cuda)
    monkeypatch.setattr("torch.accelerator.is_available", lambda: accelerator is not None)
    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda: torch.device(accelerator or "cpu"))
    assert TrainOptions().torch_device() == torch.device(taken)
