"""The state of a run (weights, optimiser, schedule, averaged weights, counts), and how one update is made."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastdata.augment.mix import CutMix, MixUp
from fastdata.errors import OptionError, TrainError
from fastdata.train.model import connect_model, place_model
from fastdata.train.optim import make_optimizer
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks
from fastdata.train.schedule import Schedule
from fastdata.train.task import Task, as_pair, classified, count_samples, moved

__all__ = ["Training"]

_AMP_DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Training:
    """A model with its optimiser, schedule and everything else that training needs.

    Args:
        model: returns one value per class.
        options: the training options.
        ranks: the processes that train together.
        batches_per_epoch: number of batches on the process that has the most.
        num_classes: number of classes, needed for mixup and cutmix.
        task: what is trained; None classifies images.

    Attributes:
        model: the module itself, whose weights are saved.
        forward: the callable for the forward pass: the module, compiled and wrapped as the options say.
        averaged: the module with the moving average (EMA) of the weights, or None.
        epoch: number of the current epoch, from 0.
        batch: number of batches of the current epoch that are done.
        updates: number of updates since the beginning of the run.
        rates: learning rates of the updates since the losses were last read.
    """

    def __init__(
        self,
        model: nn.Module,
        options: TrainOptions,
        *,
        ranks: Ranks = Ranks(),  # noqa: B008 - frozen
        batches_per_epoch: int,
        num_classes: int | None = None,
        task: Task | None = None,
    ) -> None:
        self.options, self.ranks, self.device = options, ranks, options.torch_device()
        self.task = task if task is not None else Task()
        self.batches_per_epoch = batches_per_epoch
        self.model = place_model(model, options, ranks, self.device)
        self.averaged = copy.deepcopy(self.model) if options.model_ema is not None else None
        self._connected = connect_model(self.model, options, ranks, self.device)
        compiles = options.compile != "none"
        self.forward = torch.compile(self._connected, mode=options.compile) if compiles else self._connected
        own = self.task.optimizer
        self.optimizer = own(self.model) if own else make_optimizer(self.model, options, world_size=ranks.world_size)
        # Before a schedule changes them.
        self._groups = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        per_epoch = -(-batches_per_epoch // options.accumulate)
        self.scheduler = Schedule(self.optimizer, options, updates_per_epoch=per_epoch, own=self.task.scheduler)
        self.pace = 1.0  # of the schedule: updates of the plan in one that is made
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.amp == "fp16")
        self.criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
        self._mixes = _mixes(options, num_classes, ranks.rank, self.task)
        self.epoch = self.batch = self.updates = 0
        self.rates: list[float] = []
        self.pending = False  # gradients have been summed since the last update
        # Created on the device, and left there: (weight, weighted loss) of the update at hand, updates skipped by fp16.
        # MPS has no float64: sums are rounded there.
        self.sum_dtype = torch.float32 if self.device.type == "mps" else torch.float64
        self._totals = torch.zeros(2, dtype=self.sum_dtype, device=self.device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=self.device)

    # ---- the parts of a step, in the order of loop.py

    def checked(self, batch: Any) -> Any:
        """A batch of the loader; raises TrainError if it should be (images, labels) and is not."""
        return batch if self.task.loss is not None else as_pair(batch)

    def count(self, batch: Any) -> int:
        """Number of samples in a batch."""
        if self.task.count is not None:
            return self.task.count(batch)
        return count_samples(batch) if self.task.loss is not None else len(batch[1])

    def to_device(self, batch: Any) -> Any:
        """Moves a batch to the device in the right memory format; does nothing if it is there already."""
        return moved(batch, self.device, channels_last=self.options.channels_last)

    def mix(self, batch: Any) -> Any:
        """Applies mixup or cutmix, alternating if both are on."""
        if not self._mixes:
            return batch
        step = self.updates * self.options.accumulate + self.batch % self.options.accumulate
        return self._mixes[step % len(self._mixes)](*batch, step=step)

    def autocast(self) -> AbstractContextManager[Any]:
        """The autocast context of the forward pass."""
        return torch.autocast(self.device.type, _AMP_DTYPES[self.options.amp], enabled=self.options.amp != "none")

    def loss(self, batch: Any) -> torch.Tensor:
        """The forward pass and the mean loss over the batch.

        Raises:
            TrainError: the loss is no scalar; or in classifying the model does not return one tensor, or has no output
                for a label (noticed on the CPU; CUDA stops with its own assertion).
        """
        if self.task.loss is None:
            return self._loss_of_classes(*batch)
        loss = self.task.loss(self.forward, batch)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            what = f"a tensor {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else f"a {type(loss).__name__}"
            raise TrainError(f"the task's loss returns {what}; it must return the mean over the batch, a scalar tensor")
        return loss

    def _loss_of_classes(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = self.forward(images)
        if not isinstance(outputs, torch.Tensor):
            raise TrainError(
                f"the model returns a {type(outputs).__name__}, not one tensor (N, classes); wrap it in a module that "
                "returns only that tensor, or pass task=Task(loss=...)"
            )
        try:
            return self.criterion(outputs, labels)  # type: ignore[no-any-return]
        except IndexError as error:
            raise TrainError(
                f"a label is out of range: {error} The model returns {outputs.shape[1]} values per image; it needs one "
                "per class"
            ) from error

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Values of a batch in validation, by name; see `Task.metrics`."""
        if self.task.metrics is not None:
            return self.task.metrics(model, batch)
        return classified(model, batch) if self.task.loss is None else {"loss": self.task.loss(model, batch)}

    @contextmanager
    def without_sync(self, apart: bool) -> Iterator[None]:
        """Keeps gradients in this process if `apart`: more batches will be added to them before the update."""
        if apart and isinstance(self._connected, DistributedDataParallel):
            with self._connected.no_sync():
                yield
        else:
            yield

    def note(self, loss: torch.Tensor, weight: float) -> None:
        """Adds a batch's weight and loss to the totals of the update, on the device."""
        self.pending = True
        self._totals[0] += weight
        self._totals[1] += loss.detach() * weight

    def learn(self, batch: Any) -> torch.Tensor:
        """Makes one update from one batch, for searches; returns its loss, on the device."""
        batch = self.to_device(batch)
        with self.autocast():
            loss = self.loss(batch)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.note(loss, 1.0)
        self.update(exact=True)
        return loss

    def update(self, *, exact: bool) -> torch.Tensor:
        """Makes one update from the gradients summed so far.

        Args:
            exact: the update is one full batch of one process, so the gradients need no division.

        Returns:
            float64 (2,), on the device: the sum of the weights of all batches in the update, over all processes, and
            the sum of their losses times their weights.
        """
        totals, self._totals = self.ranks.sum(self._totals), torch.zeros_like(self._totals)
        self.pending = False
        self.scaler.unscale_(self.optimizer)  # so that clipping sees the true gradients
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not exact:  # DDP has divided by the number of processes
            # An update of damaged images alone has weight 0, and gradients of 0.
            scale = torch.where(totals[0] > 0, self.ranks.world_size / totals[0], 0.0)
            torch._foreach_mul_(gradients, scale.float())
        self._clip(gradients)
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step(self.pace)
        if self.averaged is not None and self.updates % self.options.model_ema_steps == 0:
            _average(self.averaged, self.model, (self.options.model_ema or 0.0) if self.updates else 0.0)
        self.updates += 1
        return totals

    def _clip(self, gradients: list[torch.Tensor]) -> None:
        options = self.options
        if options.clip_grad_norm is not None or self.scaler.is_enabled():
            norm = torch.nn.utils.get_total_norm(gradients)
            self.skipped += ~torch.isfinite(norm)
            if options.clip_grad_norm is not None:
                torch._foreach_mul_(gradients, torch.clamp(options.clip_grad_norm / (norm + 1e-6), max=1.0))  # as torch
        if options.clip_grad_value is not None:
            torch._foreach_clamp_min_(gradients, -options.clip_grad_value)
            torch._foreach_clamp_max_(gradients, options.clip_grad_value)

    def share_buffers(self) -> None:
        """Gives every process the running statistics of rank 0, which are the ones validated and saved."""
        for buffer in self.best_weights.buffers():
            self.ranks.take_over(buffer)

    def set_pace(self, last: int) -> None:
        """Spreads the rest of the epoch in the schedule over the updates that are left in it.

        Args:
            last: the number of the epoch's last batch.  After a resume with another batch size or number of processes
                there may be fewer or more updates left than planned.
        """
        every = self.options.accumulate
        updates = -(-last // every) - self.batch // every
        end = (self.epoch + 1) * self.scheduler.updates_per_epoch
        self.pace = (end - self.scheduler.place) / updates if updates > 0 else 1.0

    def end_epoch(self) -> None:
        """Moves to the beginning of the next epoch, in the schedule as well."""
        self.epoch, self.batch, self.pace = self.epoch + 1, 0, 1.0
        self.scheduler.go_to(self.epoch * self.scheduler.updates_per_epoch)

    # ---- what is kept

    @property
    def best_weights(self) -> nn.Module:
        """The weights to validate: the moving average if there is one."""
        return self.averaged if self.averaged is not None else self.model

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to continue."""
        return {
            "model": self.model.state_dict(),
            "averaged": self.averaged.state_dict() if self.averaged is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "schedule": {"place": self.scheduler.place, "own": self.scheduler.own_state(), **self._plan()},
            "scaler": self.scaler.state_dict(),
            "counts": {"epoch": self.epoch, "batch": self.batch, "updates": self.updates},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues where the state was taken; with another plan of updates, at the same share of the epoch.

        Raises:
            TrainError: the state belongs to another model or optimiser.
        """
        if (state["averaged"] is None) != (self.averaged is None):
            raise TrainError(
                "model_ema is set in the checkpoint or in this run, but not in both; use the same setting as in the "
                "checkpoint"
            )
        self.load_weights(state)
        try:
            _load_optimizer_state(self.optimizer, state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainError(f"the checkpoint was saved with another optimiser: {error}") from error
        if state["scaler"]:  # else the checkpoint is of another precision than fp16, and scaling begins anew
            self.scaler.load_state_dict(state["scaler"])
        for name, count in state["counts"].items():
            setattr(self, name, count)
        # The options are this run's; what else an optimiser keeps there, as timm's Lamb its step, is the checkpoint's.
        # A scheduler of the task may change any of them, so then all are.
        for group, values in zip(self.optimizer.param_groups, self._groups, strict=True):
            group.update(values if self.task.scheduler is None else {})
        place, planned = state["schedule"]["place"], self.scheduler.updates_per_epoch
        if any(state["schedule"][name] != count for name, count in self._plan().items()):
            place = place / state["schedule"]["updates_per_epoch"] * planned
            share = place / planned - self.epoch
            self.batch = max(1, round(share * self.batches_per_epoch)) if self.batch else 0
        self.scheduler.resume(place, state["schedule"].get("own"))

    def _plan(self) -> dict[str, int]:
        """Updates and batches of an epoch, the units in which a place in the run is counted."""
        return {"updates_per_epoch": self.scheduler.updates_per_epoch, "batches_per_epoch": self.batches_per_epoch}

    def load_weights(self, state: dict[str, Any]) -> None:
        """Loads only the weights of a checkpoint: the averaged ones if it has them and this run keeps no average."""
        try:
            self.best_weights.load_state_dict(state["averaged"] or state["model"])
            if self.averaged is not None:
                self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            told = _first_difference(state["model"], self.model.state_dict())
            raise TrainError(
                f"the checkpoint was saved with another model: {told}; use the model and the data that it was trained "
                "with"
            ) from error


@torch.no_grad()
def _average(averaged: nn.Module, model: nn.Module, decay: float) -> None:
    """Moves an average towards a model's weights and buffers; integers, which count, are copied.

    torch's AveragedModel reads a counter from the device in every update, which makes the host wait.
    """
    means, values = ([*each.parameters(), *each.buffers()] for each in (averaged, model))
    floats = [n for n, mean in enumerate(means) if mean.is_floating_point()]
    torch._foreach_lerp_([means[n] for n in floats], [values[n] for n in floats], 1.0 - decay)
    for mean, value in zip(means, values, strict=True):
        if not mean.is_floating_point():
            mean.copy_(value)


def _load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads an optimiser's state, by the number of the parameter, each value laid out as its parameter is.

    Fused optimisers go through the memory of both, and would pair other values.

    Raises:
        Exception: it is another optimiser's, as `load_state_dict` raises it.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def laid_out(number: int, values: dict[str, Any]) -> dict[str, Any]:
        like = parameters[number] if number < len(parameters) else None
        return {
            name: torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)
            if isinstance(value, torch.Tensor)
            and like is not None
            and value.shape == like.shape
            and value.stride() != like.stride()
            else value
            for name, value in values.items()
        }

    by_parameter = {number: laid_out(number, of) for number, of in state["state"].items()}
    optimizer.load_state_dict({**state, "state": by_parameter})


def _first_difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    for name in [*theirs, *ours]:
        there, here = (tuple(weights[name].shape) if name in weights else None for weights in (theirs, ours))
        if there != here:
            return " and ".join(
                f"{who} has {name} {shape}" if shape is not None else f"{who} has no {name}"
                for who, shape in (("the checkpoint", there), ("this model", here))
            )
    return "its values have another type"


def _mixes(options: TrainOptions, num_classes: int | None, rank: int, task: Task) -> list[MixUp | CutMix]:
    wanted = [(kind, alpha) for kind, alpha in ((MixUp, options.mixup_alpha), (CutMix, options.cutmix_alpha)) if alpha]
    if not wanted:
        return []
    if task.loss is not None:
        raise OptionError("mixup and cutmix are for classifying; leave them out where the task has a loss of its own")
    if num_classes is None:
        raise OptionError("mixup and cutmix need the number of classes; pass num_classes to fit")
    seed = options.seed + 1_000_003 * rank
    return [kind(num_classes=num_classes, alpha=alpha, seed=seed) for kind, alpha in wanted]
