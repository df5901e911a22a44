"""Completing batches that a dataset's own code has made: pending images are decoded into the batch's memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fastdata.captures.fetch import SampleFetcher, SampleOrder, UnfinishedBatch, is_of_an_image
from fastdata.captures.find import find_captures
from fastdata.device.prefetch import map_tensors
from fastdata.errors import DecodeError
from fastdata.loaders import Backend
from fastdata.loaders.backend import SourceDecoder
from fastdata.loaders.fill import SeenImages, StoredRows, decode_row, decode_together
from fastdata.loaders.pending_image import PendingBatch, PendingImage
from fastdata.native import Pool
from fastdata.order.epoch_batches import EpochBatches
from fastdata.pipeline.batch_memory import BatchMemory
from fastdata.pipeline.config import OnError
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import SkipResult, Task, run_all, stop_if_cancelled
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.stats import BatchTimes, PipelineStats
from fastdata.pipeline.substitutes import none_decoded, substitutes
from fastdata.system.lazy import lazy

__all__ = ["CompletedBatch", "Completion", "FailedBatch", "FetchedBatch"]


@dataclass(kw_only=True)
class Completion:
    """What the batches of one epoch share while they are completed.

    Attributes:
        backend: who decodes.
        threads: how many of the core's will share a batch; 0 works in the calling thread.
        on_error: what to do with samples whose image cannot be opened or decoded.
        memory_format: of image batches.
        pin: put batches into pinned memory.
        stats: where each batch reports what it cost.
        order: what the sampler gives in this epoch, from which substitutes are taken.
        again: makes a batch whose samples failed again, in this process; None where that is not done.
        pipeline: opens the image pipeline that gives the same samples, if one does; it makes batches in which something
            failed again, and says what as always.
    """

    backend: Backend
    threads: int
    on_error: OnError
    memory_format: torch.memory_format
    pin: bool
    stats: PipelineStats
    order: EpochBatches | None
    again: SampleFetcher | None
    pipeline: Callable[[], EpochResources] | None = None
    decoder: SourceDecoder | None = field(init=False)
    pool: Pool | None = None
    memory: BatchMemory = field(default_factory=BatchMemory, init=False)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.decoder = self.backend.source_decoder()
        if self.threads and self.decoder is not None:
            self.pool = self.decoder.pool(self.threads)

    @lazy
    def opened_pipeline(self) -> EpochResources:
        """The image pipeline; asked for while holding `turn`."""
        assert self.pipeline is not None
        return self.pipeline()

    def close(self, ended: bool = True) -> None:
        """Gives up the threads of the core; waits for them if all work has ended."""
        self.memory.close()
        if "opened_pipeline" in vars(self):
            self.opened_pipeline.close(ended)
        pool, self.pool = self.pool, None
        if pool is not None:
            (pool.close if ended else pool.abandon)()

    def empty_batch(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised batch (N, 3, height, width) in the format asked for."""
        return self.memory.images(shape, dtype, memory_format=self.memory_format, pin=self.pin)


