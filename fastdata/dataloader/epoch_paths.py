"""Iterators of one epoch on each path: torch's own iterators, threads for a dataset's code, the image pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fastdata.dataloader.arguments import LoaderArguments, may_pin
from fastdata.dataloader.iterators import Closable, EpochIterator, Numbered
from fastdata.dataloader.live import LiveJobs
from fastdata.dataloader.map_style import Samples
from fastdata.dataloader.prepare import pipeline_config
from fastdata.dataloader.record import EpochRecord
from fastdata.dataloader.routes import Route
from fastdata.dataloader.stateful import StatefulEpochs
from fastdata.dataloader.verdict import Findings
from fastdata.dataloader.worker_states import WorkerStates
from fastdata.device.prefetch import DevicePrefetcher
from fastdata.loaders import warn_without_native
from fastdata.pipeline.build import open_pipeline
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.torchs_workers import TorchsWorkers
from fastdata.sources.recognise import frozen
from fastdata.views.philox import Key

__all__ = ["EpochPaths"]


class EpochPaths(StatefulEpochs):
    """The part of a DataLoader that opens the iterator of an epoch; expects torch's attributes and methods."""

    pin_memory: bool
    prefetch_factor: int | None
    timeout: float
    progress: bool
    _device: torch.device | None
    _findings: Findings
    _kept_route: Route | None

    def _arguments(self) -> LoaderArguments:
        raise NotImplementedError

    def _samples(self, route: Route) -> Samples:
        on_gpu = self._device is not None and self._device.type == "cuda"
        return Samples(
            self._arguments(),
            self._stats,
            self._findings,
            route=route,
            device=self._device,
            pin=self.pin_memory or on_gpu,
        )

    def _iterate_torch(self) -> EpochIterator:
        inner: Any = super().__iter__()  # type: ignore[misc] # that of `_get_iterator`
        ahead = self.num_workers == 0 and self._device is not None and self._device.type != "cpu"
        return self._epoch(self._to_device(Numbered(inner, ahead=ahead)), inner.record)

    def _iterate_images(self, route: Route) -> EpochIterator:
        if self.num_workers:
            route = self._as_workers_see_it(route)
        record = self.begin_epoch(by_torchs_code=False)
        assert record.batches is not None
        warn_without_native()
        base_seed = self._draw_base_seed()
        record.restore_globals()
        key = Key(seed=self._view_seed(record.batches, base_seed), epoch=record.start.epoch)
        if route.plan is not None and route.plan.following is not None:
            self._follow_torchs_workers(record, base_seed)
        open_resources = partial(self._open_resources, record=record, key=key)
        resources = open_resources(route)
        if self.num_workers or resources.batch_decoder is not None or resources.ready_batches is not None:
            depth = max(1, self.prefetch_factor or 1)
            size = getattr(self.batch_sampler, "batch_size", None)
            pipeline = open_pipeline(resources, record.batches, depth=depth, timeout_s=self.timeout, batch_size=size)
        else:
            jobs = LiveJobs(self._samples(route), route, resources, record, key, open_resources)
            pipeline = OrderedJobs(jobs, threads=0, depth=1, timeout_s=self.timeout, on_close=jobs.close)
        batches = pipeline if resources.decodes_on_gpu else self._to_device(pipeline)
        return self._epoch(batches, record, pipeline)

    def _epoch(
        self,
        inner: Iterator[tuple[Any, ...]],
        record: EpochRecord,
        pipeline: Closable | None = None,
    ) -> EpochIterator:
        return EpochIterator(
            inner,
            record=record,
            stats=self._stats,
            length=self._length(),
            progress=self.progress,
            leaves_out=self.on_error != "raise",
            pipeline=pipeline,
        )

    def _as_workers_see_it(self, route: Route) -> Route:
        """A route whose source is as it is now; persistent workers would keep that of their first epoch."""
        assert route.source is not None
        if not self.persistent_workers:
            return replace(route, source=frozen(route.source))
        if self._kept_route is None:
            self._kept_route = replace(route, source=frozen(route.source))
        return self._kept_route

    def _open_resources(self, route: Route, record: EpochRecord, key: Key) -> EpochResources:
        on_gpu = self._device is not None and self._device.type == "cuda"
        config = pipeline_config(
            self._arguments(),
            route,
            self._findings,
            key=key,
            device=self._device,
            pin=may_pin(self.pin_memory or on_gpu),
            order=record.batches,
            torchs_workers=record.workers,
        )
        return EpochResources(config, stats=self._stats)

    def _follow_torchs_workers(self, record: EpochRecord, base_seed: int) -> None:
        """Opens the generators that torch's worker processes would have; their states are in the record's."""
        self._warn_of_other_draws(record.start)
        assert record.batches is not None
        seed = record.worker_seed if record.worker_seed is not None else base_seed
        record.batches.state = replace(record.batches.state, worker_seed=seed)
        before = WorkerStates(self.num_workers, record.start.worker_states)
        record.workers = TorchsWorkers(
            self.num_workers,
            seed,
            first=before.first,
            resumed=before.resumed(),
            delivered=lambda: record.delivered_batches,
        )

    def _length(self) -> int | None:
        try:
            return len(self)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # a custom batch sampler or iterable dataset need not have one
            return None

    def _to_device(self, numbered: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Copies (number, batch, …) ahead."""
        if self._device is None or self._device.type == "cpu":
            return numbered
        return iter(DevicePrefetcher(numbered, self._device))
