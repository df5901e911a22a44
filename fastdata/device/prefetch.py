"""Batches to the device ahead of need.

One copy stream per process and device, since torch's allocator keeps memory for each stream: one for each epoch would
take new memory in each.  A batch is made pinned (by the loader, or here), copied with ``non_blocking`` on that
stream, and handed over like this:

* The consumer's stream waits for the event recorded after the copy (and the normalisation, which runs on the copy
  stream too), so its kernels see finished data.
* A loader's augmentations leave the caller's autocast (`BatchProgram.run`), so they have the bits that they have on the
  host; a `transform` of one's own runs inside it.
* Every tensor handed over is marked with ``record_stream`` for the consumer's stream.  Its memory belongs to the
  copy stream's pool, and the mark keeps the allocator from giving it to the next copy while the consumer's kernels
  may still read it.  A ring of buffers would save the allocator's event, but would overwrite a batch that the
  caller kept; a batch the caller holds is never overwritten here.
* Before a copy begins, the host waits for what the consumer's stream had been given ``depth`` + 1 batches earlier.
  A host that only launches kernels runs ahead of the device; memory that is marked is not free before its kernels are
  done, so each batch would take new memory.  The device still has the work of ``depth`` + 1 batches before it.
* Pinned memory comes from torch's caching host allocator, which records the copy and gives a block out again only
  when that is done.  The host batch may therefore be dropped at once.

With ``static=True`` every batch is copied, on the consumer's stream, into the same tensors, as a CUDA graph needs: a
graph reads fixed addresses.  Then each batch overwrites the one before it, after the consumer's kernels have read that.

On the CPU everything is handed through untouched (but for ``static``).
"""

from __future__ import annotations

import copy as copying
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from fastdata.device.left_to_device import LeftToDevice
from fastdata.errors import OptionError
from fastdata.order.sampler_chain import epoch_sampler
from fastdata.system import cuda
from fastdata.system.stack_level import users_level

__all__ = ["CopyStreams", "DevicePrefetcher", "check_device", "chosen_by_threads", "index_of", "map_tensors"]


def check_device(device: str | torch.device | int) -> torch.device:
    """The device as torch names it.

    Raises:
        OptionError: torch does not know it, or this machine does not have it.
    """
    try:
        checked = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"device={device!r} is not a valid device; use 'cpu', 'cuda' or 'cuda:N'") from error
    if checked.type == "cuda":
        count = cuda.device_count()
        if count == 0:
            raise OptionError(f"device={device!r}, but torch sees no CUDA device; use device='cpu' or leave it out")
        if checked.index is not None and checked.index >= count:
            raise OptionError(f"device={device!r}, but there are only {count} CUDA devices (0 to {count - 1})")
    elif checked.type not in ("cpu", "meta"):
        try:
            torch.empty(0, device=checked)
        except (RuntimeError, AssertionError, ImportError) as error:  # as each maker's code has it
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise OptionError(
                f"device={device!r} cannot be used on this machine ({why}); use device='cpu' or leave it out"
            ) from error
    return checked


def index_of(device: torch.device | None) -> int:
    """A CUDA device's number; the current one's when it has none."""
    assert device is not None
    return device.index if device.index is not None else cuda.current_device()


def chosen_by_threads(device: str | torch.device | None) -> Callable[[], object]:
    """Function that a thread calls before it pins memory: its current device is the first one, and it takes another.

    Args:
        device: where batches go; if that is no CUDA device, the current one is taken.
    """
    wanted = torch.device(device) if device is not None else None
    is_cuda = wanted is not None and wanted.type == "cuda"
    return partial(cuda.set_device, index_of(wanted if is_cuda else torch.device("cuda")))


_copy_streams: dict[tuple[int, int], Any] = {}  # by process and device


