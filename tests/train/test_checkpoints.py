"""A run that was stopped, however, goes on as if it had not been."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from small_training import data, options, plain_model
from torch import nn
from torch.utils.data import BatchSampler, RandomSampler, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.models import mnasnet0_5

from fastdata import DataLoader, OptionError
from fastdata.errors import TrainError
from fastdata.train import Training, fit
from fastdata.train.__main__ import main
from fastdata.train.checkpoint_files import load_checkpoint
from fastdata.train.searches import find_lr

FLAGS = ["--model", "small", "-b", "4", "--epochs", "3", "--opt", "adamw", "--lr", "0.003", "--device", "cpu"]
FLAGS += ["--train-crop-size", "32", "--val-resize-size", "32", "--val-crop-size", "32", "--workers", "2"]
FLAGS += ["--auto-augment", "randaugment", "--random-erase", "0.3", "--model-ema", "0.9", "--mixup-alpha", "0.2"]
FLAGS += ["--save-every", "1", "--keep", "3", "--print-freq", "3"]


def flags(folder: Path, output: Path, *more: str) -> list[str]:
    return ["--data-path", str(folder), "--output-dir", str(output), *FLAGS, *more]


def start(folder: Path, output: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fastdata.train", *flags(folder, output, *more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_checkpoint(output: Path, updates: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 100
    while not any(int(path.stem[-8:]) >= updates for path in output.glob("checkpoint-*.pt")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run that nothing stopped."""
    output = tmp_path_factory.mktemp("whole")
    assert main(flags(folder, output)) == 0
    return result_of(output)


def result_of(output: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    result["val"] = [(entry.get("val_loss"), entry.get("val_accuracy"), entry["loss"]) for entry in result["epochs"]]
    return result


def check_equal(ours: dict[str, Any], whole: dict[str, Any]) -> None:
    assert ours["losses"] == whole["losses"]  # to the last bit
    assert ours["val"] == whole["val"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_killed_at_random_and_resumed_has_the_same_losses(
    folder: Path, tmp_path: Path, whole: dict[str, Any]
) -> None:
    at = random.randrange(1, len(whole["losses"]) - 3)
    process = start(folder, tmp_path)
    wait_for_checkpoint(tmp_path, at, process)
    process.kill()
    process.communicate()
    assert not (tmp_path / "result.json").exists()
    assert main(flags(folder, tmp_path, "--resume", "auto")) == 0
    check_equal(result_of(tmp_path), whole)
    rows = (tmp_path / "log.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, len(whole["losses"]) + 1))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_saves_and_ends_the_run_cleanly(
    folder: Path, tmp_path: Path, whole: dict[str, Any], name: str
) -> None:
    process = start(folder, tmp_path, "--save-every", "0", "--epochs", "300")
    wait_for_checkpoint(tmp_path, 1, process)  # after the first epoch
    process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert result_of(tmp_path)["stopped"]
    latest = load_checkpoint(max(tmp_path.glob("checkpoint-*.pt")))
    assert latest["training"]["counts"]["updates"] == len(result_of(tmp_path)["losses"])


@pytest.mark.slow
def test_resuming_from_every_update_gives_the_same_weights(folder: Path, tmp_path: Path) -> None:
    """In the middle of an epoch, at its end, and between epochs."""
    random_crop, middle = (
        v1.Compose([crop, v1.ToTensor()]) for crop in (v1.RandomResizedCrop(16), v1.Resize((16, 16)))
    )

    def loader(transform: Any) -> DataLoader:
        return DataLoader(ImageFolder(folder, transform), 16, shuffle=transform is random_crop, num_workers=2, seed=1)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(3 * 16 * 16, 3))

    more: dict[str, Any] = {"epochs": 2, "batch_size": 16, "output_dir": str(tmp_path), "keep": 100, "save_every": 1}
    first = model()
    whole = fit(first, loader(random_crop), loader(middle), options(**more))
    paths = sorted(tmp_path.glob("checkpoint-*.pt"))
    assert len(paths) == 6
    for path in paths:
        again = model()
        more["output_dir"] = str(tmp_path / path.stem)
        result = fit(again, loader(random_crop), loader(middle), options(resume=str(path), **more))
        assert result.losses == whole.losses
        assert [e["val_loss"] for e in result.epochs] == [e["val_loss"] for e in whole.epochs]
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), first.parameters(), strict=True))


