"""Checks of the arguments of DataLoader that are fastdata's own, and what some of them stand for."""

from __future__ import annotations

import operator
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from fastdata.cpus import auto_threads
from fastdata.errors import OptionError

__all__ = [
    "AUGMENT_ON",
    "DECODE_DEVICES",
    "DaliOptions",
    "check_choice",
    "check_dali",
    "check_decode_device",
    "check_seed",
    "may_pin",
    "thread_count",
]

DECODE_DEVICES = ("auto", "cpu", "mixed")
AUGMENT_ON = ("host", "device")


@dataclass(frozen=True, kw_only=True)
class DaliOptions:
    """Choices for the DALI backend.

    Attributes:
        threads: DALI's own threads; None takes `num_workers`, at least one.
        prefetch: batches on their way inside DALI, at least one.
        hw_decoder_load: share of a batch, 0 to 1, for the hardware JPEG decoder of GPUs that have one.
    """

    threads: int | None = None
    prefetch: int = 2
    hw_decoder_load: float = 0.65

    def __post_init__(self) -> None:
        if self.threads is not None and self.threads < 1:
            raise OptionError(f"threads={self.threads}; DALI needs at least one, or None for num_workers")
        if self.prefetch < 1:
            raise OptionError(f"prefetch={self.prefetch}; at least one batch must be on its way")
        if not 0 <= self.hw_decoder_load <= 1:
            raise OptionError(f"hw_decoder_load={self.hw_decoder_load} is not a share between 0 and 1")


def check_dali(options: Any) -> DaliOptions:
    """Raises OptionError unless these are DaliOptions."""
    if not isinstance(options, DaliOptions):
        raise OptionError(f"dali={options!r}; accepted: DaliOptions(threads=..., prefetch=..., hw_decoder_load=...)")
    return options


def check_decode_device(decode_device: str, backend: str, device: torch.device | None) -> str:
    """What `decode_device` stands for: "cpu", or "mixed" (DALI decodes on the GPU where the batches go).

    Raises:
        OptionError: "mixed" without DALI or without a CUDA device.
    """
    check_choice("decode_device", decode_device, DECODE_DEVICES)
    on_gpu = device is not None and device.type == "cuda"
    if decode_device == "mixed" and (backend not in ("dali", "auto") or not on_gpu):
        raise OptionError(
            f"decode_device='mixed' decodes on a GPU, for which backend={backend!r} and device={device} do not do; "
            "use backend='dali', device='cuda'"
        )
    if decode_device == "auto":
        return "mixed" if on_gpu else "cpu"
    return decode_device


def check_choice(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    """Raises OptionError unless a value is one of those accepted."""
    if value not in accepted:
        raise OptionError(f"{name}={value!r} is not accepted; use one of {', '.join(map(repr, accepted))}")


def check_seed(seed: Any) -> int | None:
    """A seed as Python's integer, if it is a whole number of any kind or None.

    Raises:
        OptionError: it is neither.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise OptionError(f"seed={seed!r} is not an integer")
    return operator.index(seed)


def thread_count(num_workers: Any) -> int:
    """The number that `num_workers` stands for."""
    if num_workers == "auto":
        return auto_threads()
    if isinstance(num_workers, bool) or not hasattr(num_workers, "__index__"):
        hint = f"; write {num_workers} without quotes" if isinstance(num_workers, str) and num_workers.isdigit() else ""
        raise OptionError(f"num_workers={num_workers!r}; accepted: a whole number or 'auto'{hint}")
    return operator.index(num_workers)


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
