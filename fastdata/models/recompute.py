"""Activation checkpointing: blocks that recompute their activations in the backward pass instead of storing them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastdata.errors import OptionError, TrainError

__all__ = ["checkpoint_activations", "checkpoint_modules", "repeated_blocks"]


def checkpoint_activations(model: nn.Module, every: int) -> list[str]:
    """Turns on activation checkpointing for every `every`-th block of a model; see `repeated_blocks`.

    BatchNorm still counts each batch only once.

    Returns:
        The names of the blocks changed.

    Raises:
        TrainError: the model has no such blocks.

    Source: Chen et al., "Training deep nets with sublinear memory cost", 2016.
    """
    names = repeated_blocks(model)
    if not names:
        raise TrainError(
            "checkpoint_every_k found no repeated blocks in the model; leave it out, or name modules with "
            "checkpoint_modules"
        )
    for name in names[::every]:
        _recompute(model.get_submodule(name))
    return names[::every]


def repeated_blocks(model: nn.Module) -> list[str]:
    """Names of a model's blocks; [] if it has none.

    Blocks are modules of the same class inside an nn.Sequential or nn.ModuleList (residual blocks, transformer layers);
    of several such classes, the one with the most parameters.
    """
    chains: dict[str, list[str]] = {}
    for parent_name, parent in model.named_modules():
        if isinstance(parent, nn.Sequential | nn.ModuleList):
            for child_name, child in parent.named_children():
                if list(child.children()) and not isinstance(child, nn.Sequential | nn.ModuleList):
                    name = f"{parent_name}.{child_name}" if parent_name else child_name
                    chains.setdefault(type(child).__name__, []).append(name)
    repeated = [names for names in chains.values() if len(names) > 1]
    names = max(repeated, key=lambda some: sum(_size(model.get_submodule(name)) for name in some), default=[])
    return [name for name in names if not any(name.startswith(f"{other}.") for other in names)]


def checkpoint_modules(model: nn.Module, names: Sequence[str]) -> None:
    """Turns on activation checkpointing for the modules with these names.

    Raises:
        OptionError: the model has no module of that name.
    """
    known = [name for name, _ in model.named_modules() if name]
    for name in map(str.strip, names):
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3)) or ", ".join(known[:8]) + ", …"
            raise OptionError(f"checkpoint_modules: the model has no module {name!r}; it has {near}")
        _recompute(model.get_submodule(name))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _recompute(block: nn.Module) -> None:
    """Gives a block a class whose forward is recomputed; a copy of the block has it, too."""
    kind = type(block)

    class Recomputed(kind):  # type: ignore[misc, valid-type]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            forward = super().forward
            if not torch.is_grad_enabled():
                return forward(*args, **kwargs)
            if torch.compiler.is_compiling():  # which traces the statistics once
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)
            contexts = lambda: (nullcontext(), _statistics_off(self))  # noqa: E731
            return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    Recomputed.__name__ = kind.__name__
    block.__class__ = Recomputed


@contextmanager
def _statistics_off(block: nn.Module) -> Iterator[None]:
    """Keeps BatchNorms from counting a batch a second time."""
    norms = [each for each in block.modules() if isinstance(each, nn.modules.batchnorm._BatchNorm)]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, tracked) in zip(norms, before, strict=True):
        norm.momentum, norm.num_batches_tracked = 0.0, None
        if isinstance(norm, nn.SyncBatchNorm) and tracked is not None:  # it insists on a number to count up
            norm.num_batches_tracked = tracked.clone()
    try:
        yield
    finally:
        for norm, (momentum, tracked) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, tracked