def test_a_plain_loader_is_skipped_through(tmp_path: Path) -> None:
    more: dict[str, Any] = {"output_dir": str(tmp_path), "save_every": 1, "keep": 9, "epochs": 2}
    whole = fit(plain_model(), data(), options=options(**more))
    middle = sorted(tmp_path.glob("checkpoint-*.pt"))[2]
    more["output_dir"] = str(tmp_path / "again")
    assert fit(plain_model(), data(), options=options(resume=str(middle), **more)).losses == whole.losses


def test_the_latest_few_are_kept_and_a_partial_one_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-99999999.pt.partial").write_bytes(b"half")
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), save_every=1, keep=2))
    assert [path.name for path in sorted(tmp_path.glob("*.pt"))] == ["checkpoint-00000004.pt", "checkpoint-00000005.pt"]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path)))
    path = next(tmp_path.glob("*.pt"))
    for wrong, message in (
        (tmp_path / "none.pt", "no such checkpoint"),
        (tmp_path / "cut.pt", "cannot be read as a checkpoint"),
        (tmp_path / "old.pt", "has checkpoint version 0; this version of fastdata reads version 3"),
    ):
        if wrong.stem == "cut":
            wrong.write_bytes(path.read_bytes()[:5000])
        if wrong.stem == "old":
            torch.save({"version": 0}, wrong)
        with pytest.raises(TrainError, match=message):
            fit(plain_model(), data(), options=options(resume=str(wrong)))
    with pytest.raises(TrainError, match="saved with another model: "):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)), data(), options=options(resume=str(path)))
    with pytest.raises(TrainError, match="model_ema"):
        fit(plain_model(), data(), options=options(resume=str(path), model_ema=0.5))


def test_another_optimiser_is_refused_but_can_be_validated(tmp_path: Path) -> None:
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), model_ema=0.5))
    path = next(tmp_path.glob("*.pt"))
    with pytest.raises(TrainError, match="saved with another optimiser"):
        fit(plain_model(), data(), options=options(resume=str(path), model_ema=0.5, opt="adamw"))
    training = Training(plain_model(), options(opt="adamw"), batches_per_epoch=1)
    saved = load_checkpoint(path)["training"]
    training.load_weights(saved)
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, saved["averaged"][name])
    without = {**saved, "averaged": None}
    training = Training(plain_model(), options(model_ema=0.5), batches_per_epoch=1)
    training.load_weights(without)
    for name, value in training.best_weights.state_dict().items():
        assert torch.equal(value, saved["model"][name])


def test_a_used_folder_is_not_mixed_with_another_run(tmp_path: Path) -> None:
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), save_every=1, keep=3))
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TrainError, match=r"holds checkpoints of another run, up to checkpoint-00000005\.pt"):
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path)))
    earlier = str(tmp_path / "checkpoint-00000004.pt")
    with pytest.raises(
        TrainError, match=r"to go back to it remove checkpoint-00000005\.pt, to continue from the latest"
    ):
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path), resume=earlier))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize("own_generator", [False, True])
def test_a_plain_shuffled_loader_goes_on_with_its_order(tmp_path: Path, own_generator: bool) -> None:
    def loader() -> Any:
        return data(shuffle=True, generator=torch.Generator().manual_seed(5) if own_generator else None)

    more: dict[str, Any] = {"output_dir": str(tmp_path / "whole"), "save_every": 1, "keep": 99, "epochs": 3}
    whole = fit(plain_model(), loader(), options=options(**more))
    for path in sorted((tmp_path / "whole").glob("*.pt"))[:-1]:
        more["output_dir"] = str(tmp_path / path.stem)
        assert fit(plain_model(), loader(), options=options(resume=str(path), **more)).losses == whole.losses


