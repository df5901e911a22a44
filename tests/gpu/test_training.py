"""Training on a CUDA device: what no CPU can show."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fastdata import DataLoader
from fastdata.models import small_resnet
from fastdata.train import Training, TrainOptions, fit
from fastdata.train.searches import find_batch_size

pytestmark = pytest.mark.gpu
CLASSES = 8


def data(count: int = 96, batch: int = 16) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    images += 0.3 * labels.view(-1, 1, 1, 1)
    return DataLoader(TensorDataset(images, labels), batch, pin_memory=True)


def options(**more: Any) -> TrainOptions:
    return TrainOptions(**{"batch_size": 16, "epochs": 2, "lr": 0.05, "device": "cuda", **more})


def model() -> nn.Module:
    torch.manual_seed(0)
    return small_resnet(CLASSES)


@pytest.mark.parametrize(
    "more",
    [
        {"amp": "bf16"},
        {"amp": "fp16", "clip_grad_norm": 1.0},
        {"opt": "adamw", "model_ema": 0.3, "clip_grad_value": 0.1, "accumulate": 2},
        {"mixup_alpha": 0.2, "cutmix_alpha": 1.0, "label_smoothing": 0.1},
        {"checkpoint_every_k": 1, "lr_scheduler": "onecycle"},
    ],
    ids=str,
)
def test_no_step_waits_for_the_device(more: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """CUDA warns of each synchronisation, and a warning fails a test."""
    fit(model(), data(), data(), options(detect_syncs=True, **more), num_classes=CLASSES)
    assert "no line waits for the device" in capsys.readouterr().out


def test_a_line_that_waits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mean().item()  # the line
            return self.inner(x)  # type: ignore[no-any-return]

    with pytest.warns(UserWarning, match="synchroniz"):
        fit(Loud(), data(), options=options(detect_syncs=True, epochs=1))
    assert "x.mean().item()  # the line  (6 times)" in capsys.readouterr().out


def losses(**more: Any) -> list[float]:
    return fit(model(), data(), options=options(**more)).losses


@pytest.mark.parametrize(("amp", "tolerance"), [("none", 0.02), ("bf16", 0.15), ("fp16", 0.1)])
def test_the_losses_are_the_cpus(amp: str, tolerance: float) -> None:
    expected = losses(device="cpu")
    found = losses(amp=amp, tf32=False)
    assert all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in zip(found, expected, strict=True))


def test_an_overflow_of_fp16_skips_the_update_and_is_counted() -> None:
    training = Training(model(), options(amp="fp16"), batches_per_epoch=60)  # so that the rate is not 0 by the end
    training.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40, growth_interval=10_000)
    before = copy.deepcopy(training.model.state_dict())
    images, labels = next(iter(data()))
    training.model.train()
    training.learn([images, labels])
    assert int(training.skipped) == 1
    weights = dict(training.model.named_parameters())
    assert all(torch.equal(value, before[name]) for name, value in weights.items())
    for _ in range(40):
        training.learn([images, labels])
    assert 1 < int(training.skipped) < 40
    assert not all(torch.equal(value, before[name]) for name, value in weights.items())


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_steps_give_the_same_losses(mode: str) -> None:
    found, expected = losses(compile=mode, tf32=False), losses(tf32=False)
    assert all(math.isclose(a, b, rel_tol=0.02, abs_tol=0.02) for a, b in zip(found, expected, strict=True))


def test_the_switches_are_set() -> None:
    for wanted in (True, False):
        losses(epochs=1, tf32=wanted, cudnn_benchmark=wanted)
        assert torch.backends.cudnn.benchmark is wanted
        assert torch.backends.cudnn.allow_tf32 is wanted
        assert torch.get_float32_matmul_precision() == ("high" if wanted else "highest")


def test_the_batch_that_is_found_fits() -> None:
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 2e9 / total))
    try:
        found = find_batch_size(model(), options(), 64, CLASSES)
        assert found % 8 == 0
        training = Training(model(), options(), batches_per_epoch=1)
        images, labels = torch.zeros(found, 3, 64, 64), torch.zeros(found, dtype=torch.int64)
        for _ in range(3):
            training.learn([images, labels])
        with pytest.raises(torch.cuda.OutOfMemoryError):
            training.learn([images.repeat(4, 1, 1, 1), labels.repeat(4)])
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_stopped_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    more: dict[str, Any] = {"epochs": 3, "model_ema": 0.5, "output_dir": str(tmp_path), "save_every": 5, "keep": 9}
    whole = fit(model(), data(), options=options(**more)).losses
    for path in tmp_path.glob("checkpoint-*.pt"):
        if path.name > "checkpoint-00000010.pt":
            path.unlink()
    resumed = fit(model(), data(), options=options(**more, resume="auto")).losses
    assert resumed[:10] == whole[:10]
    # cuDNN sums in no fixed order, so losses are equal only nearly.
    assert all(math.isclose(a, b, rel_tol=0.05, abs_tol=0.02) for a, b in zip(resumed, whole, strict=True))
