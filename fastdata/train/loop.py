"""The training loop: `fit` is the run, `train_epoch` the step, `evaluate` the validation.

Nothing in the step waits for the device.  What does is marked "waits": one look at the losses every `print_freq`
updates, one at the end of an epoch, one after validation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fastdata.errors import TrainError
from fastdata.train.keeping import Keeper
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks
from fastdata.train.seeing import Watch, watching
from fastdata.train.state import Training

__all__ = ["Result", "evaluate", "fit", "train_epoch"]


@dataclass(kw_only=True)
class Result:
    """What a run gave.

    Attributes:
        epochs: one entry each: loss, and with validation val_loss, val_accuracy (0 to 1), then images per second and
            wait_share, the share of the epoch spent waiting for data.
        losses: the mean loss of every update, over all processes.
        epoch_totals: of the epoch at hand: samples, and the sum of their losses.
        stopped: a signal ended the run early; a checkpoint was saved if there is an output_dir.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped: bool = False
    epoch_totals: list[float] = field(default_factory=lambda: [0.0, 0.0])


def fit(
    model: nn.Module,
    train_loader: Any,
    val_loader: Any = None,
    options: TrainOptions | None = None,
    *,
    ranks: Ranks | None = None,
    num_classes: int | None = None,
) -> Result:
    """Trains a model.

    Args:
        model: any module that gives one value per class; trained in place.
        train_loader: yields (images, labels) and has a length; or a function from an epoch's number to such a loader.
            One with `state_dict` resumes within an epoch by itself, others are skipped through.
        val_loader: like it, or None.
        options: see `TrainOptions`.
        ranks: the processes that train together, from `join_ranks`; None is this one alone.
        num_classes: for mixup and cutmix.

    Raises:
        TrainError: a loss is no number, another process has gone, a checkpoint does not fit.
    """
    options, ranks = options or TrainOptions(), ranks or Ranks()
    loader_of = train_loader if callable(train_loader) else lambda epoch: train_loader
    _set_switches(options)
    torch.manual_seed(options.seed)
    batches = ranks.largest(len(loader_of(0)))
    training = Training(model, options, ranks=ranks, batches_per_epoch=batches, num_classes=num_classes)
    keeper, result = Keeper(training), Result()
    loader_state = keeper.restore(result)
    with ranks.together(), watching(training) as watch, keeper.listening():
        while training.epoch < options.epochs:
            loader = loader_of(training.epoch)
            _begin_epoch(loader, training, loader_state)
            loader_state = None
            train_epoch(training, loader, watch=watch, keeper=keeper, result=result)
            if keeper.told_to_stop:
                result.stopped = True
                break
            entry = watch.end_epoch(result)
            if val_loader is not None:
                entry |= evaluate(training.best_weights, val_loader, training=training)
            training.epoch, training.batch = training.epoch + 1, 0
            watch.show_epoch(entry)
            keeper.save(loader, result)
    watch.end_run(result)
    return result


def train_epoch(
    training: Training,
    loader: Iterable[Any],
    *,
    watch: Watch | None = None,
    keeper: Keeper | None = None,
    result: Result | None = None,
) -> Result:
    """The rest of one epoch.

    Gradients are sums of per-sample gradients, divided by their number on all processes when the update is made, so an
    uneven last batch, or a last group of fewer accumulated batches, has its right weight.
    """
    options, result = training.options, result if result is not None else Result()
    watch, losses = watch or Watch(training), []
    whole = options.accumulate == 1 and training.ranks.world_size == 1
    training.model.train()
    batches = _rest_of_epoch(training, loader, keeper)
    for images, labels, weight in _weighted(training, batches, watch):
        training.batch += 1
        last_of_group = training.batch % options.accumulate == 0 or training.batch == training.batches_per_epoch
        images, labels = training.to_device(images, labels)
        images, labels = training.mix(images, labels)
        with training.without_sync(not last_of_group):
            with training.autocast():
                loss = training.criterion(training.forward(images), labels)
            watch.book("forward")
            training.scaler.scale(loss * weight).backward()
            watch.book("backward")
        training.note(loss, weight)
        if not last_of_group:
            continue
        losses.append(training.update(exact=whole and weight == 1.0))
        watch.book("update")
        if training.updates % options.print_freq == 0 or training.batch == training.batches_per_epoch:
            _look(losses, training, watch, result)  # waits
        if keeper is not None and keeper.is_due():
            _look(losses, training, watch, result)  # waits
            keeper.save(loader, result)
        if keeper is not None and keeper.told_to_stop:
            break
    return result