class CompletedBatch:
    """A pipeline job: decodes what is pending in a batch, then pins it; see `fastdata.pipeline.jobs.Job`.

    Args:
        completion: what it shares with others.
        received: a finished batch, or an UnfinishedBatch.
        number: of the batch.
    """

    def __init__(self, completion: Completion, received: Any, number: int = 0) -> None:
        self._completion, self._number = completion, number
        self._receive(received)
        self._errors: list[DecodeError] = []
        self._failures: list[DecodeError] = []
        self._times: list[BatchTimes] = []
        self._empty = False
        self._instead: ImageBatch | None = None

    def _receive(self, received: Any) -> None:
        self._is_finished = not isinstance(received, UnfinishedBatch)
        self._order: SampleOrder | None = None if self._is_finished else received.order
        self._batch: Any = received if self._is_finished else received.batch

    @property
    def tasks(self) -> Sequence[Task]:
        """See `Job.tasks`."""
        if self._is_finished:
            return []
        return [self._make_again if self._batch is None else self._decode]

    def finish(self) -> None:
        """See `Job.finish`."""
        if self._errors and self._may_make_again():
            self._make_again()
        if not (self._errors or self._empty or self._is_finished or self._instead):
            times = BatchTimes()
            with times.stage("collate"):
                self._batch = map_tensors(self._batch, self._finished)
            self._times.append(times)

    def result(self) -> Any:
        """The batch's number, the batch, and nothing that is left to a device; see `Job.result`."""
        if self._instead is not None:
            return self._instead.result()
        stats = self._completion.stats
        for times in self._times:
            stats.add(times)
        errors, self._errors = sorted(self._errors, key=lambda error: error.index), []
        for error in (*errors, *self._failures):
            stats.add_failure(error.index, error.location, error.reason)
        if errors:
            try:
                raise errors[0]
            finally:  # the error will remember this frame
                del errors, error
        if self._empty:
            raise SkipResult
        return self._number, self._batch, None

    def run_here(self) -> Any:
        """The result, made in the calling thread."""
        run_all(self.tasks)
        self.finish()
        return self.result()

    # ---- decoding

    def _decode(self) -> Sequence[Task]:
        """Decodes all images at once where the backend can; what is left over becomes tasks of its own."""
        completion, times = self._completion, BatchTimes()
        parts = [self._place_for(tensor) for tensor in _pending_in(self._batch)]
        left: list[dict[int, Any]] = [dict.fromkeys(range(len(part.batch))) for part in parts]
        with times.stage("decode"):
            if completion.decoder is not None:
                refused, times.encoded_bytes = decode_together(parts, completion.decoder, pool=completion.pool)
                left = list(refused)
        self._times.append(times)
        further: list[Task] = []
        for part, rows in zip(parts, left, strict=True):
            some, step = list(rows.items()), max(1, -(-len(rows) // (4 * max(1, completion.threads))))
            for at in range(0, len(some), step):
                further.append(partial(self._decode_rows, part, some[at : at + step]))
        return further

    def _place_for(self, tensor: PendingBatch | PendingImage) -> StoredRows:
        """Memory for what is to be decoded; the tensor's value from now on."""
        if isinstance(tensor, PendingBatch):
            whole = tensor.undecoded
            shape = len(whole.images.sources), *whole.image_shape
            batch = self._completion.empty_batch(shape, whole.images.levels.dtype)
            whole.value = batch if len(whole.lead) == 1 else batch.view(whole.shape)
            return StoredRows(whole.images, batch)
        one = tensor.undecoded
        batch = torch.empty((1, *one.shape), dtype=one.levels.dtype, device="cpu")
        one.value = batch[0] if one.tensor_class is None else batch[0].as_subclass(one.tensor_class)
        return StoredRows(SeenImages.of([one]), batch)

    def _decode_rows(self, part: StoredRows, some: Sequence[tuple[int, Any]]) -> None:
        times, backend = BatchTimes(), self._completion.backend
        own = None if self._completion.decoder is not None else backend
        with times.stage("decode"):
            for row, refusal in some:
                stop_if_cancelled()
                error = decode_row(part, row, refusal, backend=own)
                if error is not None:
                    images = part.images
                    self._errors.append(self._error(error, images.indices[row], images.sources[row].location()))
        self._times.append(times)

    def _finished(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the batch as the caller gets it."""
        if isinstance(tensor, PendingBatch | PendingImage):
            tensor = tensor.undecoded.decoded()
        return tensor.pin_memory() if self._completion.pin and not tensor.is_pinned() else tensor

    def _error(self, reason: Exception, index: Any, location: str) -> DecodeError:
        number = index if isinstance(index, int) else -1
        return DecodeError.because(reason, index=number, location=location, backend=self._completion.backend.name)

    # ---- samples that are skipped or replaced

    def _may_make_again(self) -> bool:
        completion = self._completion
        if completion.pipeline is None and (completion.on_error == "raise" or completion.again is None):
            return False
        return self._order is not None

    def _make_again(self) -> None:
        """Makes the batch from its samples, one by one, in this process; without those that fail, or with others."""
        from fastdata.loaders.opening_encoded import opening_encoded  # imports Pillow

        self._errors = []
        completion, order = self._completion, self._order
        if completion.pipeline is not None:
            self._leave_to_pipeline()
            return
        fetcher = completion.again
        assert order is not None
        assert fetcher is not None
        samples = []
        with completion.turn, opening_encoded(), find_captures(fetcher.dataset).installed():
            for index, copy in zip(order.indices, order.copies, strict=True):
                stop_if_cancelled()
                try:
                    samples.append(_decoded_sample(fetcher, index, copy, order))
                except Exception as error:
                    if not is_of_an_image(error):
                        raise
                    failure = self._error(error, index, _location(error, index))
                    self._failures.append(failure)
                    if completion.on_error == "replace":
                        samples.append(self._substitute(fetcher, failure, index, copy))
            if samples:
                self._batch = fetcher.collated(samples, order)
        self._empty = not samples

    def _leave_to_pipeline(self) -> None:
        order = self._order
        assert order is not None
        with self._completion.turn:
            resources = self._completion.opened_pipeline
        self._instead = ImageBatch(resources, order.number, order.indices, order.copies)
        run_all(self._instead.tasks)
        self._instead.finish()

    def _substitute(self, fetcher: SampleFetcher, failure: DecodeError, index: Any, copy: int) -> Any:
        order, epoch = self._order, self._completion.order
        assert order is not None
        assert epoch is not None
        for other in substitutes(epoch.candidates(order.number), failure.index, order.key):
            try:
                return _decoded_sample(fetcher, other, copy, order)
            except Exception as error:
                if not is_of_an_image(error):
                    raise
                self._failures.append(self._error(error, other, _location(error, other)))
        raise failure from none_decoded()


class FetchedBatch(CompletedBatch):
    """The same for a batch whose samples are made in a decode thread, too.

    Args:
        completion: what it shares with others.
        fetcher: makes the samples.
        order: which.
    """

    def __init__(self, completion: Completion, fetcher: SampleFetcher, order: SampleOrder) -> None:
        super().__init__(completion, UnfinishedBatch(None, order), order.number)
        self._fetcher = fetcher

    @property
    def tasks(self) -> Sequence[Task]:
        """See `Job.tasks`."""
        return [self._fetch]

    def _fetch(self) -> Sequence[Task]:
        from fastdata.loaders.opening_encoded import opening_encoded  # imports Pillow

        times = BatchTimes()
        with times.stage("read"), opening_encoded():
            assert self._order is not None
            times.samples = len(self._order.indices)
            self._receive(self._fetcher.fetch(self._order))
        self._times.append(times)
        return super().tasks


class FailedBatch:
    """A pipeline job that stands for a batch which could not be made."""

    tasks: tuple[Task, ...] = ()

    def __init__(self, error: Exception) -> None:
        self._error: Exception | None = error

    def finish(self) -> None:
        """Nothing is to be done."""

    def result(self) -> Any:
        """Raises the error."""
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:
            del error


def _location(error: Exception, index: Any) -> str:
    """The file that an error names, or the sample."""
    begin = "while decoding "
    notes = [note.removeprefix(begin) for note in getattr(error, "__notes__", []) if note.startswith(begin)]
    return str(getattr(error, "filename", None) or next(iter(notes), f"sample {index}"))


def _pending_in(batch: Any) -> list[PendingBatch | PendingImage]:
    """The tensors of a batch that are to be decoded, each once."""
    found: dict[int, PendingBatch | PendingImage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, PendingBatch | PendingImage) and tensor.undecoded.value is None:
            found[id(tensor)] = tensor
        return tensor

    map_tensors(batch, note)
    return list(found.values())


def _decoded_sample(fetcher: SampleFetcher, index: Any, copy: int, order: SampleOrder) -> Any:
    sample = fetcher.sample(index, copy, order.key)
    return map_tensors(
        sample, lambda tensor: tensor.undecoded.decoded() if isinstance(tensor, PendingImage) else tensor
    )
