"""Stands in for a CUDA device: the functions of fastdata.system.cuda that loading needs, which note who called them."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from typing import Any

import pytest
import torch

from fastdata.device import prefetch
from fastdata.system import cuda


class Stream:
    def __init__(self, calls: list[str], name: str) -> None:
        self._calls, self.name = calls, name

    def wait_event(self, event: Event) -> None:
        self._calls.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, other: Stream) -> None:
        self._calls.append(f"{self.name} waits for {other.name}")


class Event:
    """An event that is reached at a time of its own, in ms."""

    def __init__(self, calls: list[str], name: str, at_ms: float = 0.0) -> None:
        self._calls, self.name, self.at_ms = calls, name, at_ms

    def synchronize(self) -> None:
        self._calls.append(f"host waits for {self.name}")

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


class FakeCuda:
    """One device, whose tensors stay where they are.

    Attributes:
        calls: what was asked of it, in order.
        current: number of the current device.
        streams: how many were made.
        chosen: devices that threads have chosen.
        devices, copies: where copies went, and these.
        now_ms: the device's clock, which events note.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.now_ms = 0.0
        self._consumer, self._default = Stream(self.calls, "consumer"), Stream(self.calls, "default")
        self._events = itertools.count()
        self.current, self.streams = 0, 0
        self.chosen: list[int] = []
        self.devices, self.copies = set[torch.device](), list[weakref.ref[torch.Tensor]]()
        self._batches = itertools.count()
        for name in (
            "copied",
            "current_device",
            "current_stream",
            "default_stream",
            "device",
            "device_count",
            "keep_for",
            "new_stream",
            "pinned",
            "recorded_event",
            "set_device",
            "stream",
        ):
            monkeypatch.setattr(cuda, name, getattr(self, name))
        monkeypatch.setattr(prefetch, "_copy_streams", {})

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return self.current

    def set_device(self, index: int) -> None:
        self.chosen.append(index)

    def device(self, index: int) -> Any:
        self.chosen.append(index)
        return contextlib.nullcontext()

    def new_stream(self, device: torch.device) -> Stream:
        self.streams += 1
        return Stream(self.calls, "copies")

    def default_stream(self, device: Any = None) -> Stream:
        return self._default

    def current_stream(self, device: Any = None) -> Stream:
        return self._consumer

    def stream(self, stream: Stream) -> Any:
        return contextlib.nullcontext()

    def recorded_event(self, on: Stream, *, timed: bool = False, blocking: bool = False) -> Event:
        event = Event(self.calls, f"event {next(self._events)}", self.now_ms)
        self.calls.append(f"{on.name} records {event.name}")
        return event

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append("pin")
        return tensor

    def copied(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        self.calls.append("copy")
        self.devices.add(device)
        copy = tensor.clone()
        self.copies.append(weakref.ref(copy))
        return copy

    def keep_for(self, tensor: torch.Tensor, user: Stream) -> None:
        self.calls.append(f"keep for {user.name}")
