"""The random numbers of a run: whose generators there are, and their states."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from fastdata.order import generator_of, samplers_in

__all__ = ["random_state", "seed_anew", "set_generators", "set_random_state"]


def random_state(loader: Any, device: torch.device) -> dict[str, Any]:
    """The state of every generator that this process draws from: torch's, Python's, NumPy's, and the loader's own."""
    name, keys, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "loader": [generator.get_state() for generator in _generators(loader)],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Puts back what `random_state` gave, but for the loader's own generators."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def set_generators(state: dict[str, Any], loader: Any) -> None:
    """Puts back the loader's own generators, before its iterator is made."""
    for generator, own in zip(_generators(loader), state["loader"], strict=False):
        generator.set_state(own)


def seed_anew(seed: int) -> None:
    """Seeds all that `set_random_state` would have set."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _generators(loader: Any) -> list[torch.Generator]:
    """The loader's and its samplers', from the outside in; each once."""
    found = filter(None, map(generator_of, samplers_in(loader)))
    return list({id(generator): generator for generator in found}.values())
