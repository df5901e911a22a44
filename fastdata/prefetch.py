"""Batches to the device ahead of need.

One copy stream per prefetcher.  A batch is made pinned (by the loader, or here), copied with ``non_blocking`` on that
stream, and handed over like this:

* The consumer's stream waits for the event recorded after the copy (and the normalisation, which runs on the copy
  stream too), so its kernels see finished data.
* Every tensor handed over is marked with ``record_stream`` for the consumer's stream.  Its memory belongs to the
  copy stream's pool, and the mark keeps the allocator from giving it to the next copy while the consumer's kernels
  may still read it.  A ring of buffers would save the allocator's event, but would overwrite a batch that the
  caller kept; a batch the caller holds is never overwritten here.
* Pinned memory comes from torch's caching host allocator, which records the copy and gives a block out again only
  when that is done.  The host batch may therefore be dropped at once.

On the CPU everything is handed through untouched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from fastdata.errors import OptionError

__all__ = ["DevicePrefetcher", "check_device"]


def check_device(device: str | torch.device | int) -> torch.device:
    """The device as torch names it.

    Raises:
        OptionError: torch does not know it, or this machine does not have it.
    """
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device={device!r} is not a device torch knows: {error}") from error
    if checked.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise OptionError(f"device={device!r}, but torch sees no CUDA device; use device='cpu' or leave it out")
        if checked.index is not None and checked.index >= count:
            raise OptionError(f"device={device!r}, but there are only {count} CUDA devices (0 to {count - 1})")
    return checked


class DevicePrefetcher:
    """Iterates over a loader with its batches on a device, copied while the caller computes.

    Args:
        loader: yields tensors, or lists, tuples, named tuples and mappings that hold tensors at any depth; other
            values are handed through.
        device: where the batches go.
        depth: batches copied ahead of the one in use.
        transform: called on each batch on the device, on the copy stream.

    Each ``iter()`` starts a fresh iteration of the loader.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | torch.device,
        *,
        depth: int = 1,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if depth < 1:
            raise OptionError(f"depth={depth}; at least 1 batch must be copied ahead")
        self.loader = loader
        self.device = check_device(device)
        self.depth = depth
        self.transform = transform

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        if self.device.type == "cuda":
            return self._copied_ahead(batches)
        return self._moved(batches)

    def _moved(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            moved = map_tensors(batch, lambda tensor: tensor.to(self.device))
            yield self.transform(moved) if self.transform is not None else moved

    def _copied_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        ready: deque[tuple[Any, torch.cuda.Event]] = deque()
        failure: Exception | None = None
        while True:
            while failure is None and len(ready) <= self.depth:
                try:
                    ready.append(self._start_copy(next(batches), stream))
                except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
                    failure = error
            if not ready:
                if isinstance(failure, StopIteration):
                    return
                raise failure if failure is not None else AssertionError("nothing copied, nothing failed")
            batch, copied = ready.popleft()
            yield self._hand_over(batch, copied)
            del batch

    def _start_copy(self, batch: Any, stream: torch.cuda.Stream) -> tuple[Any, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            moved = map_tensors(batch, self._copy)
            if self.transform is not None:
                moved = self.transform(moved)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)
        return moved, copied

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def _hand_over(self, batch: Any, copied: torch.cuda.Event) -> Any:
        consumer = torch.cuda.current_stream(self.device)
        consumer.wait_event(copied)

        def mark(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(consumer)
            return tensor

        return map_tensors(batch, mark)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies a function to every tensor in nested lists, tuples, named tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, Mapping):
        mapped = {key: map_tensors(item, function) for key, item in value.items()}
        return mapped if type(value) is dict else type(value)(mapped)  # type: ignore[call-arg]
    return value
