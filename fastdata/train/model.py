"""Prepares a model for training as the options say: device, memory format, DDP, torch.compile."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastdata.errors import OptionError
from fastdata.models.recompute import checkpoint_activations, checkpoint_modules
from fastdata.system.optional import need
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import Ranks

__all__ = ["prepare_model"]


def prepare_model(
    model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device
) -> tuple[nn.Module, DistributedDataParallel | None, nn.Module]:
    """Moves a model to its device and wraps it as the options say.

    Returns:
        The module itself, its DDP wrapper or None, and the callable for the forward pass.

    Raises:
        OptionError: the model is wrapped in DataParallel, or a package that an option needs is not installed.
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
    if options.amp == "fp8":
        model = need("torchao.float8", "amp='fp8'").convert_to_float8_training(model)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    ddp = None
    if ranks.world_size > 1:
        ddp = DistributedDataParallel(
            model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            static_graph=options.static_graph,
            find_unused_parameters=options.find_unused_parameters,
        )
        if options.bf16_gradients:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            ddp.register_comm_hook(None, bf16_compress_hook)
    called = ddp if ddp is not None else model
    if options.compile != "none":
        called = torch.compile(called, mode=options.compile)  # type: ignore[assignment]
    return model, ddp, called
