"""Completes batches that a dataset's own code has made: decodes pending images into the batch's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from fastdata import native
from fastdata.device.left_to_device import LeftToDevice
from fastdata.device.packed_batch import packed_batch
from fastdata.device.prefetch import map_tensors
from fastdata.errors import DamagedOnDevice, DecodeError
from fastdata.lazy.batch_messages import MadeAgain, MakeAgain, ReportedBatch, SampleOrder, UnfinishedBatch
from fastdata.lazy.fetch import SampleFetcher
from fastdata.lazy.fill import Filling, SeenImages, StoredRows
from fastdata.lazy.pending_tensor import PendingBatch, PendingImage, is_pending, real, stands_in
from fastdata.lazy.undecoded import UndecodedBatch
from fastdata.loaders import Backend
from fastdata.loaders.backend import Filler
from fastdata.order.epoch_batches import EpochBatches
from fastdata.pipeline.batch_memory import BatchMemory
from fastdata.pipeline.cached_filler import CachedFiller
from fastdata.pipeline.config import OnError
from fastdata.pipeline.jobs import SkipResult, Task, run_all, stop_if_cancelled
from fastdata.pipeline.record_cache import RecordCache
from fastdata.pipeline.stats import BatchTimes, PipelineStats
from fastdata.pipeline.substitutes import substitutes
from fastdata.tables import PackedRows

__all__ = ["CompletedBatch", "Completion", "FetchedBatch"]


@dataclass(kw_only=True)
class Completion:
    """State shared by all batches of one epoch while their pending images are decoded.

    Attributes:
        backend: the backend that decodes.
        threads: number of native threads that share a batch; 0 decodes in the calling thread.
        on_error: treatment of samples whose image cannot be opened or decoded.
        memory_format: memory format of image batches.
        pin: put batches into pinned memory.
        stats: receives the times and byte counts of each batch.
        order: the epoch's batches, from which substitutes are taken; may be None unless `on_error` is "replace".
        packs: the device that batches go to decodes what it can; see `fastdata.device.packed_batch`.
        cache: keeps records of the files that are decoded, and gives them in later epochs; None for none.
        again: makes a failed batch again where it was made; called with the number of that worker process (None: this
            process) and the request.
    """

    backend: Backend
    threads: int
    on_error: OnError
    memory_format: torch.memory_format
    pin: bool
    stats: PipelineStats
    order: EpochBatches | None
    packs: bool = False
    cache: RecordCache | None = None
    again: Callable[[int | None, MakeAgain], MadeAgain]
    filler: Filler = field(init=False)
    memory: BatchMemory = field(default_factory=BatchMemory, init=False)

    def __post_init__(self) -> None:
        self.filler = self.backend.filler(threads=self.threads)
        if self.cache is not None and self.filler.reads_records:
            self.filler = CachedFiller(self.filler, self.cache)

    def close(self, ended: bool = True) -> None:
        """Gives up the native threads; waits for them only if all work has ended."""
        self.memory.close()
        self.filler.close(ended)

    def empty_batch(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised batch (N, 3, height, width) in `memory_format`, pinned if `pin`."""
        return self.memory.images(shape, dtype, memory_format=self.memory_format, pin=self.pin)

    def rows_for_device(self, whole: UndecodedBatch) -> StoredRows:
        """Places for the images of a batch that a device decodes as far as it can."""
        shape = len(whole.images.sources), *whole.image_shape
        pixels = self.memory.images(shape, torch.uint8, memory_format=torch.channels_last, pin=False)
        return StoredRows(whole.images, pixels, PackedRows(len(pixels), native.load().library.fd_free))

    def left_to_device(self, rows: StoredRows) -> LeftToDevice:
        """Such a batch, once it is filled."""
        levels = rows.images.levels
        arena, decoded = packed_batch(
            rows.packed,
            rows.batch.permute(0, 2, 3, 1),
            range(len(rows.batch)),
            levels=levels.table() if levels.steps else None,
            memory_format=self.memory_format,
            pin=self.pin,
        )
        sources, indices = rows.images.sources, rows.images.indices

        def failed(wrong: list[int]) -> DecodeError:
            error = DamagedOnDevice(index=_as_number(indices[wrong[0]]), location=sources[wrong[0]].location())
            self.stats.add_failure(error)
            return error

        return decoded.of(arena, lambda batch: batch, failed)

    def request(self, order: SampleOrder) -> MakeAgain:
        """Returns the request to make a failed batch again, with substitutes if `on_error` is "replace"."""
        if self.on_error != "replace" or order.key is None:
            return MakeAgain(order)
        assert self.order is not None
        candidates = self.order.candidates()
        chosen = [list(substitutes(candidates, _as_number(index), order.key)) for index in order.indices]
        return MakeAgain(order, chosen)


