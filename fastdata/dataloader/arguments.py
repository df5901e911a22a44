"""Checks of DataLoader's arguments, and the view of them that routes and explanations read.

What each argument means is in the docstring of `fastdata.DataLoader` (loader.py).
"""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeAlias, cast

import torch

from fastdata.errors import OptionError
from fastdata.loaders import backend_class
from fastdata.loaders.backend import Fidelity
from fastdata.loaders.dali_options import DaliOptions
from fastdata.order.mixture import mixture_of
from fastdata.pipeline.config import OnError
from fastdata.pipeline.record_cache import RecordCache
from fastdata.system import cuda
from fastdata.system.cpus import auto_threads
from fastdata.system.stack_level import users_level
from fastdata.system.switches import leaves_images

__all__ = [
    "OWN_ARGUMENTS",
    "AUGMENT_ON",
    "DRAWS",
    "DECODE_DEVICES",
    "AugmentOn",
    "DecodeDevice",
    "Draws",
    "LoaderArguments",
    "check_choice",
    "check_dali",
    "check_decode_device",
    "check_draws",
    "check_order",
    "check_seed",
    "may_defer",
    "may_pin",
    "thread_count",
]

DecodeDevice: TypeAlias = Literal["auto", "cpu", "mixed", "cuda"]
DECODE_DEVICES: tuple[DecodeDevice, ...] = ("auto", "cpu", "mixed", "cuda")
AugmentOn: TypeAlias = Literal["host", "device"]
AUGMENT_ON: tuple[AugmentOn, ...] = ("host", "device")
Draws: TypeAlias = Literal["sample", "torch"]
DRAWS: tuple[Draws, ...] = ("sample", "torch")

OWN_ARGUMENTS = (  # of fastdata's loader, and not of torch's
    "backend",
    "fidelity",
    "device",
    "seed",
    "on_error",
    "memory_format",
    "augment_on",
    "draws",
    "decode_device",
    "dali",
    "progress",
    "defer",
    "cache",
    "cache_bytes",
)


@dataclass(frozen=True, kw_only=True)
class LoaderArguments:
    """Current arguments of a loader, read from its attributes; see `fastdata.DataLoader`.

    `decode_on` is the device that `check_decode_device` returned for `decode_device`.
    """

    dataset: Any
    batch_size: int | None
    batch_sampler: Any
    num_workers: int
    prefetch_factor: int | None
    collate_fn: Callable[[list[Any]], Any] | None
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: BaseContext | str | None
    in_order: bool
    persistent_workers: bool
    backend: str
    fidelity: Fidelity
    device: str | torch.device | None
    seed: int | None
    on_error: OnError
    memory_format: torch.memory_format
    augment_on: AugmentOn
    draws: Draws
    decode_device: DecodeDevice
    decode_on: str
    dali: DaliOptions
    defer: bool
    cache: str | os.PathLike[str] | None
    cache_bytes: int | None
    record_cache: RecordCache | None


def check_dali(options: object) -> DaliOptions:
    """Raises OptionError unless these are DaliOptions."""
    if not isinstance(options, DaliOptions):
        raise OptionError(f"dali={options!r}; accepted: DaliOptions(threads=..., prefetch=..., hw_decoder_load=...)")
    return options


def check_decode_device(decode_device: str, backend: str, device: torch.device | None, fidelity: str = "exact") -> str:
    """Returns the device that `decode_device` selects: "cpu", "mixed" (DALI decodes on the batches' GPU) or "cuda".

    Raises:
        OptionError: "mixed" without DALI, "cuda" with another backend than the native one or without exact pixels, or
            one of them without a CUDA device.
    """
    check_choice("decode_device", decode_device, DECODE_DEVICES)
    on_gpu = device is not None and device.type == "cuda"
    can_mix = backend != "auto" and "mixed" in backend_class(backend).decode_devices
    if decode_device == "mixed" and not (can_mix and on_gpu):
        raise OptionError(
            f"decode_device='mixed' needs backend='dali' and a CUDA device; got backend={backend!r} and device={device}"
        )
    if decode_device == "mixed" and cuda.is_rocm():
        raise OptionError("decode_device='mixed' needs an NVIDIA GPU, but this torch was built for AMD's; use 'cpu'")
    if decode_device == "cuda" and not (on_gpu and backend in ("auto", "native") and fidelity == "exact"):
        raise OptionError(
            "decode_device='cuda' needs device='cuda', backend='auto' or 'native', and fidelity='exact'; "
            f"got device={device}, backend={backend!r}, fidelity={fidelity!r}"
        )
    if decode_device == "auto":
        return "mixed" if on_gpu and not cuda.is_rocm() else "cpu"
    return decode_device


def check_choice(name: str, value: object, accepted: tuple[Any, ...]) -> None:
    """Raises OptionError unless a value is one of those accepted."""
    if value not in accepted:
        raise OptionError(f"{name}={value!r} is not accepted; use one of {', '.join(map(repr, accepted))}")


def check_draws(draws: object, *, augment_on: AugmentOn) -> Draws:
    """Returns who draws for random transforms; None is FASTDATA_DRAWS of the environment, or "sample".

    Raises:
        OptionError: draws cannot be torch's where they are to be made, or the value is not known.
    """
    name, asked = "draws", draws
    if draws is None:
        name, asked = "FASTDATA_DRAWS", os.environ.get("FASTDATA_DRAWS") or "sample"
    check_choice(name, asked, DRAWS)
    if draws is None and asked == "torch" and augment_on == "device":
        told = f"FASTDATA_DRAWS=torch has no effect on a loader with augment_on={augment_on!r}"
        warnings.warn(told, stacklevel=users_level())
        return "sample"
    if asked == "torch" and augment_on == "device":
        raise OptionError(
            "augment_on='device' draws for whole batches, draws='torch' for samples; leave one of them out"
        )
    return cast(Draws, asked)


def check_order(dataset: Any, sampler: object, batch_sampler: object) -> None:
    """Raises OptionError for a mixture without a sampler, whose weights would not be heeded."""
    if mixture_of(dataset) is not None and sampler is None and batch_sampler is None:
        raise OptionError(
            "a MixedDataset has its order from an EpochSampler, which replaces shuffle: pass "
            "sampler=EpochSampler(dataset); for every sample once take ConcatDataset(dataset.datasets)"
        )


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
    """Number of threads that `num_workers` selects."""
    if num_workers == "auto":
        return auto_threads()
    if isinstance(num_workers, bool) or not hasattr(num_workers, "__index__"):
        hint = f"; write {num_workers} without quotes" if isinstance(num_workers, str) and num_workers.isdigit() else ""
        raise OptionError(f"num_workers={num_workers!r}; accepted: an integer or 'auto'{hint}")
    return operator.index(num_workers)


def may_defer(loader: LoaderArguments) -> bool:
    """True unless torch and Pillow make the samples, since `defer`, FASTDATA_DEFER or FASTDATA is off."""
    return loader.defer and not leaves_images()


def may_pin(wanted: bool) -> bool:
    """True when batches are to be pinned and can be; warns, in torch's words, when they cannot."""
    if not wanted:
        return False
    if torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda":  # type: ignore[union-attr]
        return True
    warnings.warn(
        "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
        stacklevel=users_level(),
    )
    return False
