"""Samplers and those they wrap: what they are, who knows epochs, which generators they draw from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from fastdata.order.aspect_buckets import BucketBatchSampler
from fastdata.order.epoch_sampler import EpochSampler

__all__ = [
    "describe_sampler",
    "epoch_sampler",
    "generator_of",
    "keeps_to_loader",
    "own_generators",
    "samplers_in",
    "visits_each_sample_once",
]


def samplers_in(sampler: object) -> list[Any]:
    """A sampler and those it wraps, from the outside in."""
    chain: list[Any] = []
    while sampler is not None and all(sampler is not outer for outer in chain):
        chain.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = inner if inner is not None else getattr(sampler, "sampler", None)
    return chain


def epoch_sampler(sampler: object) -> Any:
    """The outermost of `samplers_in` that knows epochs, or None."""
    return next((each for each in samplers_in(sampler) if hasattr(each, "set_epoch")), None)


def keeps_to_loader(sampler: object) -> bool:
    """True for samplers whose epoch the loader sets, which is that of its own state."""
    return isinstance(sampler, EpochSampler | BucketBatchSampler)


def generator_of(sampler: object) -> torch.Generator | None:
    """The torch.Generator that a sampler or loader draws from, if it has one of its own."""
    generator = getattr(sampler, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None


def own_generators(sampler: object) -> list[Any]:
    """Generators of torch, Python and NumPy that a sampler, or one it wraps, has as attributes; each once, in order."""
    kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
    found: dict[int, Any] = {}
    for each in samplers_in(sampler):
        attributes = getattr(each, "__dict__", {})
        for _, value in sorted(attributes.items(), key=lambda item: item[0]):
            if isinstance(value, kinds):
                found.setdefault(id(value), value)
    return list(found.values())


def describe_sampler(sampler: object) -> str:
    """Class names from the outside in, with what decides the order of those known here."""
    names = [_describe_one(each) for each in samplers_in(sampler) if type(each) is not BatchSampler]
    return " of ".join(names) or type(sampler).__name__


def _describe_one(sampler: Any) -> str:
    name = type(sampler).__name__
    if isinstance(sampler, DistributedSampler):
        return f"{name}(num_replicas={sampler.num_replicas}, shuffle={sampler.shuffle}, seed={sampler.seed})"
    if isinstance(sampler, EpochSampler | BucketBatchSampler):
        return repr(sampler)
    if isinstance(sampler, RandomSampler):
        drawn = f", {sampler.num_samples} with replacement" if sampler.replacement else f", {sampler.num_samples}"
        return f"{name}({'with a' if sampler.generator is not None else 'without'} generator{drawn})"
    if type(sampler).__module__.startswith("torch."):
        return f"{name}({len(sampler)})"
    return name  # its length may be another one in every epoch


def visits_each_sample_once(sampler: object) -> bool:
    """True for samplers known to draw no sample twice in an epoch, across all ranks."""
    return (
        type(sampler) is SequentialSampler
        or type(sampler) is DistributedSampler
        or (type(sampler) is EpochSampler and not sampler.repeats)
        or (type(sampler) is RandomSampler and _is_plain_permutation(sampler))
    )


def _is_plain_permutation(sampler: RandomSampler) -> bool:
    return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
