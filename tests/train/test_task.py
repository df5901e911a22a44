"""One's own loss, metrics, optimiser, schedule and batches; the best epoch, an early end, rates that fall."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import CLASSES, data, options, plain_model
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fastdata import OptionError
from fastdata.errors import TrainError
from fastdata.train import Task, Training, TrainOptions, fit
from fastdata.train.best import plateau_factor
from fastdata.train.optim import parameter_groups
from fastdata.train.task import count_samples


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Dicts(Dataset[dict[str, Any]]):
    """The samples of `data` as dictionaries with a caption."""

    def __init__(self, count: int = 40) -> None:
        self.pairs = data(count).dataset

    def __len__(self) -> int:
        return len(self.pairs)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self.pairs[index]
        return {"caption": f"image {index}", "image": image, "targets": [label, label]}


def dicts_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["image"]), batch["targets"][0])


def dicts_metrics(model: Any, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    outputs = model(batch["image"])
    right = outputs.argmax(1) == batch["targets"][1]
    losses = nn.functional.cross_entropy(outputs, batch["targets"][0], reduction="none")
    return {"loss": losses, "accuracy": right, "error_rate": 1 - right.float().mean()}


DICTS = Task(loss=dicts_loss, metrics=dicts_metrics)


def as_lists(samples: list[Any]) -> tuple[list[torch.Tensor], list[int]]:
    """A batch as detection has them: images that may differ in size, and their targets."""
    return [sample["image"] for sample in samples], [int(sample["targets"][0]) for sample in samples]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_own_loss_over_dictionaries_trains_as_classifying_does(accumulate: int) -> None:
    theirs, ours = plain_model(), plain_model()
    known = fit(theirs, data(), data(36), options(accumulate=accumulate, epochs=2))
    found = fit(
        ours, DataLoader(Dicts(), 8), DataLoader(Dicts(36), 5), options(accumulate=accumulate, epochs=2), task=DICTS
    )
    assert equal(weights(ours), weights(theirs))
    assert found.losses == known.losses
    for one, other in zip(found.epochs, known.epochs, strict=True):
        assert one["val_accuracy"] == other["val_accuracy"]
        assert abs(one["val_loss"] - other["val_loss"]) < 1e-6
        assert abs(one["val_error_rate"] - (1 - one["val_accuracy"])) < 1e-6


def test_batches_of_lists_are_counted_and_trained() -> None:
    def loss(model: Any, batch: tuple[list[torch.Tensor], list[int]]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(torch.stack(batch[0])), torch.tensor(batch[1]))

    theirs, ours = plain_model(), plain_model()
    fit(theirs, data(36), options=options())
    fit(ours, DataLoader(Dicts(36), 8, collate_fn=as_lists), options=options(), task=Task(loss=loss))
    assert equal(weights(ours), weights(theirs))  # the last batch of four has the weight of four


def test_validation_without_metrics_has_the_loss() -> None:
    result = fit(plain_model(), DataLoader(Dicts(), 8), DataLoader(Dicts(), 8), options(), task=Task(loss=dicts_loss))
    assert {name for name in result.epochs[0] if name.startswith("val_")} == {"val_loss"}


def test_more_than_five_classes_have_a_top_5_accuracy() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 9))
    found = fit(model, data(), data(), options()).epochs[0]
    assert 0 <= found["val_accuracy"] <= found["val_accuracy_top5"] <= 1


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (
            Task(loss=lambda model, batch: model(batch["image"])),
            r"loss returns a tensor \(8, 4\); it must return the mean",
        ),
        (Task(loss=lambda model, batch: 1.0), "loss returns a float; it must return the mean"),
        (Task(loss=dicts_loss, metrics=lambda model, batch: {"a": torch.zeros(3)}), r"metric 'a' has the shape \(3,\)"),
    ],
)
def test_what_a_task_returns_is_checked(task: Task, problem: str) -> None:
    with pytest.raises(TrainError, match=problem):
        fit(plain_model(), DataLoader(Dicts(), 8), DataLoader(Dicts(), 8), options(), task=task)


def test_what_does_not_fit_a_task_is_refused() -> None:
    with pytest.raises(OptionError, match="mixup and cutmix are for classifying"):
        fit(plain_model(), DataLoader(Dicts(), 8), options=options(mixup_alpha=0.2), num_classes=CLASSES, task=DICTS)
    with pytest.raises(TrainError, match=r"or pass task=Task\(loss=...\) for batches of another form"):
        fit(plain_model(), DataLoader(Dicts(), 8), options=options())
    with pytest.raises(TrainError, match=r"pass task=Task\(count=...\)"):
        fit(plain_model(), [{"text": "no tensor"}], options=options(), task=Task(loss=dicts_loss))


# ---- optimiser and schedule


def own_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(model.parameters(), lr=0.002)


def own_schedule(optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.PolynomialLR(optimizer, updates, power=2.0)


def one_cycle(optimizer: torch.optim.Optimizer, updates: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=updates)  # moves the momentum, too


def with_momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


OWN = Task(optimizer=own_optimizer, scheduler=own_schedule)
ONE_CYCLE = Task(optimizer=with_momentum, scheduler=one_cycle)


def test_an_own_optimiser_and_schedule_do_what_a_plain_loop_does() -> None:
    model = plain_model().to(memory_format=torch.channels_last)
    optimizer = own_optimizer(model)
    schedule = own_schedule(optimizer, 10)
    for _ in range(2):
        for images, labels in data():
            nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    ours = plain_model()
    fit(ours, data(), options=options(epochs=2), task=OWN)
    assert equal(weights(ours), weights(model))


@pytest.mark.parametrize("own", [OWN, ONE_CYCLE], ids=["polynomial", "one cycle"])
def test_a_resumed_run_goes_on_with_the_own_schedule(tmp_path: Path, own: Task) -> None:
    whole = plain_model()
    losses = fit(whole, data(), options=options(epochs=3), task=own).losses
    more: dict[str, Any] = {"epochs": 3, "output_dir": str(tmp_path), "save_every": 4}

    class Stopped(Exception):
        pass

    def stops(values: dict[str, float], update: int) -> None:
        if update >= 8:
            raise Stopped

    stopping = replace(own, log=stops)
    with pytest.raises(Stopped):
        fit(plain_model(), data(), options=options(print_freq=1, **more), task=stopping)
    resumed = plain_model()
    found = fit(resumed, data(), options=options(resume="auto", **more), task=own)
    assert found.losses == losses
    assert equal(weights(resumed), weights(whole))


def test_groups_of_biases_and_embeddings_have_their_own_decay() -> None:
    model = nn.Module()
    model.class_token = nn.Parameter(torch.zeros(1, 1, 4))
    model.linear, model.norm = nn.Linear(4, 4), nn.LayerNorm(4)
    more = {"weight_decay": 0.3, "norm_weight_decay": 0.2, "bias_weight_decay": 0.1, "transformer_embedding_decay": 0.0}
    groups = parameter_groups(model, TrainOptions(device="cpu", **more))  # type: ignore[arg-type]
    found = {group["weight_decay"]: [tuple(p.shape) for p in group["params"]] for group in groups}
    assert found == {0.3: [(4, 4)], 0.2: [(4,)], 0.1: [(4,), (4,)], 0.0: [(1, 1, 4)]}


def test_the_log_is_told_updates_and_epochs() -> None:
    told: list[tuple[int, set[str]]] = []
    task = Task(log=lambda values, update: told.append((update, set(values))))
    fit(plain_model(), data(), data(), options(print_freq=2), task=task)
    assert [update for update, _ in told] == [2, 4, 5, 5]
    assert told[0][1] == {"loss", "images per second", "learning rate"}
    assert {"epoch/val_loss", "epoch/val_accuracy"} <= told[-1][1]


# ---- what results decide


def scripted(values: list[float]) -> Task:
    """A task whose validation gives these values, one after the other."""
    left = iter(values)
    current = {"value": 0.0, "epoch": -1}

    def metrics(model: Any, batch: Any) -> dict[str, float]:
        current["value"] = next(left)
        return {"score": current["value"]}

    return Task(loss=dicts_loss, metrics=metrics)


def run(values: list[float], **more: Any) -> Any:
    whole = DataLoader(Dicts(8), 8)  # one batch of validation in an epoch
    return fit(
        plain_model(), DataLoader(Dicts(8), 8), whole, options(epochs=len(values), **more), task=scripted(values)
    )


def test_a_run_ends_when_nothing_gets_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = [0.1, 0.4, 0.3, 0.4, 0.2, 0.9]
    result = run(values, best_metric="val_score", patience=3, output_dir=str(tmp_path))
    assert [round(entry["val_score"], 6) for entry in result.epochs] == values[:5]
    assert "stopped early: no better val_score since epoch 1" in capsys.readouterr().out
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert len(best["result"]["epochs"]) == 2
    assert not result.stopped  # nobody has stopped it


def test_a_finished_early_run_that_is_resumed_stays_finished(tmp_path: Path) -> None:
    more: dict[str, Any] = {"best_metric": "val_score", "patience": 1, "output_dir": str(tmp_path)}
    run([0.5, 0.4, 0.9], **more)
    again = run([0.9, 0.9, 0.9], resume="auto", **more)
    assert len(again.epochs) == 2


def test_smaller_is_better_where_it_is_said(tmp_path: Path) -> None:
    values = [0.5, 0.3, 0.4]
    run(values, best_metric="val_score", best_is="smallest", output_dir=str(tmp_path))
    assert len(torch.load(tmp_path / "best.pt", weights_only=True)["result"]["epochs"]) == 2


def test_rates_fall_on_a_plateau_as_torchs_scheduler_lets_them() -> None:
    values = [0.5, 0.6, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7]
    rates: list[float] = []
    task = scripted(values)
    logged = Task(
        loss=task.loss, metrics=task.metrics, log=lambda values, _: rates.append(values.get("learning rate", -1))
    )
    more = {"lr_scheduler": "plateau", "best_metric": "val_score", "lr_patience": 1, "lr_gamma": 0.5, "print_freq": 1}
    whole = DataLoader(Dicts(8), 8)
    fit(plain_model(), DataLoader(Dicts(8), 8), whole, options(epochs=len(values), **more), task=logged)
    optimizer = torch.optim.SGD([torch.zeros(())], lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, 1)
    expected = []
    for value in values:
        expected.append(optimizer.param_groups[0]["lr"])
        schedule.step(value)
    assert [rate for rate in rates if rate >= 0] == pytest.approx(expected)
    assert len(set(expected)) == 3


def test_a_plateau_is_computed_from_the_epochs_alone() -> None:
    given = options(lr_scheduler="plateau", lr_patience=0)
    assert plateau_factor([{"val_loss": 1.0}], given) == 1.0
    assert plateau_factor([{"val_loss": 1.0}, {"val_loss": 1.0}], given) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"best_metric": "val_iou"}, "best_metric='val_iou' is no result of an epoch; there are epoch, loss"),
        ({"patience": 2}, "patience=2 needs best_metric"),
        ({"lr_scheduler": "plateau", "best_is": "most"}, "best_is"),
    ],
)
def test_results_that_there_are_not_are_refused(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=re.escape(problem)):
        run([1.0, 2.0], output_dir=str(tmp_path), **more)


def test_a_misspelt_result_of_classifying_is_refused_before_the_first_epoch() -> None:
    class Untouched(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("the loader was read")

    with pytest.raises(
        OptionError, match=r"best_metric='val_acuracy' is no result of an epoch; there are loss, .*val_acc"
    ):
        fit(plain_model(), Untouched([0]), Untouched([0]), options=options(best_metric="val_acuracy"))


@pytest.mark.parametrize("more", [{"best_metric": "val_loss"}, {"lr_scheduler": "plateau"}])
def test_without_validation_nothing_is_the_best(more: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="need a validation loader"):
        fit(plain_model(), data(), options=options(**more))


def test_the_cosine_ends_at_lr_min_as_torchs() -> None:
    rates: list[float] = []
    task = Task(log=lambda values, _: rates.append(values.get("learning rate", -1)))
    more = {"lr_scheduler": "cosine", "lr_min": 0.02, "print_freq": 1, "epochs": 2, "lr_warmup_epochs": 1}
    fit(plain_model(), data(), options=options(lr_warmup_decay=0.1, **more), task=task)
    optimizer = torch.optim.SGD([torch.zeros(())], lr=0.1)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5, eta_min=0.02)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [5])
    expected = []
    for _ in range(10):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert [rate for rate in rates if rate >= 0] == pytest.approx(expected)


def test_the_average_moves_every_few_updates() -> None:
    training = Training(plain_model(), options(model_ema=0.5, model_ema_steps=2), batches_per_epoch=5)
    expected: list[torch.Tensor] = []
    for number, batch in enumerate(data()):
        training.model.train()
        training.learn(batch)
        now = weights(training.model)
        if number == 0:
            expected = now
        elif number % 2 == 0:
            expected = [0.5 * old + 0.5 * new for old, new in zip(expected, now, strict=True)]
    assert training.averaged is not None
    assert all(torch.allclose(a, b) for a, b in zip(weights(training.averaged), expected, strict=True))


def test_the_best_checkpoint_is_one_that_was_validated(tmp_path: Path) -> None:
    """Others are saved on the way, and after the last epoch."""
    whole = DataLoader(Dicts(), 8)
    given = options(epochs=3, best_metric="val_score", save_every=3, output_dir=str(tmp_path))
    scores = [score for score in (0.9, 0.5, 0.7) for _ in range(5)]
    fit(plain_model(), whole, whole, given, task=scripted(scores))
    best = torch.load(tmp_path / "best.pt", weights_only=True)
    assert best["training"]["counts"] == {"epoch": 1, "batch": 0, "updates": 5}


class Killed(BaseException):
    """Stands for a kill: the program runs nothing behind it that would tidy up."""


def test_the_best_is_chosen_by_the_run_that_resumes_one_killed_before_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at each call that makes best.pt; the run that resumes has the epochs that are left."""
    scores = [0.5, 0.9, 0.7]
    for call in ("link", "replace"):
        for epoch in (0, 1):  # each the best so far
            more: dict[str, Any] = {"best_metric": "val_score", "output_dir": str(tmp_path / f"{call}{epoch}")}
            real, spared = getattr(os, call), iter([False] * epoch)

            def kill(old: Any, new: Any, real: Any = real, spared: Any = spared) -> None:
                if "best" in Path(new).name and next(spared, True):
                    raise Killed
                real(old, new)

            with monkeypatch.context() as patched:
                patched.setattr(os, call, kill)
                with pytest.raises(Killed):
                    run(scores, **more)
            again = run(scores[epoch + 1 :] + [0.0] * (epoch + 1), resume="auto", **more)
            assert [round(entry["val_score"], 6) for entry in again.epochs] == scores
            best = torch.load(Path(more["output_dir"]) / "best.pt", weights_only=True)
            assert len(best["result"]["epochs"]) == 2


