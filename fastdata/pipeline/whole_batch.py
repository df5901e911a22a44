"""Batches for backends that decode whole batches in a pipeline of their own, such as DALI.

Decode threads read and draw (`WholeBatch`, a job like any other); `WholeBatches` hands those batches to the backend's
pipeline, some ahead, and completes them in order.  Reading, views, failures, order and state are those of every other
backend.
"""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.augment.effects import nothing
from fastdata.augment.ops import on_device_of
from fastdata.device.left_to_device import LeftToDevice
from fastdata.device.prefetch import index_of, map_tensors
from fastdata.errors import PipelineError
from fastdata.loaders import pillow, pillow_files
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.batch_decoder import BatchDecoder, BatchFeed, BatchRequest, Decoded
from fastdata.loaders.rows import as_pixels, fill_rows, put
from fastdata.pipeline.collate import join
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import FailedJob, OrderedJobs, SkipResult, Task, stop_if_cancelled
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.sample import Failure, Sample
from fastdata.pipeline.stats import BatchTimes
from fastdata.sources.protocol import file_ranges
from fastdata.system.stack_level import users_level
from fastdata.tables import EffectTable
from fastdata.views.header import UNPACKED_MAGIC, parse_header
from fastdata.views.plan import Flip, Plan, Resizing
from fastdata.views.view import View, windows_of

__all__ = ["WholeBatch", "WholeBatches"]

_JPEG_MAGIC = b"\xff\xd8"