@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "step"])
def test_a_resumed_run_takes_its_own_rates(tmp_path: Path, schedule: str) -> None:
    """Two epochs more, another rate, another decay: the schedule is this run's, from the same place on."""
    first: dict[str, Any] = {"epochs": 2, "lr_scheduler": schedule, "lr_step_size": 1.0}
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), **first))
    longer = {**first, "epochs": 4, "lr": 0.05, "weight_decay": 0.3}
    training = Training(plain_model(), options(**longer), batches_per_epoch=5)
    training.load_state_dict(load_checkpoint(max(tmp_path.glob("*.pt")))["training"])
    fresh = Training(plain_model(), options(**longer), batches_per_epoch=5)
    fresh.scheduler.step(10)
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(fresh.optimizer.param_groups[0]["lr"])
    assert training.optimizer.param_groups[0]["weight_decay"] == 0.3
    with pytest.warns(UserWarning, match=r"epochs was 2, now 4"):
        result = fit(plain_model(), data(), options=options(output_dir=str(tmp_path), resume="auto", **longer))
    assert len(result.losses) == 20


def test_versions_of_modules_are_kept_in_checkpoints(tmp_path: Path) -> None:
    """Of which torchvision's MNASNet refuses a state without."""
    more: dict[str, Any] = {"output_dir": str(tmp_path), "batch_size": 4}
    trained = [mnasnet0_5(num_classes=4) for _ in range(2)]
    fit(trained[0], data(8, 4), options=options(**more))
    saved = load_checkpoint(next(tmp_path.glob("*.pt")))["training"]
    Training(trained[1], options(**more), batches_per_epoch=2).load_weights(saved)
    assert torch.equal(trained[0].classifier[1].weight, trained[1].classifier[1].weight)


@pytest.mark.parametrize("opt", ["sgd", "adamw"])
@pytest.mark.parametrize("saved_with", [False, True])
def test_an_optimiser_goes_on_with_weights_in_another_memory_layout(tmp_path: Path, opt: str, saved_with: bool) -> None:
    """Fused optimisers pair a weight and its momentum by their places in memory."""
    more: dict[str, Any] = {"save_every": 1, "keep": 9, "opt": opt, "lr": 0.05 if opt == "sgd" else 0.01}
    whole = fit(plain_model(), data(), options=options(output_dir=str(tmp_path), channels_last=saved_with, **more))
    half = str(sorted(tmp_path.glob("*.pt"))[1])
    more |= {"output_dir": str(tmp_path / "rest"), "channels_last": not saved_with, "resume": half}
    with pytest.warns(UserWarning, match="channels_last was"):
        rest = fit(plain_model(), data(), options=options(**more))
    assert rest.losses == pytest.approx(whole.losses, rel=1e-4)


def test_other_options_are_said(tmp_path: Path) -> None:
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path)))
    with pytest.warns(UserWarning, match=r"lr was 0\.1, now 0\.2"):
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path), resume="auto", lr=0.2))


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_checkpoint_that_cannot_be_written_leaves_the_old_ones(tmp_path: Path) -> None:
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path)))
    (tmp_path / ".checkpoint-00000010.pt.partial").symlink_to("/dev/full")
    more: dict[str, Any] = {"output_dir": str(tmp_path), "resume": "auto", "epochs": 2}
    with pytest.warns(UserWarning, match="epochs was 1, now 2"), pytest.raises(TrainError, match="No space left"):
        fit(plain_model(), data(), options=options(**more))
    assert [path.name for path in tmp_path.glob("*.pt")] == ["checkpoint-00000005.pt"]


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    fit(plain_model(), data(), options=options())
    assert signal.getsignal(signal.SIGTERM) is before


