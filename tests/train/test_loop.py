"""The step does the arithmetic it claims: accumulation, clipping, averages, schedules, precision, mixing."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from small_training import CLASSES, close, data, options, plain_model
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fastdata import DevicePrefetcher, OptionError
from fastdata.errors import TrainError
from fastdata.models.create import _with_classes, create_model, small_resnet
from fastdata.train import Training, evaluate, fit, train_epoch
from fastdata.train.optim import make_optimizer, parameter_groups, scaled_lr
from fastdata.train.ranks import Ranks
from fastdata.train.schedule import Schedule


def weights_after(loader: Any, **more: Any) -> list[torch.Tensor]:
    model = plain_model()
    fit(model, loader, options=options(**more))
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_fit_does_what_a_plain_loop_does() -> None:
    model = plain_model().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(parameter_groups(model, options()), 0.1, momentum=0.9, nesterov=True, fused=True)
    expected = []
    for images, labels in data():
        loss = nn.functional.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    ours = plain_model()
    result = fit(ours, data(), options=options())
    assert result.losses == expected
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("count", [32, 40, 36])
def test_accumulated_batches_equal_their_joint_batch(count: int) -> None:
    """40 and 36 samples leave a last group of fewer batches, 36 a smaller batch in it, too."""
    joint = weights_after(data(count, 16), batch_size=16)
    parts = weights_after(data(count, 8), batch_size=8, accumulate=2)
    assert close(parts, joint)
    assert not close(weights_after(data(count, 8)), joint)


@pytest.mark.parametrize("limit", [{"clip_grad_norm": 0.05}, {"clip_grad_value": 0.001}])
def test_clipping_sees_the_joint_gradient(limit: dict[str, float]) -> None:
    joint = weights_after(data(32, 16), batch_size=16, momentum=0.0, **limit)
    assert close(weights_after(data(32, 8), batch_size=8, accumulate=2, momentum=0.0, **limit), joint)
    assert not close(weights_after(data(32, 16), batch_size=16, momentum=0.0), joint)


def test_clipped_norm_is_the_length_of_the_update() -> None:
    model = plain_model()
    before = copy.deepcopy(model)
    more = {"clip_grad_norm": 0.01, "momentum": 0.0, "weight_decay": 0.0, "lr": 1.0}
    fit(model, data(8, 8), options=options(**more))
    moved = [a - b for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert math.isclose(torch.nn.utils.get_total_norm(moved).item(), 0.01, rel_tol=1e-3)


def test_the_average_follows_the_weights() -> None:
    training = Training(nn.Sequential(nn.BatchNorm2d(3), plain_model()), options(model_ema=0.9), batches_per_epoch=5)
    assert training.averaged is not None
    expected = None
    for images, labels in data():
        training.batch = 0
        train_epoch(training, [(images, labels)])
        weights = [value.clone() for value in training.model.state_dict().values()]
        expected = weights if expected is None else [0.9 * e + 0.1 * w for e, w in zip(expected, weights, strict=True)]
    averaged = training.averaged.state_dict()
    assert expected is not None
    counts = [n for n, name in enumerate(averaged) if name.endswith("num_batches_tracked")]
    assert [list(averaged.values())[n] for n in counts] == [torch.tensor(5)]
    floats = [n for n in range(len(averaged)) if n not in counts]
    assert close([list(averaged.values())[n] for n in floats], [expected[n] for n in floats])
    assert training.best_weights is training.averaged


def test_norms_and_biases_do_not_decay() -> None:
    model = small_resnet(CLASSES)
    groups = parameter_groups(model, options(weight_decay=0.3))
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert all(parameter.ndim > 1 for parameter in groups[0]["params"])
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_what_timms_models_exempt_does_not_decay() -> None:
    model = create_model("timm/vit_tiny_patch16_224", CLASSES)
    assert {"pos_embed", "cls_token"} <= set(model.no_weight_decay())
    for made in (model, nn.Sequential(model)):
        weights, others = parameter_groups(made, options())
        assert not any(parameter is model.pos_embed or parameter is model.cls_token for parameter in weights["params"])
        assert sum(parameter is model.pos_embed for parameter in others["params"]) == 1


def test_an_average_over_more_updates_than_there_are_is_said() -> None:
    with pytest.warns(
        UserWarning, match=r"averages over about 10000 updates, but this run makes only 25.*model_ema=0\.6"
    ):
        fit(plain_model(), data(), options=options(model_ema=0.9999, epochs=5))
    with pytest.warns(UserWarning, match="this run makes only 5: .* leave it out"):
        fit(plain_model(), data(), options=options(model_ema=0.9))
    fit(plain_model(), data(), options=options(model_ema=0.5))  # says nothing


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "lamb"])
@pytest.mark.parametrize("schedule", ["cosine", "onecycle", "cyclic", "step", "constant"])
def test_every_optimiser_learns_under_every_schedule(name: str, schedule: str) -> None:
    rate = {"sgd": 0.02, "adamw": 0.01, "lars": 0.1, "lamb": 0.02}[name]
    result = fit(plain_model(), data(), options=options(opt=name, lr=rate, lr_scheduler=schedule, epochs=6))
    assert result.epochs[-1]["loss"] < result.epochs[0]["loss"]


def rates(total: int = 20, **more: Any) -> list[float]:
    made = options(**more)
    optimizer = make_optimizer(plain_model(), made)
    scheduler = Schedule(optimizer, made, updates_per_epoch=total // made.epochs)
    seen = []
    for _ in range(total):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_schedules_go_by_update() -> None:
    cosine = rates(lr_scheduler="cosine", epochs=2)
    assert cosine[0] == 0.1
    assert math.isclose(cosine[10], 0.05)
    assert cosine == sorted(cosine, reverse=True)
    warm = rates(lr_scheduler="cosine", epochs=2, lr_warmup_epochs=0.5)
    assert warm[:6] == sorted(warm[:6])
    assert math.isclose(warm[0], 0.001)
    assert math.isclose(max(warm), 0.1)
    dropped = rates(lr_scheduler="step", epochs=2, lr_step_size=1)
    assert math.isclose(dropped[9], 0.1)
    assert math.isclose(dropped[10], 0.01)
    cycle = rates(lr_scheduler="onecycle", epochs=2)
    assert math.isclose(max(cycle), 0.1, rel_tol=0.02)
    assert 3 < cycle.index(max(cycle)) < 9


def test_the_rate_grows_with_the_joint_batch() -> None:
    made = {"batch_size": 128, "accumulate": 2, "base_batch": 256}
    assert scaled_lr(options(**made), 4) == 0.1
    assert math.isclose(scaled_lr(options(lr_scaling="linear", **made), 4), 0.4)
    assert math.isclose(scaled_lr(options(lr_scaling="sqrt", **made), 4), 0.2)


def test_bf16_is_the_precision_of_the_forward_pass() -> None:
    seen = []
    model = plain_model()
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    fit(model, data(), options=options(amp="bf16"))
    assert set(seen) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("channels_last", [True, False])
def test_channels_last_end_to_end(channels_last: bool) -> None:
    layouts = []
    model = plain_model()
    model[0].register_forward_hook(
        lambda module, inputs, output: layouts.append(
            (inputs[0].is_contiguous(memory_format=torch.channels_last), module.weight.stride()[1] == 1)
        )
    )
    fit(model, data(), options=options(channels_last=channels_last))
    assert set(layouts) == {(channels_last, channels_last)}


@pytest.mark.parametrize(
    "mixing", [{"mixup_alpha": 0.4}, {"cutmix_alpha": 1.0}, {"mixup_alpha": 0.4, "cutmix_alpha": 1}]
)
def test_mixing_changes_the_losses_and_repeats_itself(mixing: dict[str, float]) -> None:
    plain = fit(plain_model(), data(), options=options()).losses
    runs = [fit(plain_model(), data(), options=options(**mixing), num_classes=CLASSES).losses for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != plain
    with pytest.raises(OptionError, match="num_classes"):
        fit(plain_model(), data(), options=options(**mixing))


def test_label_smoothing_is_torchs() -> None:
    model = plain_model()
    images, labels = next(iter(data(8)))
    expected = nn.functional.cross_entropy(model(images), labels, label_smoothing=0.2).item()
    loss = fit(model, data(8), options=options(label_smoothing=0.2)).losses[0]
    assert math.isclose(loss, expected, rel_tol=1e-5)


def test_validation_counts_every_sample_once() -> None:
    training = Training(plain_model(), options(), batches_per_epoch=1)
    training.model.train()
    images, labels = data(37).dataset.tensors
    with torch.inference_mode():
        outputs = training.model.eval()(images.contiguous(memory_format=torch.channels_last))
    training.model.train()
    found = evaluate(training.model, data(37), training=training)
    assert math.isclose(found["val_accuracy"], (outputs.argmax(1) == labels).float().mean().item(), rel_tol=1e-6)
    assert math.isclose(found["val_loss"], nn.functional.cross_entropy(outputs, labels).item(), rel_tol=1e-5)
    assert training.model.training


def test_a_loss_that_is_no_number_is_named() -> None:
    with pytest.raises(TrainError, match="the loss is NaN or inf since update"):
        fit(plain_model(), data(), options=options(lr=1e30, momentum=0.0, epochs=3))


def test_a_prefetcher_can_be_trained_from() -> None:
    plain = fit(plain_model(), data(), options=options(epochs=2)).losses
    assert fit(plain_model(), DevicePrefetcher(data(), "cpu"), options=options(epochs=2)).losses == plain


def test_a_loader_that_is_shorter_than_it_says_loses_no_gradient() -> None:
    class Short:
        def __len__(self) -> int:
            return 5

        def __iter__(self) -> Any:
            return iter(list(data())[:4])

    result = fit(plain_model(), Short(), options=options(accumulate=3))
    assert len(result.losses) == 2


def test_batches_need_not_be_images() -> None:
    rows = DataLoader(TensorDataset(torch.randn(32, 10), torch.randint(0, 4, (32,))), 8)
    assert len(fit(nn.Linear(10, 4), rows, options=options()).losses) == 4


def test_trained_weights_get_the_classes_of_the_data() -> None:
    model = _with_classes(create_model("resnet18", 1000), 7)
    assert model.fc.out_features == 7
    kept = create_model("resnet18", 7)
    before = kept.fc
    assert _with_classes(kept, 7).fc is before
    with pytest.raises(OptionError, match="weights='FOO' do not exist for resnet18; use one of IMAGENET1K_V1"):
        create_model("resnet18", 7, weights="FOO")


@pytest.mark.parametrize(
    ("loader", "message"),
    [(iter(()), "has no length"), ([], "has no batches")],
    ids=["no length", "empty"],
)
def test_loaders_that_cannot_train_are_explained(loader: Any, message: str) -> None:
    with pytest.raises(TrainError, match=message):
        fit(plain_model(), loader, options=options())


def test_another_batch_size_than_the_loaders_is_said() -> None:
    with pytest.warns(UserWarning, match="the loader's batch_size is 8, but options.batch_size is 16"):
        fit(plain_model(), data(), options=options(batch_size=16))
    with pytest.raises(OptionError, match="options must be a TrainOptions"):
        fit(plain_model(), data(), options={"epochs": 2})  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_compiled_model_trains_alike() -> None:
    plain = fit(plain_model(), data(), options=options()).losses
    compiled = fit(plain_model(), data(), options=options(compile="default")).losses
    assert all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(plain, compiled, strict=True))


def test_models_by_name() -> None:
    assert create_model("resnet18", 7).fc.out_features == 7
    assert create_model("timm/resnet10t", 7).num_classes == 7
    assert create_model("resnet10t", 7).num_classes == 7
    with pytest.raises(
        OptionError, match=r"model='resnet19' is unknown; looked in fastdata \(small\), torchvision, timm"
    ):
        create_model("resnet19", 7)


def test_data_parallel_is_refused() -> None:
    with pytest.raises(OptionError, match="torchrun"):
        fit(nn.DataParallel(plain_model()), data(), options=options())


def test_ranks_alone_sum_nothing() -> None:
    values = torch.ones(3)
    assert Ranks().sum(values) is values
    assert Ranks().largest(5) == 5


class Wrapped(nn.Module):
    """The plain model, whose outputs are changed."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner, self.change = plain_model(), change

    def forward(self, x: torch.Tensor) -> Any:
        return self.change(self.inner(x))


