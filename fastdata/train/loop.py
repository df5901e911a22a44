"""The training loop: `fit` is the run, `train_epoch` the step; `evaluate` (validation.py) is the validation.

Nothing in the training step waits for the device.  The lines that do are marked "waits": the losses are read every
`print_freq` updates and at the end of an epoch, and the results of the validation after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fastdata.errors import OptionError, TrainError
from fastdata.order.sampler_chain import epoch_sampler
from fastdata.system.stack_level import users_level
from fastdata.train.best import best_epoch, check_metric, is_out_of_patience, plateau_factor
from fastdata.train.checkpoints import Checkpointer
from fastdata.train.model import set_switches
from fastdata.train.monitor import Monitor, monitored
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks
from fastdata.train.task import Task
from fastdata.train.training import Training
from fastdata.train.validation import evaluate

__all__ = ["Result", "fit", "train_epoch"]

_FORGOTTEN = 0.1  # share of a moving average that its first weights may still have at the end of a run


@dataclass(kw_only=True)
class Result:
    """The results of a run.

    Attributes:
        epochs: one dict per epoch: epoch, loss, images_per_s, wait_share (share of the epoch in which the device waited
            for data), with a validation loader the means of its metrics (val_loss, val_accuracy from 0 to 1, …), on
            CUDA device_peak_mb (the most memory of the device that torch allocated, in 10⁶ bytes), and failures if
            images were skipped or replaced.
        losses: the mean loss of every update, over all processes.
        epoch_totals: number of samples of the current epoch so far, and the sum of their losses.
        stopped: True if a signal stopped the run early; a checkpoint was saved if output_dir is set.
    """

    epochs: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    stopped: bool = False
    epoch_totals: list[float] = field(default_factory=lambda: [0.0, 0.0])


def fit(
    model: nn.Module,
    train_loader: Iterable[Any] | Callable[[int], Iterable[Any]],
    val_loader: Iterable[Any] | None = None,
    options: TrainOptions | None = None,
    *,
    ranks: Ranks | None = None,
    num_classes: int | None = None,
    task: Task | None = None,
) -> Result:
    """Trains a model.

    Args:
        model: a module that returns one value per class, or whatever the task's loss takes; trained in place.
        train_loader: yields (images, labels), or batches of the task's form, and has a length; or a function from the
            epoch number to such a loader.
            A loader with `state_dict` and `load_state_dict` resumes in the middle of an epoch by itself; with others,
            the batches already used are loaded again and skipped.
        val_loader: yields such batches; None for no validation.
        options: see `TrainOptions`; None for the defaults.
        ranks: the processes that train together, from `join_ranks`; None for this process alone.
        num_classes: number of classes, needed for mixup and cutmix.
        task: one's own loss, metrics, optimiser, schedule, form of a batch; None classifies images.

    Raises:
        OptionError: the options do not fit the model or each other.
        TrainError: a loss is NaN or inf, another process was lost, or a checkpoint does not fit.
    """
    options, ranks = _checked(options, val_loader), ranks or Ranks()
    check_metric(options, task, num_classes)
    loader_of = train_loader if callable(train_loader) else lambda epoch: train_loader
    with ranks.together():
        training = _prepared(model, loader_of, options, ranks, num_classes, task)
        return _run(training, loader_of, val_loader)


def _prepared(
    model: nn.Module,
    loader_of: Callable[[int], Any],
    options: TrainOptions,
    ranks: Ranks,
    num_classes: int | None,
    task: Task | None,
) -> Training:
    """A run's state before its first update."""
    set_switches(options)
    torch.manual_seed(options.seed + ranks.rank)  # of dropout; DDP gives everybody rank 0's weights
    batches = ranks.largest(_length(loader_of(0)))
    if batches == 0:
        raise TrainError("the training loader has no batches; with drop_last=True it needs at least batch_size samples")
    _check_batch_size(loader_of(0), options)
    training = Training(model, options, ranks=ranks, batches_per_epoch=batches, num_classes=num_classes, task=task)
    _check_average(training)
    return training


def _run(training: Training, loader_of: Callable[[int], Any], val_loader: Any) -> Result:
    """All epochs that are left, and what is written at the end."""
    options, checkpointer, result = training.options, Checkpointer(training), Result()
    loader_state = checkpointer.restore(result)
    if validated := result.epochs[:-1] if checkpointer.owes_validation else result.epochs:
        training.scheduler.reduce(plateau_factor(validated, options))
    with monitored(training) as monitor, checkpointer.listening():
        if checkpointer.owes_validation:
            loader = loader_of(training.epoch - 1)
            checkpointer.begin_validation(loader, loader_state)
            with monitor.may_sync():
                _end_epoch(training, loader, val_loader, checkpointer=checkpointer, monitor=monitor, result=result)
        while training.epoch < options.epochs and not result.stopped and not _ends_early(training, result, monitor):
            loader = loader_of(training.epoch)
            _begin_epoch(loader, training, loader_state)
            loader_state = None
            train_epoch(training, loader, monitor=monitor, checkpointer=checkpointer, result=result)
            if checkpointer.told_to_stop:
                result.stopped = True
                monitor.say(checkpointer.stop_message())
                break
            monitor.end_epoch(result, training.epoch - 1)
            with monitor.may_sync():
                monitor.count_failures(result.epochs[-1], loader)
                if val_loader is not None:
                    checkpointer.save(loader, result, validated=False)  # a damaged image may end the validation
                _end_epoch(training, loader, val_loader, checkpointer=checkpointer, monitor=monitor, result=result)
    monitor.end_run(result)
    return result


