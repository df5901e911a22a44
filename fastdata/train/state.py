"""What a run changes: weights, optimiser, schedule, averages, counts; and how one update is made."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from fastdata.errors import OptionError, TrainError
from fastdata.mix import CutMix, MixUp
from fastdata.train.model import prepare_model
from fastdata.train.optim import make_optimizer, make_scheduler
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks

__all__ = ["Training"]

_AMP_DTYPES = {"none": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class Training:
    """A model with all that trains it.

    Args:
        model: its last layer gives one value per class.
        options: checked already.
        ranks: the processes that train together.
        batches_per_epoch: of the process that has most.
        num_classes: for mixup and cutmix.

    Attributes:
        model: the module itself, whose weights are saved.
        forward: what is called: the module compiled and wrapped as asked for.
        averaged: the moving average of the weights, or None.
        epoch: number of the epoch at hand, from 0.
        batch: batches of it that are done.
        updates: updates made since the beginning.
    """

    def __init__(
        self,
        model: nn.Module,
        options: TrainOptions,
        *,
        ranks: Ranks = Ranks(),  # noqa: B008 - frozen
        batches_per_epoch: int,
        num_classes: int | None = None,
    ) -> None:
        self.options, self.ranks, self.device = options, ranks, options.torch_device()
        self.batches_per_epoch = batches_per_epoch
        self.model, self.forward = prepare_model(model, options, ranks, self.device)
        self.optimizer = make_optimizer(self.model, options, world_size=ranks.world_size)
        updates_per_epoch = -(-batches_per_epoch // options.accumulate)
        self.scheduler = make_scheduler(self.optimizer, options, updates_per_epoch=updates_per_epoch)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.amp == "fp16")
        self.averaged: AveragedModel | None = None
        if options.model_ema is not None:
            average = get_ema_multi_avg_fn(options.model_ema)  # type: ignore[no-untyped-call]
            self.averaged = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=options.label_smoothing)
        self._mixes = _mixes(options, num_classes)
        self.epoch = self.batch = self.updates = 0
        # Created on the device, and left there: (weight, weighted loss) of the update at hand, updates skipped by fp16.
        self._totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=self.device)

    # ---- the parts of a step, in the order of loop.py

    def to_device(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """On the device in the right layout; costs nothing when the loader did it."""
        layout = torch.channels_last if self.options.channels_last else torch.preserve_format
        images = images.to(self.device, non_blocking=True, memory_format=layout)
        return images, labels.to(self.device, non_blocking=True)

    def mix(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mixup or cutmix, in turns if both are wanted."""
        if not self._mixes:
            return images, labels
        step = self.epoch * self.batches_per_epoch + self.batch
        return self._mixes[step % len(self._mixes)](images, labels, step=step)

    def autocast(self) -> AbstractContextManager[Any]:
        """The precision of the forward pass."""
        return torch.autocast(self.device.type, _AMP_DTYPES[self.options.amp], enabled=self.options.amp != "none")

    def without_sync(self, apart: bool) -> AbstractContextManager[Any]:
        """Keeps DDP from summing gradients that will be added to."""
        if apart and isinstance(self.forward, DistributedDataParallel):
            return self.forward.no_sync()
        return nullcontext()

    def note(self, loss: torch.Tensor, weight: float) -> None:
        """Adds a batch to the totals of the update, on the device."""
        self._totals[0] += weight
        self._totals[1] += loss.detach() * weight

    def update(self, *, exact: bool) -> torch.Tensor:
        """Makes one update from the gradients summed so far.

        Args:
            exact: the update is one full batch of one process, so that nothing has to be divided.

        Returns:
            float64 (2,), on the device: the weight of all batches in the update, on all processes, and their loss times
            their weight.
        """
        totals, self._totals = self.ranks.sum(self._totals), torch.zeros_like(self._totals)
        self.scaler.unscale_(self.optimizer)  # so that clipping sees the true gradients
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not exact:  # DDP has divided by the number of processes
            torch._foreach_mul_(gradients, (self.ranks.world_size / totals[0]).float())
        self._clip(gradients)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.scheduler.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
        self.updates += 1
        return totals

    def _clip(self, gradients: list[torch.Tensor]) -> None:
        options = self.options
        if options.clip_grad_norm is not None or self.scaler.is_enabled():
            norm = torch.nn.utils.get_total_norm(gradients)
            self.skipped += ~torch.isfinite(norm)
            if options.clip_grad_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), options.clip_grad_norm, norm)
        if options.clip_grad_value is not None:
            torch.nn.utils.clip_grad_value_(self.model.parameters(), options.clip_grad_value)

    # ---- what is kept

    @property
    def best_weights(self) -> nn.Module:
        """What to validate: the average if there is one."""
        return self.averaged.module if self.averaged is not None else self.model

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on."""
        return {
            "model": self.model.state_dict(),
            "averaged": self.averaged.state_dict() if self.averaged is not None else None,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "counts": {"epoch": self.epoch, "batch": self.batch, "updates": self.updates},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where a state was taken.

        Raises:
            TrainError: it belongs to another model or optimiser.
        """
        if (state["averaged"] is None) != (self.averaged is None):
            raise TrainError("model_ema is set in only one of the checkpoint and this run; set it as it was")
        try:
            self.model.load_state_dict(state["model"])
            if self.averaged is not None:
                self.averaged.load_state_dict(state["averaged"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise TrainError(f"the checkpoint is of another model or optimiser: {error}") from error
        self.scheduler.load_state_dict(state["scheduler"])
        self.scaler.load_state_dict(state["scaler"])
        for name, count in state["counts"].items():
            setattr(self, name, count)


def _mixes(options: TrainOptions, num_classes: int | None) -> list[MixUp | CutMix]:
    wanted = [(kind, alpha) for kind, alpha in ((MixUp, options.mixup_alpha), (CutMix, options.cutmix_alpha)) if alpha]
    if not wanted:
        return []
    if num_classes is None:
        raise OptionError("mixup and cutmix make soft labels, for which fit needs num_classes")
    return [kind(num_classes=num_classes, alpha=alpha, seed=options.seed) for kind, alpha in wanted]
