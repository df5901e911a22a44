"""One batch of images: read, look, decode, convert, transform, collate.  No threads here; see pipeline.py."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import record_function
from torch.utils.data import default_collate

from fastdata.draws import philox4x32
from fastdata.errors import DecodeError, PipelineError, ReadError, ViewError
from fastdata.finish import Drawn
from fastdata.image_work import ImageWork
from fastdata.loaders import Encoded, pillow
from fastdata.loaders.backend import Pixels, Scratch
from fastdata.loaders.synthetic import SyntheticBackend
from fastdata.native import Status
from fastdata.pipeline import SkipResult, Task, stop_if_cancelled
from fastdata.plan import Output
from fastdata.seeded import SeededDraws
from fastdata.sources import file_ranges, location_of, read_targets
from fastdata.stats import BatchTimes
from fastdata.views import View, Views, draw_views

__all__ = ["ImageBatch", "ReadyBatch", "Sample"]

_SUBSTITUTES_TRIED = 16
# Numbers of generator streams; a plan's operations are numbered from 0, its augmentations from 4000.
_STREAM_TAIL, _STREAM_COLLATE, _STREAM_SUBSTITUTE, _STREAM_TARGET = 1001, 1002, 1003, 1004


@dataclass(frozen=True)
class Sample:
    """A sample that has been read: where it goes in the batch, which it is, what it looks like."""

    position: int
    index: int
    copy: int
    image: Encoded


_scratch = Scratch()


class ImageBatch:
    """A pipeline job: one batch.

    The tasks fill disjoint positions, so they share nothing that needs a lock.
    """

    def __init__(self, work: ImageWork, number: int, indices: Sequence[int], copies: Sequence[int]) -> None:
        self._work, self._number = work, number
        self._steps, self._target_turn = work.steps, work.target_turn  # made here, in the consumer's thread
        self._indices, self._copies = list(map(operator.index, indices)), list(copies)
        count = len(self._indices)
        self._images = work.empty_batch(count) if work.in_place and not work.pipelined else None
        self._samples: list[Any] = [None] * count
        self._targets: list[Any] = [None] * count
        self._loaded = [False] * count
        self._failures: list[tuple[int, DecodeError]] = []
        self._times: list[BatchTimes] = []
        self._result: Any = None
        self._drawn: Drawn | None = None

    @property
    def tasks(self) -> list[Task]:
        """See `Job.tasks`; not kept, or the batch would refer to itself and live until the next garbage collection."""
        return [self._load_files] if self._work.file_loader is not None else self._tasks_for(range(len(self._indices)))

    def finish(self) -> None:
        """Collates; see `Job.finish`."""
        if self._failures and self._work.on_error == "raise":
            return
        times = BatchTimes()
        with times.stage("collate"):
            good: Sequence[int] = range(len(self._loaded))
            if not all(self._loaded):
                good = [position for position in good if self._loaded[position]]
            if good:
                self._result = self._collate(good)
        self._times.append(times)

    def result(self) -> Any:
        """The batch's number, the collated batch, and what is drawn for steps left to the device; see `Job.result`."""
        self._report()
        if self._result is None:
            raise SkipResult
        return self._number, self._result, self._drawn

    def _report(self) -> None:
        """Tells the loader's statistics; raises the first failure if failures are to be raised."""
        stats = self._work.stats
        for times in self._times:
            stats.add(times)
        for _, error in sorted(self._failures, key=lambda failure: failure[0]):
            stats.add_failure(error.index, error.location, error.reason)
        if self._failures and self._work.on_error == "raise":
            raise min(self._failures, key=lambda failure: failure[0])[1]

    # ---- the whole batch in one task

    def _load_files(self) -> Sequence[Task]:
        """Files to the batch inside the backend; what it leaves over becomes tasks of its own."""
        work, times = self._work, BatchTimes()
        assert work.file_loader is not None
        assert self._images is not None
        with record_function("fastdata.load"):
            files = file_ranges(work.source, self._indices)
            places = files.paths, files.offsets, files.lengths
            out = self._images.data_ptr()
            loaded = work.file_loader.load(*places, self._indices, self._copies, out, crcs=files.crcs)
        good = loaded.results.statuses == Status.OK
        if good.all():
            self._targets[:] = self._read_targets(self._indices, self._copies)
        else:
            for position in np.flatnonzero(good).tolist():
                self._targets[position] = self._read_target(self._indices[position], self._copies[position])
        self._loaded = good.tolist()
        times.seconds.update(read=loaded.read_s, decode=loaded.decode_s)
        times.samples, times.encoded_bytes = int(good.sum()), int(loaded.data_bytes[good].sum())
        self._times.append(times)
        return self._tasks_for(np.flatnonzero(~good).tolist())

    # ---- some samples in one task

    def _tasks_for(self, positions: Sequence[int]) -> list[Task]:
        step = self._work.task_size(len(positions))
        return [partial(self._load_some, positions[start : start + step]) for start in range(0, len(positions), step)]

    def _load_some(self, positions: Sequence[int]) -> None:
        times = BatchTimes()
        indices, copies = ([column[position] for position in positions] for column in (self._indices, self._copies))
        failed = self._load(positions, indices, copies, times)
        if self._work.on_error == "replace":
            for position in failed:
                self._replace(position, times)
        self._times.append(times)

    def _load(
        self, positions: Sequence[int], indices: Sequence[int], copies: Sequence[int], times: BatchTimes
    ) -> list[int]:
        """Loads samples into their positions and returns the positions that failed."""
        failed: list[int] = []
        with times.stage("read"):
            samples = []
            for place in zip(positions, indices, copies, strict=True):
                stop_if_cancelled()
                if (sample := self._read(*place, failed)) is not None:
                    samples.append(sample)
        times.samples += len(samples)
        times.encoded_bytes += sum(len(sample.image.data) for sample in samples)
        with times.stage("view"):
            samples, views = self._draw(samples, failed)
        if samples:
            self._decode(samples, views, times, failed)
        return failed

    def _read(self, position: int, index: int, copy: int, failed: list[int]) -> Sample | None:
        try:
            data = self._work.source.read_encoded(index)
        except OSError as error:
            self._fail(position, index, error, failed, kind=ReadError)
            return None
        try:
            image = Encoded.of(data)
        except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds
            self._fail(position, index, error, failed)
            return None
        self._targets[position] = self._read_target(index, copy)
        return Sample(position, index, copy, image)

    def _read_target(self, index: int, copy: int) -> Any:
        return self._read_targets([index], [copy])[0]

    def _read_targets(self, indices: Sequence[int], copies: Sequence[int]) -> list[Any]:
        work = self._work
        if not work.draws_targets:
            return read_targets(work.source, indices)
        targets = []
        for index, seed in zip(indices, self._seeds(indices, copies, _STREAM_TARGET), strict=True):
            stop_if_cancelled()
            with self._target_turn, SeededDraws(seed):
                targets.append(work.source.read_target(index))
        return targets

    def _draw(self, samples: list[Sample], failed: list[int]) -> tuple[list[Sample], list[View]]:
        """Views of samples, without those that the transform cannot see (smaller than a crop)."""
        if not samples:
            return [], []
        sizes = np.array([(sample.image.width, sample.image.height) for sample in samples])
        try:
            return samples, self._draw_views(sizes, *np.array([(s.index, s.copy) for s in samples]).T).rows()
        except ValueError as error:
            if len(samples) == 1:
                self._fail(samples[0].position, samples[0].index, error, failed, kind=ViewError)
                return [], []
        singly = [self._draw([sample], failed) for sample in samples]
        return [s for good, _ in singly for s in good], [view for _, views in singly for view in views]

    def _draw_views(
        self, sizes_px: npt.NDArray[Any], indices: npt.NDArray[np.int64], copies: npt.NDArray[np.int64]
    ) -> Views:
        plan, key = self._work.plan, self._work.key
        sizes_px = sizes_px.astype(np.int64)
        return draw_views(plan.ops, sizes_px, indices, key=key, copies=copies, interpolation=plan.interpolation)

    def _decode(self, samples: Sequence[Sample], views: Sequence[View], times: BatchTimes, failed: list[int]) -> None:
        places = self._places(samples, views)
        with times.stage("decode"):
            statuses = self._work.backend.decode([sample.image for sample in samples], views, places)
        good = []
        for sample, view, place, status in zip(samples, views, places, statuses, strict=True):
            if status is None:
                good.append((sample, view, place))
            else:
                self._fail(sample.position, sample.index, status, failed)
        if self._images is not None:
            self._convert_into_batch(good, times)
        else:
            self._make_samples(good, times)

    def _places(self, samples: Sequence[Sample], views: Sequence[View]) -> list[Pixels]:
        """Where each image is decoded to: the batch itself if it is uint8 in channels_last, else scratch memory."""
        if self._images is not None and self._work.converter.in_place:
            rows = self._images.permute(0, 2, 3, 1).numpy()
            return [rows[sample.position] for sample in samples]
        sizes = [view.size for view in views]
        flat = _scratch.take(sum(3 * height * width for height, width in sizes))
        places, at = [], 0
        for height, width in sizes:
            places.append(flat[at : at + 3 * height * width].reshape(height, width, 3))
            at += 3 * height * width
        return places

    def _convert_into_batch(self, good: Sequence[tuple[Sample, View, Pixels]], times: BatchTimes) -> None:
        assert self._images is not None
        with times.stage("convert"):
            if not self._work.converter.in_place:
                for sample, _, pixels in good:
                    self._work.converter.store(pixels, self._images[sample.position])
        for sample, *_ in good:
            self._loaded[sample.position] = True

    def _make_samples(self, good: Sequence[tuple[Sample, View, Pixels]], times: BatchTimes) -> None:
        plan = self._work.plan
        with times.stage("convert"):
            objects = [self._as_object(*each) for each in good]
        *tail, _ = self._steps.of_this_thread()
        with times.stage("transform"):
            seeds = self._seeds([s.index for s, *_ in good], [s.copy for s, *_ in good], _STREAM_TAIL)
            for (sample, *_), value, seed in zip(good, objects, seeds, strict=True):
                if plan.tail:
                    stop_if_cancelled()
                    with SeededDraws(seed):
                        for step in tail:
                            value = step(value)
                self._samples[sample.position] = value
                self._loaded[sample.position] = True

    def _as_object(self, sample: Sample, view: View, pixels: Pixels) -> Any:
        """What torchvision would have at the end of the fused prefix, owning its memory."""
        plan = self._work.plan
        if plan.output is Output.PIL:
            return pillow.as_seen(sample.image.data, view, pixels)
        if plan.output is Output.UINT8:
            tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        else:
            tensor = torch.empty((3, *pixels.shape[:2]), dtype=self._work.sample_converter.dtype)
            self._work.sample_converter.store(pixels, tensor)
        return tensor if plan.tensor_class is None else tensor.as_subclass(plan.tensor_class)

    # ---- failures

    def _fail(
        self, position: int, index: int, reason: Exception, failed: list[int], *, kind: type[DecodeError] = DecodeError
    ) -> None:
        failed.append(position)
        location = location_of(self._work.source, index)
        error = kind.because(reason, index=index, location=location, backend=self._work.backend.name)
        self._failures.append((position, error))

    def _replace(self, position: int, times: BatchTimes) -> None:
        """Loads another of the epoch's samples in place of one that failed, the same one in every run."""
        index, copy = self._indices[position], self._copies[position]
        candidates = self._work.order.candidates(self._number) if self._work.order is not None else self._indices
        original = next(error for place, error in self._failures if place == position)
        for seed in self._seeds([index] * _SUBSTITUTES_TRIED, range(_SUBSTITUTES_TRIED), _STREAM_SUBSTITUTE):
            substitute = operator.index(candidates[seed % len(candidates)])
            if not self._load([position], [substitute], [copy], times):
                return
        raise original from PipelineError(f"{_SUBSTITUTES_TRIED} substitutes could not be decoded either")

    def _seeds(self, indices: Sequence[int], copies: Sequence[int], stream: int) -> list[int]:
        counter = (np.array(indices, np.int64), np.array(list(copies), np.int64), 0, stream)
        words: list[npt.NDArray[np.uint64]] = philox4x32(counter, self._work.key.words())
        return [int(high) << 31 | int(low) >> 1 for high, low in zip(words[0], words[1], strict=True)]

    # ---- the whole batch

    def _collate(self, good: Sequence[int]) -> Any:
        if self._images is None:
            samples = [(self._samples[position], self._targets[position]) for position in good]
            collate_fn = self._steps.of_this_thread()[-1]
            with SeededDraws(self._seeds([self._number], [0], _STREAM_COLLATE)[0]):
                return self._pinned(collate_fn(samples))
        images = self._images if len(good) == len(self._loaded) else self._pinned(self._images[list(good)])
        if self._work.leave_uint8:
            drawn = self._draw_steps(good)
            if self._work.on_gpu:
                self._drawn = drawn
            else:
                images = self._work.finish.apply(images, drawn)
        return [images, self._collated_targets(good)]

    def _collated_targets(self, good: Sequence[int]) -> Any:
        whole = len(good) == len(self._loaded)
        # A tuple, as default_collate transposes samples.
        targets = tuple(self._targets if whole else [self._targets[position] for position in good])
        return self._pinned(default_collate(targets))  # type: ignore[arg-type]

    def _draw_steps(self, good: Sequence[int]) -> Drawn:
        """What is drawn for the batch's augmentations, by sample."""
        if not self._work.plan.augments:
            return ()
        columns = ([column[position] for position in good] for column in (self._indices, self._copies))
        return self._work.finish.draw(*columns)

    def _pinned(self, batch: Any) -> Any:
        if not self._work.pin:
            return batch
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(batch)  # type: ignore[no-untyped-call]


class ReadyBatch:
    """A pipeline job of the synthetic backend: the same noise for every batch, with the true targets.

    It shows what a run costs when images are free.  The caller must not write to the images, since every batch of
    one length is the same memory.
    """

    tasks: tuple[Task, ...] = ()

    def __init__(self, work: ImageWork, number: int, indices: Sequence[int], copies: Sequence[int]) -> None:
        assert isinstance(work.backend, SyntheticBackend)
        self._number = number
        images = work.backend.ready(len(indices), work.finished_empty_batch)
        targets = tuple(read_targets(work.source, indices))
        self._batch = [images, default_collate(targets)]  # type: ignore[arg-type]

    def finish(self) -> None:
        """Nothing is left to do."""

    def result(self) -> tuple[int, Any, None]:
        """The batch's number and the batch, finished."""
        return self._number, self._batch, None
