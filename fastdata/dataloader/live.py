"""The image pipeline with num_workers=0: what the training loop changes counts from the next batch on.

As with torch, samples are made in the loop's own thread when a batch is asked for, from the dataset as it is then: with
a new transform, another size in it, other samples or indices of a Subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fastdata.dataloader.map_style import Samples
from fastdata.dataloader.record import EpochRecord
from fastdata.dataloader.routes import Route, find_route
from fastdata.lazy.batch_messages import SampleOrder
from fastdata.lazy.complete import Completion, FetchedBatch
from fastdata.lazy.fetch import SampleFetcher
from fastdata.pipeline.collate import is_known_collation
from fastdata.pipeline.image_batch import ImageBatch
from fastdata.pipeline.jobs import Job
from fastdata.pipeline.resources import EpochResources
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource, NotASource
from fastdata.sources.recognise import has_target_transform, makes_samples, recognise
from fastdata.sources.samples import samples_of
from fastdata.transforms.settings import TransformSnapshot
from fastdata.views.philox import Key

__all__ = ["LiveJobs"]


class LiveJobs:
    """Yields a pipeline job for each batch of an epoch, made by the route that fits the dataset when it is asked for.

    Args:
        samples: parts of the loader that make samples.
        route: route through the image pipeline when the epoch begins.
        resources: resources of that route; closed here, as all others.
        record: record of the epoch.
        key: seed and epoch.
        open_resources: opens what the batches of a route share.
    """

    def __init__(
        self,
        samples: Samples,
        route: Route,
        resources: EpochResources,
        record: EpochRecord,
        key: Key,
        open_resources: Callable[[Route], EpochResources],
    ) -> None:
        self._samples, self._record, self._key, self._open_resources = samples, record, key, open_resources
        self._own_code: tuple[Completion, SampleFetcher] | None = None
        self._take(route, resources)

    def __iter__(self) -> Iterator[Job]:
        batches = self._record.batches
        assert batches is not None
        for number, indices in enumerate(batches):
            occurrences = batches.occurrences_of(indices)
            if not self._is_as_it_was():
                self._close_resources()
                route = find_route(self._samples.arguments)
                self._take(route, None if route.plan is None else self._open_resources(route))
            if self._resources is not None and self._has_images(indices):
                yield ImageBatch(self._resources, number, indices, occurrences)
            else:
                yield FetchedBatch(*self._dataset_code(), SampleOrder(number, indices, occurrences, self._key))

    def close(self, ended: bool = True) -> None:
        """Closes what is open."""
        self._close_resources(ended)
        if self._own_code is not None:
            self._own_code[0].close(ended)

    def _take(self, route: Route, resources: EpochResources | None) -> None:
        """Goes on with a route, and notes what it depends on."""
        self._resources, self._source = resources, route.source
        self._transform = getattr(route.source, "transform", None)
        self._snapshot = TransformSnapshot(self._transform)
        self._is_known_collation = is_known_collation(self._samples.arguments.collate_fn)

    def _close_resources(self, ended: bool = True) -> None:
        resources, self._resources = self._resources, None
        if resources is not None:
            resources.close(ended)

    def _has_images(self, indices: Sequence[int]) -> bool:
        """True unless images of a list, which the loop may have exchanged, are no longer alike."""
        try:
            return not isinstance(self._source, ArraySource) or self._source.holds(indices)
        except (LookupError, TypeError):  # of an index, which is met again
            return True

    def _is_as_it_was(self) -> bool:
        """True if the route is still the right one; costs some microseconds."""
        arguments = self._samples.arguments
        if self._source is None:
            return False
        try:
            now: ImageSource = recognise(arguments.dataset)
            is_same = bool(now == self._source)
        except (NotASource, ValueError):  # arrays of indices are not compared as a whole
            return False
        return (
            is_same
            and now.transform is self._transform
            and self._snapshot.is_current()
            and not (makes_samples(arguments.dataset) and has_target_transform(now))
            and is_known_collation(arguments.collate_fn) == self._is_known_collation
        )

    def _dataset_code(self) -> tuple[Completion, SampleFetcher]:
        """Completion of batches made by the dataset's own code, and the fetcher of their samples."""
        if self._own_code is None:
            samples = self._samples
            fetcher = SampleFetcher(samples_of(samples.arguments.dataset), True, samples.collate_fn, False)
            completion = samples.completion(self._record, lambda _, request: fetcher.fetch(request))
            self._own_code = completion, fetcher
        return self._own_code
