"""The functions of torch.cuda that the package calls, in one place, so that tests can stand in for a device."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.cuda import (
    Event,
    OutOfMemoryError,
    current_device,
    current_stream,
    default_stream,
    device,
    device_count,
    empty_cache,
    get_device_capability,
    get_device_name,
    get_rng_state,
    get_rng_state_all,
    is_available,
    is_bf16_supported,
    is_initialized,
    max_memory_allocated,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    set_device,
    set_rng_state,
    set_rng_state_all,
    stream,
    synchronize,
    utilization,
)

if TYPE_CHECKING:
    from torch.cuda import Stream

__all__ = [
    "Event",
    "OutOfMemoryError",
    "copied",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_rng_state",
    "get_rng_state_all",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_rocm",
    "keep_for",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "new_stream",
    "peak_memory",
    "pinned",
    "recorded_event",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
    "utilization",
]


def is_rocm() -> bool:
    """True if this torch was built for AMD's GPUs, which it calls "cuda", too."""
    return torch.version.hip is not None


def new_stream(device: torch.device) -> Stream:
    """Creates a stream on a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def peak_memory(device: torch.device) -> int:
    """The most bytes of a device that tensors had at once, with those freed ones that another stream still reads.

    `max_memory_allocated` leaves the latter out, which are what piles up if the host runs ahead of copies.
    """
    return int(torch.cuda.memory_stats(device)["active_bytes.all.peak"])


def recorded_event(on: Stream, *, timed: bool = False, blocking: bool = False) -> Event:
    """Returns an event that is reached when all work given to a stream so far is done.

    Args:
        on: the stream.
        timed: the time between two such events can be asked for.
        blocking: a host that waits for it sleeps, where others keep a core busy, which decode threads want.
    """
    event = Event(enable_timing=timed, blocking=blocking)  # type: ignore[no-untyped-call]
    event.record(on)
    return event


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a host tensor in pinned memory; the tensor itself if it is pinned."""
    return tensor if tensor.is_pinned() else tensor.pin_memory()


def copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Begins a copy to a device, on the current stream; only from pinned memory the host does not wait for it."""
    return tensor.to(device, non_blocking=True)


def keep_for(tensor: torch.Tensor, user: Stream) -> None:
    """Keeps a tensor's memory from being given out again before a stream has done the work that it has been given."""
    tensor.record_stream(user)


def set_sync_debug_mode(mode: Literal["default", "warn", "error"]) -> Any:
    """Sets what happens when the host waits for the device.

    torch warns that this is a prototype, which would be an error where warnings are errors, with the mode already set.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*prototype", category=UserWarning)
        torch.cuda.set_sync_debug_mode(mode)
