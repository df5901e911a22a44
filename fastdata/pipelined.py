"""Batches for DALI, which decodes whole batches in a pipeline of its own.

Decode threads read and draw (`AheadBatch`, a job like any other); `PipelinedBatches` hands those batches to DALI some
ahead and completes them in order.  Reading, views, failures, order and state are those of every other backend.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastdata.device_ops import on_device_of
from fastdata.errors import PipelineError
from fastdata.finish import Drawn
from fastdata.image_batch import ImageBatch, Sample
from fastdata.image_work import ImageWork
from fastdata.loaders import pillow
from fastdata.loaders.backend import Pixels, by_pillow
from fastdata.loaders.dali import DaliFeed, DaliFormat, DaliPipeline, is_for_dali
from fastdata.pipeline import OrderedJobs, SkipResult, Task
from fastdata.plan import CenterCrop, Flip, Plan, RandomCrop
from fastdata.prefetch import index_of, map_tensors
from fastdata.stats import BatchTimes
from fastdata.views import View, Views

__all__ = ["AheadBatch", "PipelinedBatches"]


class AheadBatch(ImageBatch):
    """A pipeline job: one batch, read and drawn; what DALI cannot decode is decoded here."""

    def __init__(self, work: ImageWork, number: int, indices: Sequence[int], copies: Sequence[int]) -> None:
        super().__init__(work, number, indices, copies)
        self._for_dali: dict[int, tuple[Sample, View]] = {}
        self._pixels: dict[int, Pixels] = {}  # of the other positions
        self._dali_gave_up = False

    @property
    def tasks(self) -> list[Task]:
        """See `Job.tasks`."""
        return self._tasks_for(range(len(self._indices)))

    def finish(self) -> None:
        """Nothing is left to do before DALI's part."""

    def result(self) -> Any:
        """This batch itself, for `feed`; what failed is reported by `complete`, behind the batches before it."""
        if not any(self._loaded) and not (self._failures and self._work.on_error == "raise"):
            self._report()
            raise SkipResult
        return self

    def feed(self) -> DaliFeed:
        """What DALI decodes; a tiny image stands for each position that is not its own."""
        encoded, views = [], []
        for position in range(len(self._indices)):
            if position in self._for_dali:
                sample, view = self._for_dali[position]
                encoded.append(np.frombuffer(sample.image.data, np.uint8))
                views.append(view)
            else:
                encoded.append(_tiny_jpeg())
                views.append(_view_of_tiny(self._work.plan))
        return DaliFeed(encoded=encoded, views=Views.of(views), owner=self)

    def __repr__(self) -> str:
        return f"batch {self._number} (samples {self._indices[0]} …)"

    def complete(self, decoded: torch.Tensor | RuntimeError) -> tuple[int, Any, Drawn | None]:
        """The finished batch from DALI's output, uint8 (N, H, W, 3), or decoded here if DALI gave up.

        Raises:
            SkipResult: no image is left.
            DecodeError: an image is damaged, and errors are to be raised.
        """
        if self._failures and self._work.on_error == "raise":
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
        if len(good) < len(self._loaded):
            decoded = decoded[on_device_of(decoded, torch.tensor(good))]
        return self._number, *self._finished(decoded, good)

    def _finished(self, decoded: torch.Tensor, good: Sequence[int]) -> tuple[Any, Drawn | None]:
        work = self._work
        images = decoded.permute(0, 3, 1, 2)
        targets = self._collated_targets(good)
        if not work.leave_uint8:
            return [self._converted(images), targets], None
        images = images.contiguous(memory_format=work.memory_format)
        drawn = self._draw_steps(good)
        if work.device is not None and work.device.type == "cuda" and not images.is_cuda:
            return [self._pinned(images), targets], drawn
        finished = work.finish.apply(images, drawn)
        if finished is decoded or finished._is_view():
            finished = finished.clone()  # DALI's memory must not outlive the next batch; see loaders/dali.py
        return [finished, _moved(targets, finished)], None

    def _converted(self, images: torch.Tensor) -> torch.Tensor:
        """On the host, with the arithmetic of every other backend."""
        work = self._work
        if work.converter.in_place:
            return self._pinned(images)  # type: ignore[no-any-return]
        batch = work.empty_batch(len(images))
        for pixels, place in zip(images.permute(0, 2, 3, 1).numpy(), batch, strict=True):
            work.converter.store(pixels, place)
        return batch

    def _decode(self, samples: Sequence[Sample], views: Sequence[View], times: BatchTimes, failed: list[int]) -> None:
        for sample, view in zip(samples, views, strict=True):
            self._for_dali.pop(sample.position, None)
            if not self._dali_gave_up and is_for_dali(sample.image, view):
                self._for_dali[sample.position] = sample, view
                self._loaded[sample.position] = True
            else:
                with times.stage("decode"):
                    self._decode_here([(sample, view)], failed)

    def _decode_here(self, some: Sequence[tuple[Sample, View]], failed: list[int]) -> None:
        """Decodes on the host and keeps the pixels for `complete`."""
        images, views = [sample.image for sample, _ in some], [view for _, view in some]
        places: list[Pixels] = [np.empty((*view.size, 3), np.uint8) for view in views]
        if self._dali_gave_up:
            statuses = self._work.backend.decode(images, views, places)
        else:
            statuses = [by_pillow(*each) for each in zip(images, views, places, strict=True)]
        for (sample, _), place, status in zip(some, places, statuses, strict=True):
            self._loaded[sample.position] = status is None
            if status is None:
                self._pixels[sample.position] = place
            else:
                self._fail(sample.position, sample.index, status, failed)

    def _decode_singly(self, times: BatchTimes, refusal: RuntimeError) -> torch.Tensor:
        """After DALI gave up on the batch: finds the damaged images; the others are unharmed."""
        self._dali_gave_up = True
        failed: list[int] = []
        with times.stage("decode"):
            self._decode_here(list(self._for_dali.values()), failed)
        if not failed:
            warnings.warn(f"DALI gave up on {self!r}, in which nothing is damaged: {refusal}", stacklevel=2)
        if self._work.on_error == "replace":
            for position in failed:
                self._replace(position, times)
        assert self._work.plan.size is not None
        device = self._work.device if self._work.decodes_on_gpu else None
        return torch.empty((len(self._indices), *self._work.plan.size, 3), dtype=torch.uint8, device=device)