def test_outputs_and_batches_of_another_kind_are_explained() -> None:
    with pytest.raises(TrainError, match=r"the model returns a dict, not one tensor \(N, classes\); wrap it"):
        fit(Wrapped(lambda outputs: {"out": outputs}), data(), options=options())
    with pytest.raises(TrainError, match=r"a label is out of range: .* The model returns 2 values per image"):
        fit(Wrapped(lambda outputs: outputs[:, :2]), data(), options=options())
    three = [(torch.zeros(8, 3, 16, 16), torch.zeros(8, dtype=torch.int64), torch.arange(8))]
    with pytest.raises(TrainError, match="the loader yields a tuple of Tensor, Tensor, Tensor; it must yield"):
        fit(plain_model(), three, options=options())
    with pytest.raises(TrainError, match="the loader yields a dict"):
        fit(plain_model(), [{"image": three[0][0]}], options=options())
    with pytest.raises(TrainError, match="the validation loader has no images"):
        fit(plain_model(), data(), [], options())
    with pytest.raises(OptionError, match="no parameter of the model requires a gradient"):
        fit(plain_model().requires_grad_(False), data(), options=options())


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_empty_batch_moves_nothing(accumulate: int) -> None:
    batches = list(data())
    empty = (torch.zeros(0, 3, 16, 16), torch.zeros(0, dtype=torch.int64))
    found = fit(plain_model(), [*batches[:2], empty, *batches[2:4]], options=options(accumulate=accumulate)).losses
    assert all(map(math.isfinite, found))


