"""One batch of images: read, draw views, decode, convert, transform, collate.  No threads here; see jobs.py."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.profiler import record_function

from fastdata.device.left_to_device import LeftToDevice
from fastdata.device.packed_batch import packed_batch
from fastdata.errors import DamagedOnDevice, DecodeError, ReadError, ViewError
from fastdata.loaders import pillow
from fastdata.loaders.backend import Encoded, Pixels
from fastdata.loaders.fallback import inspect
from fastdata.loaders.pixel_memory import Scratch, as_numpy
from fastdata.loaders.rows import as_pixels, fill_rows, put
from fastdata.pipeline.batch_memory import made_or_refused
from fastdata.pipeline.collate import collate_targets, naming_unlabelled
from fastdata.pipeline.given_numbers import GivenNumbers
from fastdata.pipeline.jobs import SkipResult, Task, stop_if_cancelled
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.sample import Failure, Sample
from fastdata.pipeline.stats import BatchTimes
from fastdata.pipeline.substitutes import none_decoded, substitutes
from fastdata.sources.protocol import file_ranges, location_of, read_targets
from fastdata.tables import PackedRows, Recipes, addresses
from fastdata.views.given import Given
from fastdata.views.plan import Output, Size
from fastdata.views.view import View

__all__ = ["ImageBatch"]


_scratch = Scratch()


class ImageBatch:
    """A pipeline job: one batch.

    The tasks fill disjoint positions, so they share nothing that needs a lock.
    """

    def __init__(
        self, resources: EpochResources, number: int, indices: Sequence[int], occurrences: Sequence[int]
    ) -> None:
        self._resources, self._config, self._number = resources, resources.config, number
        self._asked = list(indices)  # as the sampler gives them, since samples may hold them
        self._indices, self._occurrences = list(map(operator.index, indices)), list(occurrences)
        count = len(self._indices)
        in_place = self._config.fills_batch and resources.batch_decoder is None
        make = partial(resources.empty_batch, count)
        self._images, self._refusal = made_or_refused(make) if in_place else (None, None)
        self._samples: list[Any] = [None] * count
        self._targets: list[Any] = [None] * count
        self._loaded = [False] * count
        self._failures: list[Failure] = []
        self._times: list[BatchTimes] = []
        self._result: Any = None
        self._packed: PackedRows | None = None  # images that the device decodes
        self._given = GivenNumbers(self._config, number, self._indices)
        self._read_ahead: dict[int, Sample | Failure] = {}  # samples that had to be read for their sizes

    @property
    def tasks(self) -> list[Task]:
        """See `Job.tasks`; not kept, or the batch would refer to itself and live until the next garbage collection."""
        return self._load_tasks() if self._config.torchs_workers is None else [self._draw_in_turn]

    def _load_tasks(self) -> list[Task]:
        if self._refusal is not None:
            return [self._refusal.result]
        if self._resources.filler is not None and self._given.is_complete:
            return [self._fill]
        return self._tasks_for(range(len(self._indices)))

    def finish(self) -> None:
        """Collates; see `Job.finish`."""
        if self._failures and self._config.on_error == "raise":
            return
        times = BatchTimes(samples=sum(self._loaded))
        with times.stage("collate"):
            good = [position for position, is_loaded in enumerate(self._loaded) if is_loaded]
            if good:
                self._result = self._collate(good)
            elif not self._indices:  # which torch's default refuses
                self._result = self._config.collate_fn([])
        self._times.append(times)

    def result(self) -> Any:
        """The batch's number, and the collated batch; see `Job.result`."""
        self._report()
        if self._result is None:
            raise SkipResult
        return self._number, self._result

    def _report(self) -> None:
        """Tells the loader's statistics; raises the first failure if failures are to be raised."""
        stats = self._resources.stats
        for times in self._times:
            stats.add(times)
        errors = [failure.take() for failure in sorted(self._failures, key=lambda failure: failure.position)]
        for error in errors:
            stats.add_failure(error)
        self._failures = []
        if errors and self._config.on_error == "raise":
            try:
                raise errors[0]
            finally:  # the error will remember this frame
                del errors, error

    def _draw_in_turn(self) -> Sequence[Task]:
        """Draws the samples' numbers in the batch's turn; returns the tasks that load them."""
        self._given.draw_in_turn(self._size_of_sample if self._refusal is None else None)
        return self._load_tasks()

    def _size_of_sample(self, position: int) -> Size | None:
        index, occurrence = self._indices[position], self._occurrences[position]
        outcome = self._read_ahead[position] = self._read(position, index, occurrence)
        return None if isinstance(outcome, Failure) else (outcome.image.height, outcome.image.width)

    # ---- the whole batch in one task

    def _fill(self) -> Sequence[Task]:
        """Fills the batch by one call; samples that are refused become tasks of their own."""
        filler, images = self._resources.filler, self._images
        assert filler is not None
        assert images is not None
        if (sources := self._sources()) is None:
            return self._tasks_for(range(len(self._indices)))
        with record_function("fastdata.load"):
            given, numbers = self._given.all()
            recipes = Recipes(
                **sources,
                indices=self._indices,
                occurrences=self._occurrences,
                given=numbers,
                effects=self._resources.finish.effects(self._indices, self._occurrences, given),
                format=self._resources.batch_format,
                out=self._addresses(),
                packed=self._config.decodes_packed,
            )
            filled = filler.fill(recipes)
        self._packed = filled.packed
        good = np.ones(len(images), np.bool_)
        good[list(filled.refused)] = False
        self._read_targets_of(good)
        self._loaded = good.tolist()
        times = BatchTimes(seconds={"read": filled.read_s, "decode": filled.decode_s})
        times.encoded_bytes, times.cached = int(filled.read_bytes[good].sum()), filled.cached
        self._times.append(times)
        return self._tasks_for(sorted(filled.refused))

    def _sources(self) -> dict[str, Any] | None:
        """The columns of `Recipes` that say where the images are; None for listed images that are no longer alike."""
        arrays = self._config.arrays
        if arrays is not None:
            found = arrays.pixels(self._indices)
            return None if found is None else dict(zip(("array", "rows"), found, strict=True))
        files = file_ranges(self._config.source, self._indices)
        return {name: getattr(files, name) for name in ("paths", "offsets", "lengths", "crcs")}

    def _read_targets_of(self, good: npt.NDArray[np.bool_]) -> None:
        if good.all():
            self._targets[:] = read_targets(self._config.source, self._asked)
            return
        for position in np.flatnonzero(good).tolist():
            self._targets[position] = self._config.source.read_target(self._asked[position])

    # ---- some samples in one task

    def _tasks_for(self, positions: Sequence[int]) -> list[Task]:
        step = self._config.task_size(len(positions))
        return [partial(self._load_some, positions[start : start + step]) for start in range(0, len(positions), step)]

    def _load_some(self, positions: Sequence[int]) -> None:
        times = BatchTimes()
        self._failures += (failures := self._load(zip(positions, *self._samples_at(positions), strict=True), times))
        if self._config.on_error == "replace":
            for failure in failures:
                self._replace(failure, times)
        self._times.append(times)

    def _load(self, places: Iterable[tuple[int, int, int]], times: BatchTimes) -> list[Failure]:
        """Loads samples, given as (position, index, occurrence), into their positions and returns what failed."""
        with times.stage("read"):
            outcomes = []
            for place in places:
                stop_if_cancelled()
                outcomes.append(self._read_ahead.pop(place[0]) if place[0] in self._read_ahead else self._read(*place))
        failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)]
        times.encoded_bytes += sum(len(sample.image.data) for sample in samples)
        with times.stage("view"):
            seen, unseen = self._draw(samples)
        failures += unseen
        if seen:
            failures += self._decode([sample for sample, _ in seen], [view for _, view in seen], times)
        return failures

    def _read(self, position: int, index: int, occurrence: int) -> Sample | Failure:
        try:
            data = self._encoded(position, index)
        except OSError as error:
            return self._failure(position, index, error, kind=ReadError)
        try:
            image = self._inspect(position, data)
        except Exception as error:  # noqa: BLE001 - Pillow's plugins raise many kinds
            return self._failure(position, index, error)
        self._targets[position] = self._config.source.read_target(index)
        return Sample(position, index, occurrence, image)

    def _encoded(self, position: int, index: int) -> Any:
        """The file's bytes of a sample."""
        return self._config.source.read_encoded(index)

    def _inspect(self, position: int, data: Any) -> Encoded:
        """An encoded image with its header; raises what Pillow raises."""
        return inspect(data)

    def _samples_at(self, positions: Sequence[int]) -> tuple[list[int], list[int]]:
        """Indices and occurrences of the samples at these positions."""
        return [self._indices[at] for at in positions], [self._occurrences[at] for at in positions]

    def _draw(self, samples: Sequence[Sample]) -> tuple[list[tuple[Sample, View]], list[Failure]]:
        """Samples with their views, and those that the transform cannot see (smaller than a crop)."""
        if not samples:
            return [], []
        try:
            asked = [(s.position, s.index, s.occurrence, (s.image.width, s.image.height)) for s in samples]
            views = self._given.views(asked)
            return list(zip(samples, views, strict=True)), []
        except ValueError as error:
            if len(samples) == 1:
                return [], [self._failure(samples[0].position, samples[0].index, error, kind=ViewError)]
        singly = [self._draw([sample]) for sample in samples]
        return [pair for seen, _ in singly for pair in seen], [each for _, unseen in singly for each in unseen]

    def _decode(self, samples: Sequence[Sample], views: Sequence[View], times: BatchTimes) -> list[Failure]:
        """Decodes samples into the batch or, where their transform goes on, into memory of this thread's."""
        into_batch = self._images is not None and self._config.plan.in_one_pass
        places = [] if into_batch else self._places(views)
        recipes = as_pixels([sample.image for sample in samples], views, places)
        if into_batch:
            recipes = replace(
                recipes,
                effects=self._resources.finish.effects(*_ids_of(samples), self._given_to(samples)),
                format=self._resources.batch_format,
                out=self._addresses()[[sample.position for sample in samples]],
            )
        with times.stage("decode"):
            errors = fill_rows(self._resources.part_filler, recipes)
        failures = [self._failure(samples[row].position, samples[row].index, error) for row, error in errors.items()]
        good = [row for row in range(len(samples)) if row not in errors]
        if not into_batch:
            decoded = [(samples[row], views[row], places[row]) for row in good]
            return failures + self._go_on(decoded, times)
        for row in good:
            self._loaded[samples[row].position] = True
        return failures

    def _places(self, views: Sequence[View]) -> list[Pixels]:
        """Arrays to decode images to, valid until this thread's next call."""
        sizes = [view.size for view in views]
        flat = _scratch.take(sum(3 * height * width for height, width in sizes))
        places, at = [], 0
        for height, width in sizes:
            places.append(flat[at : at + 3 * height * width].reshape(height, width, 3))
            at += 3 * height * width
        return places

    def _addresses(self) -> npt.NDArray[np.uint64]:
        """The address of each image in the batch."""
        images = self._images
        assert images is not None
        return addresses(images.data_ptr(), images.stride(0) * images.element_size(), len(images))

    def _given_to(self, samples: Sequence[Sample]) -> list[Given | None] | None:
        return self._given.of([(sample.position, sample.index) for sample in samples])

    def _go_on(self, decoded: Sequence[tuple[Sample, View, Pixels]], times: BatchTimes) -> list[Failure]:
        """Does the steps after the first view, and stores or keeps the results."""
        failures, good = [], []
        samples = [sample for sample, *_ in decoded]
        places, given = [pixels for *_, pixels in decoded], self._given_to(samples)
        finished = self._resources.finish.augmented(places, *_ids_of(samples), given=given)
        for (sample, view, _), pixels in zip(decoded, finished, strict=True):
            if isinstance(pixels, ValueError):
                failures.append(self._failure(sample.position, sample.index, pixels, kind=ViewError))
            else:
                good.append((sample, view, pixels))
        if self._images is None:
            self._make_samples(good, times)
            return failures
        with times.stage("convert"):
            for sample, _, pixels in good:
                put(pixels, self._images[sample.position].data_ptr(), self._resources.batch_format)
                self._loaded[sample.position] = True
        return failures

    def _make_samples(self, good: Sequence[tuple[Sample, View, Pixels]], times: BatchTimes) -> None:
        with times.stage("convert"):
            objects = [self._as_object(*each) for each in good]
        with times.stage("transform"):
            samples = [sample for sample, *_ in good]
            erased = self._resources.finish.erased(*_ids_of(samples), self._given_to(samples))
            for (sample, *_), value, own in zip(good, objects, erased, strict=True):
                for each in own:
                    each.apply(value)
                self._samples[sample.position] = value
                self._loaded[sample.position] = True

    def _as_object(self, sample: Sample, view: View, pixels: Pixels) -> Any:
        """Image as torchvision gives it after the fused prefix (PIL image, array or tensor), owning its memory."""
        plan = self._config.plan
        if plan.output is Output.PIL:
            return pillow.as_seen(sample.image.data, view, pixels)
        if plan.output is Output.NUMPY:
            return as_numpy(pixels.copy())
        if plan.output is Output.UINT8:
            tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        else:
            tensor = torch.empty((3, *pixels.shape[:2]), dtype=self._resources.sample_levels.dtype)
            put(pixels, tensor.data_ptr(), self._resources.sample_format)
        return tensor if plan.tensor_class is None else tensor.as_subclass(plan.tensor_class)

    # ---- failures

    def _failure(
        self, position: int, index: int, reason: Exception, *, kind: type[DecodeError] = DecodeError
    ) -> Failure:
        location = location_of(self._config.source, index)
        error = kind.because(reason, index=index, location=location, backend=self._config.backend.name)
        return Failure(position, error)

    def _replace(self, failure: Failure, times: BatchTimes) -> None:
        """Loads another sample in place of one that failed, the same one in every run."""
        position, order = failure.position, self._config.order
        index, occurrence = self._indices[position], self._occurrences[position]
        candidates = order.candidates() if order is not None else self._indices
        for substitute in substitutes(candidates, index, self._config.key):
            if not self._load([(position, substitute, occurrence)], times):  # else told where its own turn comes
                self._indices[position] = substitute  # for what is drawn later
                return
        raise failure.take() from none_decoded()

    # ---- the whole batch

    def _collate(self, good: Sequence[int]) -> Any:
        if self._images is None:
            samples = [(self._samples[position], self._targets[position]) for position in good]
            return self._pinned(self._config.collate_fn(samples))
        if self._config.decodes_packed:
            return self._config.batch_of(self._left_to_device(good), self._collated_targets(good))
        images = self._images if len(good) == len(self._loaded) else self._pinned(self._images[list(good)])
        finish, drawn_for = self._resources.finish, self._drawn_for(good)
        if not self._config.leave_uint8:
            finish.erase(images, *drawn_for)
        else:
            run = finish.on_batch(*drawn_for).run
            images = LeftToDevice(images, run) if self._config.on_gpu else run(images)
        return self._config.batch_of(images, self._collated_targets(good))

    def _left_to_device(self, good: Sequence[int]) -> LeftToDevice:
        """The images, which the device decodes."""
        config, resources, plan = self._config, self._resources, self._config.plan
        assert self._images is not None
        levelled = plan.output is Output.FLOAT and not plan.augmentations
        with resources.pinning():
            arena, decoded = packed_batch(
                self._packed,
                self._images.permute(0, 2, 3, 1),
                good,
                levels=resources.sample_levels.table() if levelled else None,
                memory_format=config.memory_format,
                pin=config.pin,
            )
        then = resources.finish.on_batch(*self._drawn_for(good), levelled=levelled)
        self._packed = self._images = None
        indices = [self._indices[position] for position in good]
        return decoded.of(arena, then.run, lambda rows: self._failed_on_device([indices[row] for row in rows]))

    def _failed_on_device(self, indices: Sequence[int]) -> DecodeError:
        index = min(indices)
        error = DamagedOnDevice(index=index, location=location_of(self._config.source, index))
        self._resources.stats.add_failure(error)
        return error

    def _collated_targets(self, good: Sequence[int]) -> Any:
        targets = [self._targets[position] for position in good]
        with naming_unlabelled(self._config.source, [self._indices[position] for position in good], targets):
            return self._pinned(collate_targets(self._config.collate_fn, targets))

    def _drawn_for(self, good: Sequence[int]) -> tuple[list[int], list[int], Sequence[Given | None] | None]:
        """Indices and occurrences of the samples that are left, and the numbers that were drawn for them already."""
        return *self._samples_at(good), self._given.of([(position, self._indices[position]) for position in good])

    def _pinned(self, batch: Any) -> Any:
        if not self._config.pin:
            return batch
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(batch)  # type: ignore[no-untyped-call]


def _ids_of(samples: Sequence[Sample]) -> tuple[list[int], list[int]]:
    """Indices and occurrences of samples."""
    return [sample.index for sample in samples], [sample.occurrence for sample in samples]
