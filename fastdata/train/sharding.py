"""FSDP2: each process holds a share of every weight, gradient and optimiser state, and gathers a block to compute it.

Checkpoints know nothing of it: they hold whole tensors, so a run goes on with any number of processes, sharded or not.
What communicates must be called by all processes, in the same order.

Source: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, by torch's
fully_shard.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from fastdata.errors import OptionError
from fastdata.models.recompute import repeated_blocks
from fastdata.patches.device_mesh import release_groups
from fastdata.train.ranks import SHARE_GPU, Ranks, when_left

__all__ = ["gathered", "gathered_weights", "load_optimizer_state", "load_weights", "local_parts", "shard"]


def shard(model: nn.Module, ranks: Ranks, device: torch.device) -> None:
    """Shards a model in place, with the weights of rank 0: each of its repeated blocks, and the rest together.

    Raises:
        OptionError: a parameter has no dimensions, which cannot be sharded; or the processes share a GPU.
    """
    if device.type == "cuda" and "nccl" not in str(dist.get_backend_config()):
        raise OptionError(  # gloo would read the device's memory as the host's, which kills the process
            f"fsdp=True needs a GPU for each process: those that share one ({SHARE_GPU}=1) communicate by gloo, which "
            "gathers nothing on a GPU"
        )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise OptionError(f"fsdp=True cannot shard {name}, a number; make it a parameter of the shape (1,)")
        parameter.data = parameter.data.contiguous()  # other layouts are not supported
    for buffer in model.buffers():
        buffer.data = buffer.data.contiguous()  # several elements of an expanded one are one number in memory
    for tensor in (*model.parameters(), *model.buffers()):
        ranks.take_over(tensor.data)
    mesh = init_device_mesh(device.type, (ranks.world_size,))
    when_left(partial(release_groups, mesh))
    for name in _blocks_apart(model):
        fully_shard(model.get_submodule(name), mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def _blocks_apart(model: nn.Module) -> list[str]:
    """Names of a model's blocks; [] if any of them has a weight in common with another one, or with the rest."""
    names = repeated_blocks(model)
    owners = Counter[int]()
    inside = {id(module) for name in names for module in model.get_submodule(name).modules()}
    for name in names:
        owners.update({id(parameter) for parameter in model.get_submodule(name).parameters()})
    rest = (module for module in model.modules() if id(module) not in inside)
    owners.update({id(parameter) for module in rest for parameter in module.parameters(recurse=False)})
    return [] if any(count > 1 for count in owners.values()) else names


def local_parts(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The memory of this process: the shards of sharded tensors, and other tensors as they are."""
    with torch.no_grad():
        return [each.to_local() if isinstance(each, DTensor) else each for each in tensors]


@contextmanager
def gathered_weights(model: nn.Module) -> Iterator[None]:
    """Whole weights in every process, so that it may call the model as often as it likes, without the others."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not model, recurse=False)


def gathered(state: Mapping[str, Any], *, keeps: bool) -> dict[str, Any]:
    """States with whole tensors, on the host, in the place of sharded ones; None there unless this process `keeps`."""

    def whole(tensor: DTensor) -> torch.Tensor | None:
        found = tensor.full_tensor()
        return found.cpu() if keeps else None

    made: dict[str, Any] = tree_map_only(DTensor, whole, dict(state))
    for name, part in state.items():
        _keep_versions(part, made[name])
    return made


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Loads whole weights into a model that may be sharded.

    Raises:
        RuntimeError: they are another model's.
    """
    now = model.state_dict()
    shares = OrderedDict((name, _share_of(value, now.get(name))) for name, value in state.items())
    _keep_versions(state, shares)
    model.load_state_dict(shares)


def _keep_versions(state: Any, copied: Any) -> None:
    """Keeps the versions of a state's modules, which torch has in an attribute of it: some refuse states without."""
    if (versions := getattr(state, "_metadata", None)) is not None:
        copied._metadata = versions


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads an optimiser's state of whole tensors, by the number of the parameter, each laid out as its parameter is.

    Fused optimisers go through the memory of both, and would pair other values.

    Raises:
        Exception: it is another optimiser's, as `load_state_dict` raises it.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]

    def shares(number: int, values: dict[str, Any]) -> dict[str, Any]:
        parameter = parameters[number] if number < len(parameters) else None
        return {
            name: _laid_out(_share_of(value, parameter), parameter)
            if isinstance(value, torch.Tensor) and parameter is not None and value.shape == parameter.shape
            else value
            for name, value in values.items()
        }

    optimizer.load_state_dict({**state, "state": {number: shares(number, of) for number, of in state["state"].items()}})


def _laid_out(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if isinstance(value, DTensor) or value.stride() == like.stride():
        return value
    return torch.empty_like(like, dtype=value.dtype, device=value.device).copy_(value)


def _share_of(value: Any, like: Any) -> Any:
    """A tensor, sharded as another one is, by rank 0."""
    if not isinstance(like, DTensor) or not isinstance(value, torch.Tensor):
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
