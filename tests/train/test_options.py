"""Options that cannot work, alone or together."""

from __future__ import annotations

from typing import Any

import pytest
from test_loop import options

from fastdata import OptionError


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"lr": 0.0}, r"lr=0.0; it lies in \(0, inf\): learning rate"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"lr": "0.1"}, "lr='0.1'"),
        ({"opt": "adamw", "betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\); it lies in \[0, 1\)"),
        ({"opt": "adam"}, "opt='adam' is unknown; known: sgd, adamw, lars, lamb"),
        ({"opt": "lars", "betas": (0.9, 0.99)}, "betas=.* are adamw's and lamb's; opt='lars'"),
        ({"amp": "fp16"}, "amp='fp16' needs a CUDA device.*amp='bf16' works anywhere"),
        ({"amp": "fp8"}, "amp='fp8' needs a CUDA device"),
        ({"bf16_gradients": True}, "needs CUDA"),
        ({"lr_scheduler": "onecycle", "lr_warmup_epochs": 0.5}, "warms up by itself"),
        ({"lr_warmup_epochs": 3.0}, "leaves nothing of epochs=1"),
        ({"resume": "auto"}, "output_dir, which is not set"),
        ({"model_ema": 1.5}, "model_ema=1.5"),
        ({"clip_grad_norm": 0.0}, "left out, none is clipped"),
        ({"label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"mixup_alpha": -1.0}, r"mixup_alpha=-1.0; it lies in \[0, inf\)"),
    ],
    ids=str,
)
def test_wrong_options_teach(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options(**wrong)