@pytest.mark.parametrize("kind", ["onecycle", "cyclic"])
@pytest.mark.parametrize(("opt", "name"), [("sgd", "momentum"), ("adamw", "betas")])
def test_cycles_move_momentum_around_the_option(kind: str, opt: str, name: str) -> None:
    given: dict[str, Any] = {"opt": opt, "lr_scheduler": kind, "lr_step_size": 0.5}
    given |= {"momentum": 0.6} if opt == "sgd" else {"betas": (0.6, 0.9)}
    training = Training(plain_model(), options(**given), batches_per_epoch=20)
    seen = []
    for _ in range(20):
        value = training.optimizer.param_groups[0][name]
        seen.append(value[0] if isinstance(value, tuple) else value)
        training.learn(next(iter(data())))
    if kind == "onecycle":
        assert (min(seen), max(seen)) == pytest.approx((0.55, 0.65), abs=0.01)
    else:
        assert (min(seen), max(seen)) == pytest.approx((0.5, 0.6) if opt == "sgd" else (0.6, 0.6), abs=0.01)


def test_no_momentum_stays_none() -> None:
    training = Training(plain_model(), options(lr_scheduler="onecycle", momentum=0.0), batches_per_epoch=5)
    for images, labels in data():
        training.learn((images, labels))
        assert training.optimizer.param_groups[0]["momentum"] == 0.0


def test_samplers_are_told_the_epoch_wherever_they_are() -> None:
    told = []

    class Noting(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch: int) -> None:
            told.append(epoch)

    dataset = data().dataset
    batches = torch.utils.data.BatchSampler(Noting(dataset), 8, drop_last=False)
    fit(plain_model(), torch.utils.data.DataLoader(dataset, batch_sampler=batches), options=options(epochs=3))
    assert told == [0, 1, 2]


def test_a_schedule_ends_before_a_loader_that_has_more_than_it_said() -> None:
    class Longer(list[Any]):
        def __len__(self) -> int:
            return 3

    found = fit(plain_model(), Longer(data()), options=options(lr_scheduler="onecycle")).losses
    assert len(found) == 5
