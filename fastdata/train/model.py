"""Prepares a model for training as the options say: device, memory format, DDP."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastdata.errors import OptionError
from fastdata.models.recompute import checkpoint_activations, checkpoint_modules
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks

__all__ = ["connect_model", "place_model", "set_switches"]


def place_model(model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device) -> nn.Module:
    """Changes a model as the options say, and moves it to its device.

    Raises:
        OptionError: the model is wrapped in DataParallel.
    """
    if isinstance(model, nn.DataParallel):
        raise OptionError(
            "the model is wrapped in DataParallel, which copies it in every step; pass the plain model and start with "
            "torchrun, which uses DDP"
        )
    if options.checkpoint_every_k:
        checkpoint_activations(model, options.checkpoint_every_k)
    if options.checkpoint_modules is not None:
        checkpoint_modules(model, options.checkpoint_modules.split(","))
    if options.sync_bn and ranks.world_size > 1:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    placed: nn.Module = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    return placed


def connect_model(model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device) -> nn.Module:
    """Connects the processes' copies of a placed model by DDP; returns the callable for the forward pass."""
    if ranks.world_size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused_parameters,
    )


def set_switches(options: TrainOptions) -> None:
    """Sets the global switches of torch that the options name."""
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.autograd.set_detect_anomaly(options.detect_anomaly)