class Shuffled:
    """A sampler that draws from Python's generator."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        order = list(range(40))
        random.shuffle(order)
        return iter(order)


class Noisy(TensorDataset):
    """Samples with noise from NumPy's generator."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return image + float(np.random.normal()), label


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(2, id="middle"),
        pytest.param(5, id="end of epoch", marks=pytest.mark.slow),
        pytest.param(8, id="second epoch", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("kind", ["sampler's generator", "Python's", "NumPy's", "inside a batch sampler"])
def test_whatever_draws_goes_on_where_it_stood(tmp_path: Path, kind: str, update: int) -> None:
    def loader() -> Any:
        dataset = data().dataset
        drawn = RandomSampler(dataset, generator=torch.Generator().manual_seed(5))
        made: dict[str, Any] = {
            "sampler's generator": {"batch_size": 8, "sampler": drawn},
            "Python's": {"batch_size": 8, "sampler": Shuffled()},
            "NumPy's": {"batch_size": 8, "shuffle": True},
            "inside a batch sampler": {"batch_sampler": BatchSampler(drawn, 8, drop_last=False)},
        }
        return torch.utils.data.DataLoader(Noisy(*dataset.tensors), **made[kind])

    def run(output: Path, **more: Any) -> list[float]:
        random.seed(3)
        np.random.seed(3)
        given = options(output_dir=str(output), save_every=1, keep=20, epochs=2, **more)
        return fit(plain_model(), loader(), options=given).losses

    whole = run(tmp_path / "whole")
    assert run(tmp_path / "again", resume=str(tmp_path / "whole" / f"checkpoint-{update:08}.pt")) == whole


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    """The last loss before them is still one."""

    class Poisoned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = plain_model(), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            outputs = self.inner(x)
            if self.calls == 5:
                outputs.register_hook(lambda gradient: gradient * float("nan"))
            return outputs  # type: ignore[no-any-return]

    message = (
        r"NaN or inf after update 5, so no checkpoint was saved; the latest checkpoint without them is .*00000004\.pt"
    )
    with pytest.raises(TrainError, match=message):
        fit(Poisoned(), data(), options=options(output_dir=str(tmp_path), save_every=2, epochs=2))
    assert sorted(path.name[-5:] for path in tmp_path.glob("*.pt")) == ["02.pt", "04.pt"]


def test_other_names_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-best.pt").write_bytes(b"the user's")
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), keep=1, epochs=2))
    fit(plain_model(), data(), options=options(output_dir=str(tmp_path), keep=1, epochs=2, resume="auto"))
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["checkpoint-00000010.pt", "checkpoint-best.pt"]


@pytest.mark.parametrize("folder", ["file", "file/inside", "/proc/none"])
def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        OptionError, match=r"output_dir='.*' (is a file|cannot be created|is not writable).*name another"
    ):
        fit(plain_model(), data(), options=options(output_dir=str(tmp_path / folder)))
    with pytest.raises(OptionError, match="name another folder"):
        find_lr(plain_model(), data(), options(output_dir=str(tmp_path / folder)))


def test_a_schedule_ends_when_epochs_are_taken_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more: dict[str, Any] = {"output_dir": str(tmp_path), "lr_scheduler": "onecycle"}
    fit(plain_model(), data(), options=options(epochs=3, **more))
    with pytest.warns(UserWarning, match="epochs was 3, now 1"):
        fit(plain_model(), data(), options=options(epochs=1, resume="auto", **more))
    assert "the run had already finished" in capsys.readouterr().out


def test_new_betas_are_used(tmp_path: Path) -> None:
    more: dict[str, Any] = {"output_dir": str(tmp_path), "opt": "adamw", "lr": 0.001}
    fit(plain_model(), data(), options=options(**more))
    training = Training(plain_model(), options(betas=(0.5, 0.6), **more), batches_per_epoch=5)
    training.load_state_dict(load_checkpoint(next(tmp_path.glob("*.pt")))["training"])
    assert training.optimizer.param_groups[0]["betas"] == (0.5, 0.6)


def test_a_loaders_state_that_could_not_be_resumed_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Odd(list[Any]):
        def state_dict(self) -> dict[str, Any]:
            return {"place": Path("here")}

    with pytest.raises(TrainError, match="the state_dict of Odd holds more than numbers"):
        fit(plain_model(), Odd(data()), options=options(output_dir=str(tmp_path)))
