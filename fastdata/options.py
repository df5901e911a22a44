"""Checks of the arguments of DataLoader that are fastdata's own, and what some of them stand for."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from fastdata.cpus import auto_threads
from fastdata.errors import OptionError

__all__ = ["check_choice", "check_seed", "may_pin", "thread_count"]


def check_choice(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Raises OptionError unless a value is one of those accepted."""
    if value not in accepted:
        raise OptionError(f"{name}={value!r} is not accepted; use one of {', '.join(map(repr, accepted))}")


def check_seed(seed: Any) -> None:
    """Raises OptionError unless a seed is a whole number or None."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise OptionError(f"seed={seed!r} is not an integer")


def thread_count(num_workers: int | str) -> int:
    """The number that `num_workers` stands for."""
    if num_workers == "auto":
        return auto_threads()
    if not isinstance(num_workers, int) or isinstance(num_workers, bool):
        hint = f"; write {num_workers} without quotes" if isinstance(num_workers, str) and num_workers.isdigit() else ""
        raise OptionError(f"num_workers={num_workers!r}; accepted: a whole number or 'auto'{hint}")
    return num_workers


def may_pin(wanted: bool) -> bool:
    """True when batches are to be pinned and can be; warns, in torch's words, when they cannot."""
    if not wanted:
        return False
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda":  # type: ignore[union-attr]
        return True
    warnings.warn(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        stacklevel=4,
    )
    return False