def _ends_early(training: Training, result: Result, monitor: Monitor) -> bool:
    """Acts on the results of the epochs so far: lowers the rates of "plateau", and tells if `patience` is over."""
    if result.epochs and training.batch == 0:
        training.scheduler.reduce(plateau_factor(result.epochs, training.options))
        if is_out_of_patience(result.epochs, training.options):
            best = best_epoch(result.epochs, training.options)
            monitor.say(f"stopped early: no better {training.options.best_metric} since epoch {best}")
            return True
    return False


def _checked(options: TrainOptions | None, val_loader: Any) -> TrainOptions:
    if options is not None and not isinstance(options, TrainOptions):
        raise OptionError(f"options must be a TrainOptions, not {type(options).__name__}")
    options = options if options is not None else TrainOptions()
    judges = options.lr_scheduler == "plateau" or (options.best_metric or "").startswith("val_")
    if judges and val_loader is None:
        raise OptionError("best_metric, patience and lr_scheduler='plateau' need a validation loader: pass val_loader")
    return options


def _end_epoch(
    training: Training, loader: Any, val_loader: Any, *, checkpointer: Checkpointer, monitor: Monitor, result: Result
) -> None:
    """Ends an epoch: validates, shows the epoch's line, and saves a checkpoint with both."""
    entry = result.epochs[-1]
    if val_loader is not None:
        training.share_buffers()
        found = evaluate(training.best_weights, val_loader, training=training, is_stopped=checkpointer.is_signalled)
        if not found:  # the checkpoint from before the validation stays the latest
            result.stopped = True
            monitor.say(checkpointer.stop_message())
            return
        entry |= found
        monitor.count_failures(entry, val_loader)
    monitor.show_epoch(entry)
    checkpointer.save(loader, result)
    checkpointer.keep_best(result)


def train_epoch(
    training: Training,
    loader: Iterable[Any],
    *,
    monitor: Monitor | None = None,
    checkpointer: Checkpointer | None = None,
    result: Result | None = None,
) -> Result:
    """Trains for one epoch, or for the rest of one after a resume.

    Gradients are summed over samples and divided by the number of samples on all processes when an update is made, so a
    smaller last batch, or a last group of fewer accumulated batches, gets the right weight.

    Args:
        training: model, optimiser and counts; changed in place.
        loader: yields (images, labels).
        monitor: measures and logs; None makes one.
        checkpointer: saves checkpoints when they are due; None saves none.
        result: result to which losses are appended, and which is returned; None makes a new one.
    """
    options, result = training.options, result if result is not None else Result()
    monitor, losses = monitor or Monitor(training), []
    whole = options.accumulate == 1 and training.ranks.world_size == 1
    monitor.begin_epoch()
    batches, last = _rest_of_epoch(training, loader, checkpointer)
    if last >= 0:
        training.set_pace(last)
    training.model.train()
    for batch, weight in _weighted(training, loader, batches, last, monitor):
        training.batch += 1
        last_of_group = training.batch % options.accumulate == 0 or training.batch == last
        batch = training.mix(training.to_device(batch))
        with training.without_sync(not last_of_group):
            with training.autocast():
                loss = training.loss(batch)
            monitor.book("forward")
            training.scaler.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
            monitor.book("backward")
        training.note(loss, weight)
        if not last_of_group:
            continue
        losses.append(training.update(exact=whole and weight == 1.0))
        monitor.count_update()
        if training.updates % options.print_freq == 0:
            _look(losses, training, monitor, result)  # waits
        monitor.tell()
        if checkpointer is not None and checkpointer.is_due():
            _look(losses, training, monitor, result)  # waits
            with monitor.may_sync():
                checkpointer.save(loader, result)
        if checkpointer is not None and checkpointer.told_to_stop:
            return result
    if training.pending:  # the loader had fewer batches than it said, and left a group unfinished
        losses.append(training.update(exact=False))
    _look(losses, training, monitor, result)  # waits
    training.end_epoch()
    return result