class CopyStreams:
    """The copy stream beside the consumer's, on a CUDA device with an index; what the hand-over asks of it."""

    def __init__(self, device: torch.device) -> None:
        self._device, key = device, (os.getpid(), device.index)
        if key not in _copy_streams:
            _copy_streams[key] = cuda.new_stream(device)
        self._stream = _copy_streams[key]
        self._producer = cuda.current_stream(device)

    def copying(self) -> AbstractContextManager[Any]:
        """Within it, work goes to the copy stream."""
        self._producer = cuda.current_stream(self._device)
        return cuda.stream(self._stream)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begins a copy; the result may be used by later work of the copy stream."""
        if tensor.is_cuda:  # made by kernels that may still run: where the loader was asked, or in a thread of its own
            for producer in dict.fromkeys((self._producer, cuda.default_stream(self._device))):
                self._stream.wait_stream(producer)
            cuda.keep_for(tensor, self._stream)
        else:
            tensor = cuda.pinned(tensor)
        return cuda.copied(tensor, self._device)

    def copied(self) -> cuda.Event:
        """An event after all work given to the copy stream so far."""
        return cuda.recorded_event(self._stream)

    def consumer_waits_for(self, event: cuda.Event) -> None:
        """Later work of the consumer's stream begins after the event."""
        cuda.current_stream(self._device).wait_event(event)

    def consumer_uses(self, tensor: torch.Tensor) -> None:
        """Keeps the tensor's memory from being given out again before the consumer's present work is done."""
        cuda.keep_for(tensor, cuda.current_stream(self._device))

    def consumer_passed(self) -> cuda.Event:
        """An event after all work given to the consumer's stream so far."""
        return cuda.recorded_event(cuda.current_stream(self._device), blocking=True)

    def host_waits_for(self, event: cuda.Event) -> None:
        """Blocks the calling thread until the event."""
        event.synchronize()


