"""Learning rates are functions of the place in the run, whatever the plan that leads there."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import data, options, plain_model
from torch.optim import lr_scheduler

from fastdata.train import Training, TrainOptions, fit
from fastdata.train.checkpoint_files import load_checkpoint
from fastdata.train.optim import make_optimizer
from fastdata.train.schedule import Schedule

SCHEDULES: dict[str, dict[str, Any]] = {
    "cosine": {"lr_scheduler": "cosine"},
    "cosine, warmed up": {"lr_scheduler": "cosine", "lr_warmup_epochs": 1.5},
    "onecycle": {"lr_scheduler": "onecycle"},
    "cyclic": {"lr_scheduler": "cyclic", "lr_step_size": 1.0},
    "step": {"lr_scheduler": "step", "lr_step_size": 1.0},
    "step, warmed up": {"lr_scheduler": "step", "lr_step_size": 1.0, "lr_warmup_epochs": 0.5},
    "constant": {"lr_scheduler": "constant"},
}
EPOCHS, COUNT = 2, 80
by_schedule = pytest.mark.parametrize("given", SCHEDULES.values(), ids=SCHEDULES)


def of_torch(optimizer: torch.optim.Optimizer, made: TrainOptions, per_epoch: int) -> Any:
    """torch's own scheduler for the same options."""
    total, warmup = made.epochs * per_epoch, round(made.lr_warmup_epochs * per_epoch)
    if made.lr_scheduler == "onecycle":
        return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total)
    half = round(made.lr_step_size * per_epoch)
    if made.lr_scheduler == "cyclic":
        return lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=half)
    main: Any = lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    if made.lr_scheduler == "cosine":
        main = lr_scheduler.CosineAnnealingLR(optimizer, total - warmup)
    if made.lr_scheduler == "step":
        main = lr_scheduler.StepLR(optimizer, half)
    growing = lr_scheduler.LinearLR(optimizer, 0.01, total_iters=warmup) if warmup else None
    return lr_scheduler.SequentialLR(optimizer, [growing, main], [warmup]) if growing is not None else main


@by_schedule
@pytest.mark.parametrize("opt", ["sgd", "adamw"])
def test_the_values_are_those_of_torchs_schedulers(given: dict[str, Any], opt: str) -> None:
    made, per_epoch = options(epochs=EPOCHS, opt=opt, **given), 10
    optimizers = [make_optimizer(plain_model(), made) for _ in range(2)]
    if opt == "adamw" and made.lr_scheduler == "cyclic":
        pytest.skip("torch's own asks to switch the cycle of momentum off")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the optimiser's steps
        theirs, ours = of_torch(optimizers[0], made, per_epoch), Schedule(optimizers[1], made, updates_per_epoch=10)
        for _ in range(EPOCHS * per_epoch - 1):
            expected, found = (each.param_groups[0] for each in optimizers)
            for name in {"lr", "momentum", "betas"} & set(expected):
                assert found[name] == pytest.approx(expected[name], rel=1e-9), name
            theirs.step()
            ours.step()


def rate_at(epochs: float, per_epoch: int, **given: Any) -> float:
    training = Training(plain_model(), options(epochs=EPOCHS, **given), batches_per_epoch=per_epoch)
    training.scheduler.go_to(epochs * per_epoch)
    return float(training.optimizer.param_groups[0]["lr"])


@by_schedule
@pytest.mark.parametrize(("before", "after"), [(8, 16), pytest.param(40, 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("at", [0.35, pytest.param(1.0, marks=pytest.mark.slow)], ids=lambda at: f"{at} epochs")
def test_the_rate_goes_on_under_another_batch_size(
    tmp_path: Path, given: dict[str, Any], before: int, after: int, at: float
) -> None:
    done = round(at * COUNT / before)
    more: dict[str, Any] = {"epochs": EPOCHS, "lr": 1e-3, "save_every": done, "keep": 999, **given}
    fit(plain_model(), data(COUNT, before), options=options(output_dir=str(tmp_path), batch_size=before, **more))
    for path in tmp_path.glob("checkpoint-*.pt"):
        if int(path.stem[-8:]) > done:
            path.unlink()
    counts = load_checkpoint(max(tmp_path.glob("*.pt")))["training"]["counts"]
    assert counts["updates"] == done
    made = options(output_dir=str(tmp_path), batch_size=after, resume="auto", **more)
    with pytest.warns(UserWarning, match=f"batch_size was {before}, now {after}"):
        result = fit(plain_model(), data(COUNT, after), options=made)
    assert len(result.epochs) == EPOCHS
    rows = (tmp_path / "log.csv").read_text().splitlines()[1:]
    rates = [float(row.split(",")[3]) for row in rows]
    given, at, per_epoch = {**given, "lr": 1e-3}, done * before / COUNT, COUNT // after
    one_plan = given["lr_scheduler"] == "onecycle"  # it turns, and ends, an update early, whatever the updates are
    for plan in {per_epoch} if one_plan else {COUNT // before, per_epoch}:
        assert rates[done] == pytest.approx(rate_at(at, plan, **given), rel=1e-6)
    assert rates[-1] == pytest.approx(rate_at(EPOCHS - 1 / per_epoch, per_epoch, **given), rel=1e-6)


@pytest.mark.parametrize("at", [0.1, 0.3, 0.7, 1.5])
def test_onecycle_moves_by_an_update_at_most(at: float) -> None:
    given = {"lr_scheduler": "onecycle"}
    near = [rate_at(at + shift, 100, **given) for shift in (-0.01, 0, 0.01)]
    assert min(near) <= rate_at(at, 200, **given) <= max(near)


def test_an_interrupted_epoch_may_be_resumed_twice_under_other_plans(tmp_path: Path) -> None:
    """The place is counted in each plan's own updates, so it may be translated again and again."""
    given: dict[str, Any] = {"lr_scheduler": "cosine", "epochs": EPOCHS}
    place, state = 0.75, None
    for batches in (20, 10, 4, 20):
        training = Training(plain_model(), options(**given), batches_per_epoch=batches)
        if state is None:
            training.batch, training.updates = 15, 15
            training.scheduler.step(15)
        else:
            training.load_state_dict(state)
        state = training.state_dict()
        assert training.scheduler.place == pytest.approx(place * batches)
        assert training.batch == round(place * batches)
        assert training.optimizer.param_groups[0]["lr"] == pytest.approx(
            0.05 * (1 + math.cos(math.pi * place / EPOCHS))
        )


def test_lamb_counts_its_steps_on(tmp_path: Path) -> None:
    """Its bias correction depends on them, and they are kept among its options."""
    pytest.importorskip("timm")
    more: dict[str, Any] = {"opt": "lamb", "lr": 0.01, "output_dir": str(tmp_path)}
    fit(plain_model(), data(), options=options(**more))
    training = Training(plain_model(), options(epochs=2, **more), batches_per_epoch=3)
    training.load_state_dict(load_checkpoint(next(tmp_path.glob("*.pt")))["training"])
    assert training.optimizer.param_groups[0]["step"] == 5