class WholeBatch(ImageBatch):
    """A pipeline job: one batch, read and drawn; what the backend's pipeline does not take is decoded here."""

    def __init__(
        self, resources: EpochResources, number: int, indices: Sequence[int], occurrences: Sequence[int]
    ) -> None:
        super().__init__(resources, number, indices, occurrences)
        self._to_feed: dict[int, tuple[Sample, View]] = {}
        self._pixels: dict[int, Pixels] = {}  # of the other positions
        self._effects: dict[int, EffectTable] = {}  # by position, (1, steps): augmentations that the pipeline does
        self._given_up = False  # by the backend's pipeline
        self._encoded_at: dict[int, memoryview] = {}  # files read by the core; not yet used
        self._whole: set[int] = set()  # positions where the core has read a JPEG with whole scans

    def _load_tasks(self) -> list[Task]:
        if self._resources.file_reader is not None:
            return [self._read_and_load]
        return self._tasks_for(range(len(self._indices)))

    def _read_and_load(self) -> Sequence[Task]:
        """Reads the batch's files by one call of the core, and loads from them.

        Threads that read image by image would wait for each other: a JPEG's header and view take the interpreter's lock
        for longer than reading it does.
        """
        reader, positions = self._resources.file_reader, range(len(self._indices))
        assert reader is not None
        unread = [position for position in positions if position not in self._read_ahead]
        try:
            files = file_ranges(self._config.source, [self._indices[position] for position in unread])
        except Exception:  # noqa: BLE001 - the source's, raised again for its own sample
            return self._tasks_for(positions)
        try:
            found, whole, read_s = reader.read(files.paths, files.offsets, files.lengths, files.crcs)
        except MemoryError:  # for all files at once; one by one those that are too large are told
            return self._tasks_for(positions)
        self._encoded_at = {at: data for at, data in zip(unread, found, strict=True) if data is not None}
        self._whole = {at for at, known in zip(unread, whole, strict=True) if known}
        self._times.append(BatchTimes(seconds={"read": read_s}))
        beside = {at for at, data in self._encoded_at.items() if data[:2] != _JPEG_MAGIC}
        self._load_some([position for position in positions if position not in beside])
        return self._tasks_for(sorted(beside))  # are decoded here, by all threads

    def _encoded(self, position: int, index: int) -> Any:
        data = self._encoded_at.pop(position, None)
        if data is None or data[:8] == UNPACKED_MAGIC:  # which the source turns into a file again
            self._whole.discard(position)
            return super()._encoded(position, index)
        return data

    def _inspect(self, position: int, data: Any) -> Encoded:
        header = parse_header(data) if isinstance(data, memoryview) else None
        if header is None:
            return super()._inspect(position, data)
        # The block is not copied.
        return Encoded(
            data=data, header=header, width=header.width, height=header.height, has_whole_scans=position in self._whole
        )

    def finish(self) -> None:
        """Nothing is left to do before the backend's part."""

    def result(self) -> Any:
        """This batch itself, for `feed`; what failed is reported by `complete`, behind the batches before it."""
        if not any(self._loaded) and not (self._failures and self._config.on_error == "raise"):
            self._report()
            raise SkipResult
        return self

    def feed(self) -> BatchFeed:
        """Input of the backend's pipeline; a tiny image fills each position that the backend does not decode."""
        encoded, views = [], []
        for position in range(len(self._indices)):
            if position in self._to_feed:
                sample, view = self._to_feed[position]
                encoded.append(np.frombuffer(sample.image.data, np.uint8))
                views.append(view)
            else:
                encoded.append(_tiny_jpeg())
                views.append(_view_of_tiny(self._config.plan))
        effects = None
        if self._effects:
            effects = nothing(len(encoded), next(iter(self._effects.values())).shape[1])
            for position in self._effects.keys() & self._to_feed.keys():
                effects[position] = self._effects[position]
        return BatchFeed(encoded=encoded, views=windows_of(views), effects=effects, name=repr(self))

    def __repr__(self) -> str:
        return f"batch {self._number} (samples {self._indices[0]} …)"

    def complete(self, decoded: Decoded) -> tuple[int, Any]:
        """The finished batch from the pipeline's output, uint8 (N, H, W, 3), or decoded here if that gave up.

        Raises:
            SkipResult: no image is left.
            DecodeError: an image is damaged, and errors are to be raised.
        """
        if self._failures and self._config.on_error == "raise":
            self._report()
        times = BatchTimes()
        if isinstance(decoded, RuntimeError):
            decoded = self._decode_singly(times, decoded)
        with times.stage("convert"):
            for position, pixels in self._pixels.items():
                decoded[position].copy_(on_device_of(decoded, torch.from_numpy(pixels)), non_blocking=True)
        self._times.append(times)
        self._report()
        good = [position for position, loaded in enumerate(self._loaded) if loaded]
        if not good:
            raise SkipResult
        self._resources.stats.samples += len(good)
        if len(good) < len(self._loaded):
            decoded = decoded[on_device_of(decoded, torch.tensor(good))]
        return self._number, self._finished(decoded, good)

    def _finished(self, decoded: torch.Tensor, good: Sequence[int]) -> Any:
        config, finish = self._config, self._resources.finish
        images = decoded.permute(0, 3, 1, 2)
        targets = self._collated_targets(good)
        if not (config.leave_uint8 or images.is_cuda):
            converted = self._converted(images)
            finish.erase(converted, *self._drawn_for(good))
            return join(config.collate_fn, converted, targets)
        images = images.contiguous(memory_format=config.memory_format)
        program = finish.on_batch(*self._drawn_for(good), augmented=self._resources.batch_effects is not None)
        if config.on_gpu and not images.is_cuda:
            return join(config.collate_fn, LeftToDevice(self._pinned(images), program.run), targets)
        finished = program.run(images)
        if finished is decoded or finished._is_view():
            finished = finished.clone()  # the pipeline's memory must not outlive the next batch
        return join(config.collate_fn, finished, _moved(targets, finished))

    def _converted(self, images: torch.Tensor) -> torch.Tensor:
        """Converts on the host, with the arithmetic of every other backend."""
        resources = self._resources
        stored = resources.batch_format
        if stored.table is None and not stored.channels_first:
            return self._pinned(images)  # type: ignore[no-any-return]
        batch = resources.empty_batch(len(images))
        for pixels, place in zip(images.permute(0, 2, 3, 1).numpy(), batch, strict=True):
            put(pixels, place.data_ptr(), stored)
        return batch

    def _decode(self, samples: Sequence[Sample], views: Sequence[View], times: BatchTimes) -> list[Failure]:
        decoder, here = self._resources.batch_decoder, []
        assert decoder is not None
        for sample, view, does in zip(samples, views, self._draw_effects(samples), strict=True):
            self._to_feed.pop(sample.position, None)
            if does and not self._given_up and decoder.takes(sample.image, view):
                self._to_feed[sample.position] = sample, view
                self._loaded[sample.position] = True
            else:
                here.append((sample, view))
        with times.stage("decode"):
            return self._decode_here(here)

    def _draw_effects(self, samples: Sequence[Sample]) -> Sequence[bool]:
        """Draws and keeps the effects that the backend's pipeline is to do; returns for which samples it does all."""
        asked = self._resources.batch_effects
        if asked is None:
            return [True] * len(samples)
        indices, occurrences = [sample.index for sample in samples], [sample.occurrence for sample in samples]
        given = self._given.of([(sample.position, sample.index) for sample in samples])
        table = self._resources.finish.effects_on_batches(indices, occurrences, given)
        self._effects |= {sample.position: table[row : row + 1] for row, sample in enumerate(samples)}
        return asked.does(table).tolist()  # type: ignore[no-any-return]

    def _decode_here(self, some: Sequence[tuple[Sample, View]]) -> list[Failure]:
        """Decodes on the host and keeps the pixels for `complete`."""
        if not some:
            return []
        stop_if_cancelled()
        images = [replace(sample.image, data=bytes(sample.image.data)) for sample, _ in some]
        views = [view for _, view in some]
        places: list[Pixels] = [np.empty((*view.size, 3), np.uint8) for view in views]
        recipes = as_pixels(images, views, places)
        if self._effects:
            own = [self._effects[sample.position] for sample, _ in some]
            recipes = replace(recipes, effects=np.concatenate(own))
        errors = fill_rows(self._resources.part_filler, recipes)
        failures = []
        for row, ((sample, _), place) in enumerate(zip(some, places, strict=True)):
            self._loaded[sample.position] = row not in errors
            if row not in errors:
                self._pixels[sample.position] = place
            else:
                failures.append(self._failure(sample.position, sample.index, errors[row]))
        return failures

    def _decode_singly(self, times: BatchTimes, refusal: RuntimeError) -> torch.Tensor:
        """Decodes the images one by one after the pipeline gave up on the batch, to find the damaged ones."""
        self._given_up = True
        with times.stage("decode"):
            failures = self._decode_here(list(self._to_feed.values()))
        if not failures:
            name = self._config.backend.name
            warnings.warn(
                f"backend {name!r} gave up on {self!r}, but nothing in it is damaged: {refusal}",
                stacklevel=users_level(),
            )
        self._failures += failures
        if self._config.on_error == "replace":
            for failure in failures:
                self._replace(failure, times)
        assert self._config.plan.size is not None
        device = self._config.device if self._resources.decodes_on_gpu else None
        return torch.empty((len(self._indices), *self._config.plan.size, 3), dtype=torch.uint8, device=device)