def _rest_of_epoch(training: Training, loader: Any, checkpointer: Checkpointer | None) -> tuple[Iterator[Any], int]:
    """The batches that are left, and the number of the epoch's last batch on the rank that has most.

    Random numbers continue where they were when the checkpoint was saved: making an iterator draws from torch's
    generator, and so do a plain loader's order and the batches that are skipped through.
    """
    if checkpointer is None and training.ranks.world_size == 1:
        return iter(loader), -1  # called by hand: the epoch ends where the loader does
    resumed = checkpointer is not None and checkpointer.has_resumed
    keeps_state = hasattr(loader, "load_state_dict")
    left = loader.batches_left() if hasattr(loader, "batches_left") else _length(loader) - training.batch * resumed
    last = training.batch + training.ranks.largest(max(0, left))
    if checkpointer is None:
        return iter(loader), last
    checkpointer.begin_epoch(loader)
    batches: Iterator[Any] = iter(loader)
    if resumed and not keeps_state:
        for _ in range(training.batch):
            next(batches, None)
    checkpointer.restore_random()
    return batches, last


def _check_batch_size(loader: Any, options: TrainOptions) -> None:
    """Says when the loader's batches are of another size than the options, by which rates are scaled."""
    size = getattr(loader, "batch_size", None)
    if isinstance(size, int) and size != options.batch_size:
        warnings.warn(
            f"the loader's batch_size is {size}, but options.batch_size is {options.batch_size}; make them equal, or "
            "scaled learning rates and logs will be wrong",
            stacklevel=users_level(),
        )


def _check_average(training: Training) -> None:
    """Says when a run is too short for its average of the weights, which the validation would see nearly untrained."""
    decay, updates = training.options.model_ema, training.scheduler.total // training.options.model_ema_steps
    if decay is None or not training.ranks.is_main or (left := decay ** (updates - 1)) <= _FORGOTTEN:
        return
    advice = f"set model_ema={1 - 10 / updates:.2g}, or leave it out" if updates >= 20 else "leave it out"
    warnings.warn(
        f"model_ema={decay} averages over about {1 / (1 - decay):.0f} updates, but this run makes only {updates}: at "
        f"the end, the weights after the first update still make up {left:.0%} of the average; {advice}",
        stacklevel=users_level(),
    )


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError as error:
        raise TrainError(
            f"{type(loader).__name__} has no length, but schedules and progress need one; give it a __len__ (the "
            "number of batches)"
        ) from error


def _weighted(
    training: Training, loader: Any, batches: Iterator[Any], last: int, monitor: Monitor
) -> Iterator[tuple[Any, float]]:
    """Batches with their weight, 1 for a full one.

    A process with fewer batches than others repeats one with weight 0, since DDP needs every process in every step.
    """
    latest = None
    for batch in monitor.waits_for(map(training.checked, batches)):
        count = training.count(batch)
        if count == 0 and training.ranks.world_size == 1:  # nothing to learn
            training.batch += 1
        elif count == 0:
            yield latest if latest is not None else _stand_in(training, loader), 0.0
        else:
            latest = batch if training.ranks.world_size > 1 else None
            yield batch, count / training.options.batch_size
    while training.ranks.world_size > 1 and training.batch < last:
        latest = latest if latest is not None else _stand_in(training, loader)
        yield latest, 0.0


def _stand_in(training: Training, loader: Any) -> Any:
    """Some batch for a process that has none, as after a resume with more processes."""
    try:
        return loader.collate_fn([loader.dataset[0]] * 2)
    except (AttributeError, IndexError) as error:
        raise TrainError(
            f"rank {training.ranks.rank} has no samples; use no more processes than there are samples"
        ) from error


def _look(losses: list[torch.Tensor], training: Training, monitor: Monitor, result: Result) -> None:
    """Fetches the losses since the last look; the one place of the step that waits for the device."""
    if not losses:
        return
    with monitor.may_sync():
        totals = torch.stack(losses).tolist()
    losses.clear()
    values = [loss / weight if weight else float("nan") for weight, loss in totals]  # no image was in the update
    result.losses += values
    samples, loss = (training.options.batch_size * sum(column) for column in zip(*totals, strict=True))
    result.epoch_totals = [result.epoch_totals[0] + samples, result.epoch_totals[1] + loss]
    monitor.show_updates(values)
    wrong = [number for number, (_, loss) in enumerate(totals, start=1) if not abs(loss) < float("inf")]
    if wrong:
        first = training.updates - len(totals) + wrong[0]
        options = training.options
        raise TrainError(
            f"the loss is NaN or inf since update {first} (lr={options.lr}, amp={options.amp!r}, "
            f"clip_grad_norm={options.clip_grad_norm}); try a lower lr, a warm-up or clip_grad_norm, and find the "
            f"cause with detect_anomaly=True; checkpoints of fewer than {max(1, first - 1)} updates are not affected"
        )


def _begin_epoch(loader: Any, training: Training, state: Any) -> None:
    """Puts a loader at the start of the epoch, or in its middle after a resume."""
    restored = state is not None and hasattr(loader, "load_state_dict")
    if restored:
        loader.load_state_dict(state)
    knowing = epoch_sampler(loader)
    if knowing is not None and not (restored and knowing is loader):  # its state has the epoch
        knowing.set_epoch(training.epoch)