class CompletedBatch:
    """A pipeline job: decodes a batch's pending images, then pins its tensors; see `fastdata.pipeline.jobs.Job`.

    Args:
        completion: state shared with the epoch's other batches.
        received: a finished batch, an UnfinishedBatch or a MadeAgain.
        number: number of the batch.
    """

    def __init__(self, completion: Completion, received: Any, number: int = 0) -> None:
        self._completion, self._number = completion, number
        self._times: list[BatchTimes] = []
        self._left: dict[int, StoredRows] = {}  # by id of a pending tensor: what the device decodes
        self._receive(received)

    def _receive(self, received: Any) -> None:
        self._received = received.batch if isinstance(received, ReportedBatch) else received
        self._fails = isinstance(received, UnfinishedBatch) and received.batch is None
        self._left_out = 0
        self._left.clear()  # whose tensors may be gone

    @property
    def _is_pending(self) -> bool:
        return isinstance(self._received, UnfinishedBatch) and not self._fails

    @property
    def tasks(self) -> Sequence[Task]:
        """See `Job.tasks`."""
        return [self._decode] if self._is_pending else []

    def finish(self) -> None:
        """See `Job.finish`."""
        if self._is_pending:
            self._received = self._pinned(self._received.batch)

    def _pinned(self, batch: Any) -> Any:
        times = BatchTimes()
        with times.stage("collate"):
            batch = map_tensors(batch, self._finished)
            if self._completion.pin:
                batch = pin_memory(batch)  # type: ignore[no-untyped-call]  # classes of the user's pin themselves
        self._times.append(times)
        return batch

    def result(self) -> Any:
        """Returns the batch's number, the batch, and the number of samples left out of it; see `Job.result`."""
        if self._fails:
            self._make_again()
        batch = self._received
        if isinstance(batch, MadeAgain):
            batch = self._outcome(batch)
        for times in self._times:
            self._completion.stats.add(times)
        return self._number, batch, self._left_out

    def _make_again(self) -> None:
        unfinished = self._received
        self._received = self._completion.again(unfinished.worker, self._completion.request(unfinished.order))

    def _outcome(self, made: MadeAgain) -> Any:
        """Returns the batch of a `MadeAgain` and counts its failures; raises the first one if `on_error` is "raise"."""
        stats, failures = self._completion.stats, list(made.failures)
        for failure in failures:
            stats.add_failure(failure)
        self._left_out, self._received = made.left_out, None
        if failures and self._completion.on_error == "raise":
            try:
                raise made.raised or failures[0]
            finally:  # the error will remember this frame
                del failures, failure, made
        if made.is_empty:
            raise SkipResult
        return self._pinned(map_tensors(made.batch, self._formatted))

    def _formatted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Converts a batch of images (N, 3, height, width) to the requested memory format; returns others unchanged."""
        wanted = self._completion.memory_format
        is_batch = tensor.dim() == 4 and tensor.shape[1] == 3 and wanted is not torch.contiguous_format
        return tensor.contiguous(memory_format=wanted) if is_batch else tensor

    def run_here(self) -> Any:
        """Runs all steps in the calling thread and returns the result."""
        run_all(self.tasks)
        self.finish()
        return self.result()

    # ---- decoding

    def _decode(self) -> Sequence[Task]:
        """Decodes all images at once if the backend takes batches; returns tasks for those that are left."""
        fillings = Filling.of([self._place_for(tensor) for tensor in _pending_in(self._received.batch)])
        if self._completion.filler.takes_batches:
            return [task for filling in fillings for task in self._fill(filling)]
        parts = [part for filling in fillings for part in filling.split(self._share(len(filling.sources)))]
        return [partial(self._fill, part) for part in parts]

    def _share(self, images: int) -> int:
        """Images for one of several tasks."""
        return max(1, -(-images // (4 * max(1, self._completion.threads))))

    def _fill(self, filling: Filling) -> Sequence[Task]:
        """Decodes images; returns tasks for those that were refused."""
        stop_if_cancelled()
        times = BatchTimes()
        with times.stage("decode"):
            filled = filling.fill(self._completion.filler)
        times.encoded_bytes, times.cached = int(filled.read_bytes.sum()), filled.cached
        self._times.append(times)
        refused = list(filled.refused.items())
        step = self._share(len(refused))
        return [partial(self._ask_pillow, filling, refused[at : at + step]) for at in range(0, len(refused), step)]

    def _place_for(self, tensor: PendingBatch | PendingImage) -> StoredRows:
        """Allocates memory for a pending tensor's images and makes it the tensor's value."""
        if isinstance(tensor, PendingBatch):
            whole = tensor.undecoded
            if self._completion.packs and len(whole.lead) == 1 and not any(whole.images.erased):
                return self._left.setdefault(id(tensor), self._completion.rows_for_device(whole))
            shape = len(whole.images.sources), *whole.image_shape
            batch = self._completion.empty_batch(shape, whole.images.levels.dtype)
            whole.value = batch if len(whole.lead) == 1 else batch.view(whole.shape)
            return StoredRows(whole.images, batch)
        one = tensor.undecoded
        layout = torch.channels_last if one.channels_last else torch.contiguous_format
        shape = (1, 3, *one.view.size)
        batch = torch.empty(shape, dtype=one.levels.dtype, device="cpu", memory_format=layout)
        one.value = batch if one.is_batch else batch[0]
        return StoredRows(SeenImages.of([one]), batch)

    def _finished(self, tensor: torch.Tensor) -> torch.Tensor | LeftToDevice:
        """Returns a tensor as the caller gets it, decoded, or what the device decodes."""
        if (rows := self._left.get(id(tensor))) is not None:
            return self._completion.left_to_device(rows)
        if stands_in(tensor):
            own: Any = tensor.undecoded  # type: ignore[attr-defined]
            tensor = own.settle(own.finished(own.value))
        else:
            tensor = real(tensor)
        return tensor

    def _ask_pillow(self, filling: Filling, refused: Sequence[tuple[int, Exception]]) -> None:
        times = BatchTimes()
        with times.stage("decode"):
            for row, refusal in refused:
                stop_if_cancelled()
                if filling.by_pillow(row, refusal) is not None:
                    self._fails = True
        self._times.append(times)


class FetchedBatch(CompletedBatch):
    """A pipeline job that makes a batch's samples in a decode thread and then decodes their pending images.

    Args:
        completion: state shared with the epoch's other batches.
        fetcher: makes the samples.
        order: the samples to make.
    """

    def __init__(self, completion: Completion, fetcher: SampleFetcher, order: SampleOrder) -> None:
        super().__init__(completion, None, order.number)
        self._fetcher, self._order = fetcher, order

    @property
    def tasks(self) -> Sequence[Task]:
        """See `Job.tasks`."""
        return [self._fetch]

    def _fetch(self) -> Sequence[Task]:
        from fastdata.lazy.opening import opening_encoded  # imports Pillow

        times = BatchTimes()
        with times.stage("read"), opening_encoded():
            self._receive(self._fetcher.fetch(self._order))
        self._times.append(times)
        return super().tasks

    def result(self) -> Any:
        """See `CompletedBatch.result`."""
        made = super().result()
        self._completion.stats.samples += len(self._order.indices) - made[2]
        return made


def _pending_in(batch: Any) -> list[PendingBatch | PendingImage]:
    """Returns the tensors of a batch that are still to be decoded, each once."""
    found: dict[int, Any] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if is_pending(tensor):
            found[id(tensor)] = tensor
        return tensor

    map_tensors(batch, note)
    return list(found.values())


def _as_number(index: Any) -> int:
    return index if isinstance(index, int) else -1