def test_a_run_that_goes_on_in_another_folder_has_the_best_there(tmp_path: Path) -> None:
    run([0.5, 0.9], best_metric="val_score", output_dir=str(tmp_path / "first"))
    latest = max((tmp_path / "first").glob("checkpoint-*.pt"))
    run([0.1, 0.1], best_metric="val_score", output_dir=str(tmp_path / "second"), resume=str(latest))
    assert len(torch.load(tmp_path / "second" / "best.pt", weights_only=True)["result"]["epochs"]) == 2
    assert [path.name for path in (tmp_path / "second").glob(".*")] == []


def test_a_result_that_is_no_number_is_never_the_best(tmp_path: Path) -> None:
    run([float("nan"), 0.2, float("nan"), 0.1], best_metric="val_score", output_dir=str(tmp_path))
    assert len(torch.load(tmp_path / "best.pt", weights_only=True)["result"]["epochs"]) == 2


def test_rates_stay_low_after_a_resume_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    more: dict[str, Any] = {"lr_scheduler": "plateau", "lr_patience": 0, "lr_gamma": 0.5, "best_metric": "val_score"}
    more |= {"epochs": 4, "print_freq": 1, "save_every": 1, "output_dir": str(tmp_path)}
    whole, scores = DataLoader(Dicts(), 8), [score for score in (0.5, 0.4, 0.3, 0.2) for _ in range(5)]

    class Stopped(Exception):
        pass

    def stops(values: dict[str, float], update: int) -> None:
        if update >= 13:
            raise Stopped

    with pytest.raises(Stopped):
        fit(plain_model(), whole, whole, options(**more), task=replace(scripted(scores), log=stops))
    rates: list[float] = []
    noting = replace(scripted(scores[10:]), log=lambda values, _: rates.append(values.get("learning rate", -1)))
    fit(plain_model(), whole, whole, options(resume="auto", **more), task=noting)
    assert rates[0] == pytest.approx(0.05)


def test_a_metric_that_not_every_batch_has_is_a_mean_of_those_that_have_it() -> None:
    numbers = iter(range(100))

    def metrics(model: Any, batch: Any) -> dict[str, float]:
        return {"always": 2.0} | ({"now and then": 1.0} if next(numbers) % 2 else {})

    whole = DataLoader(Dicts(), 8)
    found = fit(plain_model(), whole, whole, options(), task=Task(loss=dicts_loss, metrics=metrics)).epochs[0]
    assert (found["val_always"], found["val_now and then"]) == (2.0, 1.0)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(7, 3), 7),
        ([[torch.zeros(7, 3, 8, 8), torch.zeros(7, 3, 8, 8)], torch.zeros(7)], 7),
        (([torch.zeros(3, 8, 9)] * 5, [{"boxes": torch.zeros(2, 4)}] * 5), 5),
        ({"text": ["a"] * 4, "image": torch.zeros(4, 3)}, 4),
        ([[torch.zeros(6, 3)], "text"], 1),
    ],
)
def test_samples_in_batches_of_many_forms_are_counted(batch: Any, count: int) -> None:
    assert count_samples(batch) == count
