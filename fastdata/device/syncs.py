"""Finding the lines that make the host wait for the device."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastdata.system import cuda

__all__ = ["SyncFinder"]


class SyncFinder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each line outside of torch that waits for the device: `.item()`, `.tolist()`, `.cpu()`, `nonzero`, ….

    Works by looking at the operations as they are dispatched, so it finds them on a CPU, too, where they cost nothing;
    there it cannot tell them from numbers that are kept on the host on purpose, as timm's Lamb keeps its step.
    What happens below that (indexing by a mask, copies from pageable memory, compiled code) CUDA's own sync debug mode
    warns of, which is switched on for that time, too.

        with SyncFinder(torch.device("cuda")) as finder:
            train()
        print(finder.report())
    """

    _WAITING = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique")

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._paused = False
        self.places: dict[str, int] = {}

    def __enter__(self) -> SyncFinder:
        _set_cuda_mode(self._device, "warn")
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _set_cuda_mode(self._device, "default")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._paused and self._waits(func, args, kwargs or {}):
            place = _place_outside_torch()
            if place is not None:
                self.places[place] = self.places.get(place, 0) + 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """For places that are meant to wait."""
        self._paused = True
        _set_cuda_mode(self._device, "default")
        try:
            yield
        finally:
            self._paused = False
            _set_cuda_mode(self._device, "warn")

    def report(self) -> str:
        """One line per place, most frequent first."""
        if not self.places:
            return "no line waits for the device"
        ordered = sorted(self.places.items(), key=lambda item: -item[1])
        return "\n".join(["lines that wait for the device:", *(f"  {place}  ({n} times)" for place, n in ordered)])

    def _waits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        name = func.__name__.split(".")[0]
        on_device = any(isinstance(a, torch.Tensor) and a.device.type == self._device.type for a in args)
        if name == "_to_copy":  # to the host, and not in the background
            to = kwargs.get("device")
            return on_device and to is not None and torch.device(to).type == "cpu" != self._device.type
        return on_device and name in self._WAITING


def _set_cuda_mode(device: torch.device, mode: Literal["default", "warn"]) -> None:
    if device.type == "cuda":
        cuda.set_sync_debug_mode(mode)


def _place_outside_torch() -> str | None:
    """FILE:LINE of the innermost caller that is not torch's."""
    for frame in reversed(traceback.extract_stack()):
        parts = Path(frame.filename).parts
        if "torch" not in parts and frame.filename != __file__:
            return f"{frame.filename}:{frame.lineno}: {frame.line}"
    return None