class WholeBatches:
    """Yields (number, batch) in order, with several batches in the pipeline.

    Args:
        resources: resources that all batches share.
        decoder: the backend's.
        jobs: yields `WholeBatch`.
        largest_batch: images; None if unknown.
    """

    def __init__(
        self, resources: EpochResources, decoder: BatchDecoder, jobs: OrderedJobs, *, largest_batch: int | None
    ) -> None:
        self._jobs = jobs
        self._pid = os.getpid()
        self._feeds = _Feeds(jobs, resources.config.plan)
        self._decoded = decoder.open(self._feeds, _request(resources, largest_batch))

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        if os.getpid() != self._pid:
            raise PipelineError(
                "this iterator was made in another process; after a fork make a new one with iter(loader)"
            )
        while True:
            try:
                _, decoded = next(self._decoded)
            except BaseException:
                self.close()
                raise
            try:
                batch = self._feeds.handed_out.popleft()
                return batch.result() if isinstance(batch, FailedJob) else batch.complete(decoded)
            except SkipResult:
                continue

    def close(self) -> None:
        """Takes the backend's pipeline down and joins the reading threads.  Harmless when repeated."""
        self._decoded.close()
        self._jobs.close()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:  # `os` may be gone when the interpreter ends
        if hasattr(self, "_decoded") and getpid() == self._pid:  # a forked child has none of the threads
            self.close()


class _Feeds:
    """Iterator over the backend's input batches; a tiny image keeps the place of a batch that could not be made."""

    def __init__(self, jobs: OrderedJobs, plan: Plan) -> None:
        self._jobs, self._plan = jobs, plan
        self.handed_out: deque[WholeBatch | FailedJob] = deque()  # whose images come next

    def __iter__(self) -> Iterator[BatchFeed]:
        return self

    def __next__(self) -> BatchFeed:
        try:
            batch: WholeBatch = next(self._jobs)
        except (StopIteration, PipelineError):
            raise
        except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
            self.handed_out.append(FailedJob(error))
            return BatchFeed(encoded=[_tiny_jpeg()], views=windows_of([_view_of_tiny(self._plan)]))
        self.handed_out.append(batch)
        return batch.feed()


def _request(resources: EpochResources, largest_batch: int | None) -> BatchRequest:
    config = resources.config
    return BatchRequest(
        interpolation=config.plan.filters[0],
        crops=any(not isinstance(op, Flip | Resizing) for op in config.plan.ops),
        flips=any(isinstance(op, Flip) for op in config.plan.ops),
        largest_batch=largest_batch,
        threads=max(1, config.threads),
        device_index=index_of(config.device) if resources.decodes_on_gpu else None,
        effects=resources.batch_effects,
        options=config.backend_options,
    )


def _moved(targets: Any, images: torch.Tensor) -> Any:
    return map_tensors(targets, lambda tensor: on_device_of(images, tensor))


@cache
def _tiny_jpeg() -> npt.NDArray[np.uint8]:
    return np.frombuffer(pillow_files.encode_jpeg(pillow.from_pixels(np.zeros((8, 8, 3), np.uint8)), 90), np.uint8)


def _view_of_tiny(plan: Plan) -> View:
    assert plan.size is not None
    height, width = plan.size
    size = (width, height)
    return replace(View.whole(8, 8), resize_px=size, crop_px=(0, 0, *size), interpolation=plan.filters[0])