class PipelinedBatches:
    """Yields (number, batch, what is to be drawn on the device) in order, with several batches inside DALI.

    Args:
        work: what all batches share.
        jobs: yields `AheadBatch`.
    """

    def __init__(self, work: ImageWork, jobs: OrderedJobs, *, largest_batch: int) -> None:
        self._jobs = jobs
        self._pid = os.getpid()
        self._dali = DaliPipeline(_Feeds(jobs, work.plan), _format(work, largest_batch))

    def __iter__(self) -> Iterator[tuple[int, Any, Drawn | None]]:
        return self

    def __next__(self) -> tuple[int, Any, Drawn | None]:
        if os.getpid() != self._pid:
            raise PipelineError(
                "this iterator was made in another process; after a fork make a new one with iter(loader)"
            )
        while True:
            try:
                feed, decoded = next(self._dali)
            except BaseException:
                self.close()
                raise
            try:
                return feed.owner.complete(decoded)  # type: ignore[no-any-return]
            except SkipResult:
                continue

    def close(self) -> None:
        """Takes DALI's pipeline down and joins the reading threads.  Harmless when repeated."""
        self._dali.close()
        self._jobs.close()


class _Feeds:
    """What DALI decodes, batch by batch; for one that could not be made something tiny, so that it keeps its place."""

    def __init__(self, jobs: OrderedJobs, plan: Plan) -> None:
        self._jobs, self._plan = jobs, plan

    def __iter__(self) -> Iterator[DaliFeed]:
        return self

    def __next__(self) -> DaliFeed:
        try:
            batch: AheadBatch = next(self._jobs)
        except (StopIteration, PipelineError):
            raise
        except Exception as error:  # noqa: BLE001 - raised at its place, after the batches before it
            return DaliFeed(encoded=[_tiny_jpeg()], views=Views.of([_view_of_tiny(self._plan)]), owner=_Failed(error))
        return batch.feed()


class _Failed:
    """Stands for a batch that could not be made."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def complete(self, decoded: torch.Tensor | RuntimeError) -> None:
        """Raises what went wrong."""
        raise self._error


def _format(work: ImageWork, largest_batch: int) -> DaliFormat:
    options = work.dali
    return DaliFormat(
        interpolation=work.plan.interpolation,
        crops=any(isinstance(op, CenterCrop | RandomCrop) for op in work.plan.ops),
        flips=any(isinstance(op, Flip) for op in work.plan.ops),
        largest_batch=largest_batch,
        threads=options.threads if options.threads is not None else max(1, work.threads),
        prefetch=options.prefetch,
        device_index=index_of(work.device) if work.decodes_on_gpu else None,
        hw_decoder_load=options.hw_decoder_load,
    )


def _moved(targets: Any, images: torch.Tensor) -> Any:
    return map_tensors(targets, lambda tensor: on_device_of(images, tensor))


@cache
def _tiny_jpeg() -> npt.NDArray[np.uint8]:
    return np.frombuffer(pillow.encode_jpeg(pillow.from_pixels(np.zeros((8, 8, 3), np.uint8)), 90), np.uint8)


def _view_of_tiny(plan: Plan) -> View:
    assert plan.size is not None
    height, width = plan.size
    return View(
        window_px=(0, 0, 8, 8),
        resize_px=(width, height),
        crop_px=(0, 0, width, height),
        flip_horizontal=False,
        flip_vertical=False,
        interpolation=plan.interpolation,
    )