def evaluate(model: nn.Module, loader: Iterable[Any], *, training: Training) -> dict[str, float]:
    """Loss and accuracy over all samples of all processes, each counted once.

    Args:
        model: what to validate; its mode is left as it was.
        loader: this process's share, without padding.
        training: for device, precision and processes.
    """
    was_training = model.training
    model.eval()
    # Created on the device; sums of loss, hits, images.
    totals = torch.zeros(3, dtype=torch.float64, device=training.device)
    with torch.inference_mode():
        for images, labels in loader:
            images, labels = training.to_device(images, labels)
            with training.autocast():
                outputs = model(images)
            totals[0] += nn.functional.cross_entropy(outputs.float(), labels, reduction="sum")
            totals[1] += (outputs.argmax(1) == labels).sum()
            totals[2] += len(labels)
    model.train(was_training)
    loss, hits, images_seen = training.ranks.sum(totals).tolist()  # waits
    return {"val_loss": loss / max(1, images_seen), "val_accuracy": hits / max(1, images_seen)}


def _rest_of_epoch(training: Training, loader: Any, keeper: Keeper | None) -> Iterator[Any]:
    """The batches that are left; random numbers go on where they stood when the checkpoint was taken.

    Making an iterator draws from torch's generator, and so may the batches that are skipped through.
    """
    if keeper is not None and training.batch == 0:
        keeper.restore_random()
    batches: Iterator[Any] = iter(loader)
    skipped = 0 if hasattr(loader, "load_state_dict") else training.batch
    for _ in range(skipped):
        next(batches)
    if keeper is not None:
        keeper.restore_random()
    return batches


def _weighted(
    training: Training, batches: Iterator[Any], watch: Watch
) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
    """Batches with their weight, 1 for a full one.

    A process with fewer batches than others repeats its last one with weight 0: DDP wants everybody in every step.
    """
    latest = None
    for images, labels in watch.waits_for(batches):
        latest = (images, labels) if training.ranks.world_size > 1 else None
        yield images, labels, len(labels) / training.options.batch_size
    while training.ranks.world_size > 1 and training.batch < training.batches_per_epoch:
        if latest is None:
            raise TrainError(f"rank {training.ranks.rank} has no data in epoch {training.epoch}; use fewer processes")
        yield *latest, 0.0


def _look(losses: list[torch.Tensor], training: Training, watch: Watch, result: Result) -> None:
    """Fetches the losses since the last look; the one place of the step that waits for the device."""
    if not losses:
        return
    with watch.may_sync():
        totals = torch.stack(losses).tolist()
    losses.clear()
    values = [loss / weight for weight, loss in totals]
    result.losses += values
    samples, loss = (training.options.batch_size * sum(column) for column in zip(*totals, strict=True))
    result.epoch_totals = [result.epoch_totals[0] + samples, result.epoch_totals[1] + loss]
    watch.show_updates(values)
    if not all(abs(value) < float("inf") for value in values):
        first = training.updates - len(values) + next(n for n, v in enumerate(values) if not abs(v) < float("inf"))
        raise TrainError(f"the loss is no number from update {first} on; a lower lr, or amp='bf16', may help")


def _begin_epoch(loader: Any, training: Training, state: Any) -> None:
    """Puts a loader at the start of the epoch, or in its middle after a resume."""
    if state is not None and hasattr(loader, "load_state_dict"):
        loader.load_state_dict(state)
    elif (set_epoch := getattr(loader, "set_epoch", getattr(loader.sampler, "set_epoch", None))) is not None:
        set_epoch(training.epoch)


def _set_switches(options: TrainOptions) -> None:
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.autograd.set_detect_anomaly(options.detect_anomaly)
