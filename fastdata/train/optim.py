"""Optimisers, their parameter groups, and the peak learning rate."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import nn

from fastdata.errors import OptionError
from fastdata.system.optional import need
from fastdata.train.options import TrainOptions

__all__ = ["make_optimizer", "parameter_groups", "scaled_lr"]

_EMBEDDINGS = ("class_token", "cls_token", "position_embedding", "pos_embed", "relative_position_bias_table")


def parameter_groups(model: nn.Module, options: TrainOptions) -> list[dict[str, Any]]:
    """Parameter groups by weight decay: weights; norms, biases and what the model exempts; and those with options.

    Source of the names of embeddings: torchvision's references/classification/train.py.
    """
    weights: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    biases: list[nn.Parameter] = []
    embeddings: list[nn.Parameter] = []
    named = _named_not_to_decay(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        last = name.rpartition(".")[2]
        if options.transformer_embedding_decay is not None and last in _EMBEDDINGS:
            embeddings.append(parameter)
        elif options.bias_weight_decay is not None and last == "bias":
            biases.append(parameter)
        else:
            (weights if parameter.ndim > 1 and name not in named else others).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": options.norm_weight_decay},
        {"params": biases, "weight_decay": options.bias_weight_decay},
        {"params": embeddings, "weight_decay": options.transformer_embedding_decay},
    ]
    return [group for group in groups if group["params"]]


def _named_not_to_decay(model: nn.Module) -> set[str]:
    """Parameters that timm's models, wherever they are inside, name by their method no_weight_decay."""
    named: set[str] = set()
    for prefix, module in model.named_modules():
        if callable(names := getattr(module, "no_weight_decay", None)):
            named |= {f"{prefix}.{name}" if prefix else name for name in names()}
    return named


def scaled_lr(options: TrainOptions, world_size: int) -> float:
    """The peak learning rate for the total batch size over all processes and accumulated batches.

    Source: Goyal et al., "Accurate, large minibatch SGD", 2017 (linear); Krizhevsky, "One weird trick", 2014 (root).
    """
    times = options.batch_size * options.accumulate * world_size / options.base_batch
    return options.lr * {"none": 1.0, "linear": times, "sqrt": math.sqrt(times)}[options.lr_scaling]


def make_optimizer(model: nn.Module, options: TrainOptions, *, world_size: int = 1) -> torch.optim.Optimizer:
    """Creates the optimiser that the options name; torch's own are fused where they can be.

    Raises:
        OptionError: no parameter requires a gradient, or timm is not installed for lars or lamb.
    """
    groups, lr = parameter_groups(model, options), scaled_lr(options, world_size)
    if not groups:
        raise OptionError("no parameter of the model requires a gradient; set requires_grad=True for those to train")
    if options.opt == "sgd":
        nesterov = options.momentum > 0
        optimizer = torch.optim.SGD(groups, lr, momentum=options.momentum, nesterov=nesterov, fused=True)
        if options.amp == "fp16" and options.momentum:  # an overflow in the first update would leave them unwritten
            for parameter in (each for group in groups for each in group["params"]):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer
    if options.opt == "adamw":
        return torch.optim.AdamW(groups, lr, betas=options.betas or (0.9, 0.999), fused=True)
    timm = need("timm.optim", f"opt={options.opt!r}")
    if options.opt == "lars":
        return cast(
            torch.optim.Optimizer, timm.Lars(groups, lr, momentum=options.momentum, nesterov=options.momentum > 0)
        )
    return cast(torch.optim.Optimizer, timm.Lamb(groups, lr, betas=options.betas or (0.9, 0.999)))