class DevicePrefetcher:
    """Iterates over a loader with its batches on a device, copied while the caller computes.

    Args:
        loader: yields tensors, or lists, tuples, named tuples and mappings that hold tensors at any depth; other
            values are handed through.
        device: where the batches go.
        depth: batches copied ahead of the one in use.
        transform: called on each batch on the device, on the copy stream.
        static: hand over the same tensors every time, for CUDA graphs; all batches must then have the same shapes.

    Each ``iter()`` starts a fresh iteration of the loader.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | torch.device,
        *,
        depth: int = 1,
        transform: Callable[[Any], Any] | None = None,
        static: bool = False,
    ) -> None:
        if depth < 1:
            raise OptionError(f"depth={depth}; at least 1 batch must be copied ahead")
        self.loader = loader
        self.device = check_device(device)
        self.depth = depth
        self.transform = transform
        self.static = static
        self._kept: list[torch.Tensor] = []  # what a static batch is copied into

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        if self.device.type == "cuda":  # the current device is asked for once
            return self._copied_ahead(batches, CopyStreams(torch.device("cuda", index_of(self.device))))
        return map(self._moved, batches)

    def set_epoch(self, epoch: int) -> None:
        """Tells the loader, or its sampler, if one of them knows epochs."""
        if (knowing := epoch_sampler(self.loader)) is not None:
            knowing.set_epoch(epoch)

    def _copied_ahead(self, batches: Iterator[Any], streams: CopyStreams) -> _CopiedAhead:
        return _CopiedAhead(self, batches, streams)

    def _moved(self, batch: Any) -> Any:
        moved = map_tensors(batch, lambda tensor: tensor.to(self.device))
        moved = self.transform(moved) if self.transform is not None else moved
        return self._into_kept(moved) if self.static else moved

    def _into_kept(self, batch: Any) -> Any:
        """Copies a batch into the tensors that are handed over every time."""
        tensors = _tensors_of(batch)
        if not self._kept:
            self._kept = [torch.empty_like(tensor) for tensor in tensors]
        shapes, known = ([(tuple(t.shape), t.dtype) for t in some] for some in (tensors, self._kept))
        if shapes != known:
            raise OptionError(
                f"with static=True every batch must have the tensors {known}, but this one has {shapes}; "
                "drop_last=True keeps sizes equal"
            )
        kept = iter(self._kept)
        return map_tensors(batch, lambda tensor: next(kept).copy_(tensor, non_blocking=True))


@dataclass(frozen=True)
class _Copy:
    """A batch on the device.

    Attributes:
        batch: the batch.
        done: event after the copy, and what the device makes of it.
        errors: functions that return what the device has found then, or None.
    """

    batch: Any
    done: Any
    errors: Sequence[Callable[[], Exception | None]]


class _CopiedAhead:
    """One iteration: copies begin ahead of need; a batch that fails raises at its place, and the next goes on."""

    def __init__(self, prefetcher: DevicePrefetcher, batches: Iterator[Any], streams: CopyStreams) -> None:
        self._prefetcher, self._batches, self._streams = prefetcher, batches, streams
        self._ready: deque[_Copy | Exception] = deque()
        self._unchecked: deque[_Copy] = deque()  # that were handed over
        self._passed: deque[Any] = deque()  # of the batches handed over last: events after the consumer's work on each
        self._handed_over = self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._wait_for_the_device()
        self._check(self._prefetcher.depth + 1)
        while not self._ended and len(self._ready) <= self._prefetcher.depth:
            try:
                self._ready.append(self._start_copy(next(self._batches)))
            except StopIteration:
                self._ended = True
            except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
                self._ready.append(error)
        try:
            oldest = self._ready.popleft()
        except IndexError:  # at the end, or closed by another thread
            self._check(0)
            raise StopIteration from None
        if isinstance(oldest, Exception):
            raise oldest
        return self._hand_over(oldest)

    def _wait_for_the_device(self) -> None:
        """Keeps the host from running further ahead of the device than the batches that are copied ahead."""
        if self._handed_over:  # the caller has launched its work on that batch
            self._passed.append(self._streams.consumer_passed())
            self._handed_over = False
        while len(self._passed) > self._prefetcher.depth + 1:
            self._streams.host_waits_for(self._passed.popleft())

    def _check(self, unchecked: int) -> None:
        """Raises what the device has found in batches that were handed over, but for so many of the last."""
        while len(self._unchecked) > unchecked:
            copy = self._unchecked.popleft()
            self._streams.host_waits_for(copy.done)
            for find in copy.errors:
                if (error := find()) is not None:
                    raise error

    def close(self) -> None:
        """Drops what was copied ahead, and the iterator behind it."""
        self._ready.clear()
        try:
            self._check(0)
        except Exception as error:  # noqa: BLE001 - whoever breaks off is told, and not stopped
            warnings.warn(str(error), stacklevel=users_level())
        self._unchecked.clear()
        self._passed.clear()
        self._batches, self._ended = iter(()), True

    def _start_copy(self, batch: Any) -> _Copy:
        streams, transform, errors = self._streams, self._prefetcher.transform, []

        def on_device(each: Any) -> torch.Tensor:
            if not isinstance(each, LeftToDevice):
                return streams.to_device(each)
            made = each.run(streams.to_device(each.memory))
            if each.error is not None:
                errors.append(each.error)
            return made

        with streams.copying():
            moved = map_tensors(batch, on_device)
            if transform is not None:
                moved = transform(moved)
            return _Copy(moved, streams.copied(), errors)

    def _hand_over(self, copy: _Copy) -> Any:
        self._streams.consumer_waits_for(copy.done)
        if copy.errors:
            self._unchecked.append(replace(copy, batch=None))

        def mark(tensor: torch.Tensor) -> torch.Tensor:
            self._streams.consumer_uses(tensor)
            return tensor

        batch = map_tensors(copy.batch, mark)
        self._handed_over = True
        return self._prefetcher._into_kept(batch) if self._prefetcher.static else batch


def map_tensors(value: Any, function: Callable[[Any], Any]) -> Any:
    """Applies a function to every tensor, and to what is `LeftToDevice`, in nested lists, tuples and mappings."""
    if isinstance(value, torch.Tensor | LeftToDevice):
        return function(value)
    if isinstance(value, PackedSequence):  # whose `batch_sizes` belong on the host
        parts = (value.data, value.sorted_indices, value.unsorted_indices)
        data, *indices = (None if part is None else function(part) for part in parts)
        return type(value)(data, value.batch_sizes, *indices)  # type: ignore[arg-type]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    if isinstance(value, Mapping):
        mapped = {key: map_tensors(item, function) for key, item in value.items()}
        if type(value) is dict:
            return mapped
        if isinstance(value, MutableMapping):  # a defaultdict's constructor takes something else first
            same = copying.copy(value)
            same.update(mapped)
            return same
        return type(value)(mapped)  # type: ignore[call-arg]
    return value


def _tensors_of(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found
