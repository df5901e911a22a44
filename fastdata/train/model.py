"""Prepares a model for training as the options say: device, memory format, DDP or FSDP2."""

from __future__ import annotations

import warnings

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastdata.errors import OptionError
from fastdata.models.recompute import checkpoint_activations, checkpoint_modules
from fastdata.system.optional import need
from fastdata.system.stack_level import users_level
from fastdata.train.options import CommHook, TrainOptions
from fastdata.train.ranks import Ranks
from fastdata.train.sharding import shard

__all__ = ["connect_model", "place_model", "set_switches"]

POWERSGD_AFTER = 1000  # updates with whole gradients, in which weights move most; torch's own number


def place_model(model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device) -> nn.Module:
    """Changes a model as the options say, and moves it to its device.

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
        model = _in_float8(model)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    placed: nn.Module = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    return placed


def connect_model(model: nn.Module, options: TrainOptions, ranks: Ranks, device: torch.device) -> nn.Module:
    """Connects the processes' copies of a placed model; returns the callable for the forward pass.

    That is the model in DDP; with the option `fsdp` the model itself, now sharded; and the model of a process alone.
    """
    if ranks.world_size == 1:
        if options.fsdp:
            warnings.warn(
                "fsdp=True shards nothing in one process: start one for each GPU with torchrun --nproc-per-node",
                stacklevel=users_level(),
            )
        return model
    if options.fsdp:
        shard(model, ranks, device)
        return model
    ddp = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=options.static_graph,
        find_unused_parameters=options.find_unused_parameters,
    )
    _compress_gradients(ddp, options.comm_hook)
    return ddp


def _compress_gradients(ddp: DistributedDataParallel, how: CommHook) -> None:
    """Lets DDP send fewer bytes: halved gradients, or PowerSGD's matrices of rank 1 after the first updates.

    Source: Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization", NeurIPS
    2019, by torch.  Its memory of what was left out is not in checkpoints: a resumed run begins it anew.
    """
    if how == "none":
        return
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if how == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif how == "bf16":
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif how == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=POWERSGD_AFTER)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _in_float8(model: nn.Module) -> nn.Module:
    """Lets linear layers multiply in float8, where their sizes are multiples of 16, as the GPU's instructions need.

    A batch of another size, as the last one may be, is padded by torchao.

    Raises:
        OptionError: torchao is not installed, or no layer has such sizes.
    """
    float8 = need("torchao.float8", "amp='fp8'")

    def fits(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not (module.in_features % 16 or module.out_features % 16)

    if not any(fits(module, name) for name, module in model.named_modules()):
        raise OptionError(
            "amp='fp8' finds no linear layer whose sizes are multiples of 16, and nothing else is computed in float8; "
            "use amp='bf16'"
        )
    config = float8.Float8LinearConfig(pad_inner_dim=True)
    converted: nn.Module = float8.convert_to_float8_training(model, module_filter_fn=fits, config=config)
    return converted


def set_switches(options: TrainOptions) -> None:
    """Sets the global switches of torch that the options name."""
    torch.backends.cudnn.benchmark = options.cudnn_benchmark
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    torch.autograd.set_detect_anomaly(options.detect_anomaly)
