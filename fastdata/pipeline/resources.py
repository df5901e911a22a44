"""Resources that the batches of one epoch share: memory, threads of the native core, copies of callables."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from fastdata import limits, native
from fastdata.device.prefetch import index_of
from fastdata.loaders import create_backend
from fastdata.loaders.backend import Filler
from fastdata.loaders.batch_decoder import BatchDecoder, BatchEffects, ReadyBatches
from fastdata.native import FileReader, Options, PassOrder, Pool
from fastdata.pipeline.batch_memory import BatchMemory
from fastdata.pipeline.cached_filler import CachedFiller
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.postprocess import Finish
from fastdata.pipeline.stats import PipelineStats
from fastdata.sources.recognise import has_file_ranges
from fastdata.system import cuda
from fastdata.views.levels import UINT8, Levels, stored_format
from fastdata.views.philox import Key
from fastdata.views.plan import Output, Plan

__all__ = ["EpochResources", "WholeBatchDecoding"]

_TRIED_FIRST, _TRIED = 16, 1024  # samples for which effects are drawn to see which kinds occur


@dataclass(frozen=True)
class WholeBatchDecoding:
    """The work of a backend's pipeline of whole batches in an epoch.

    Attributes:
        decoder: the backend's decoder; None where images are decoded one by one.
        on_gpu: it decodes on the device where batches go.
        effects: the augmentations of whole batches that it does; None where torch does them.
    """

    decoder: BatchDecoder | None
    on_gpu: bool
    effects: BatchEffects | None

    @classmethod
    def of(cls, config: PipelineConfig) -> WholeBatchDecoding:
        """Decides it for a configuration."""
        plan, backend = config.plan, config.backend
        whole = config.fills_batch and plan.in_one_pass and config.arrays is None and not plan.effects
        decoder = backend.batch_decoder() if whole else None
        if decoder is None or not decoder.suits(plan):
            return cls(None, False, None)
        on_gpu = config.on_gpu and config.decode_device == "mixed" and "mixed" in backend.decode_devices
        beside = config.on_gpu and not on_gpu  # batches are augmented where they go, behind their copy
        return cls(decoder, on_gpu, None if beside else _effects_in_pipeline(decoder, plan))


def _effects_in_pipeline(decoder: BatchDecoder, plan: Plan) -> BatchEffects | None:
    """The core does them to images that are decoded beside the pipeline."""
    if not plan.augmentations or native.available() is None:
        return None
    if not all(getattr(each, "on_host", False) for each in plan.augmentations):
        return None
    finish = Finish(plan=plan, key=Key(seed=0, epoch=0))
    if decoder.effects(finish.effects_on_batches(range(_TRIED_FIRST), [0] * _TRIED_FIRST)) is None:
        return None
    return decoder.effects(finish.effects_on_batches(range(_TRIED), [0] * _TRIED))


class EpochResources:
    """Resources of one epoch, opened in the consumer's thread and closed with the epoch.

    Args:
        config: configuration of the epoch.
        stats: statistics to which each batch adds its costs.

    Attributes:
        finish: the steps after decoding, when the batch is left uint8.
        sample_levels, sample_format: arithmetic on the pixels of a sample, and the format in which it is stored.
        batch_levels: that on images that are stored in the batch; none if the batch is left uint8.
        batch_format: format in which they are stored there.
        ready_batches: the backend's finished batches, if it has such.
        batch_decoder, decodes_on_gpu, batch_effects: see `WholeBatchDecoding`.
        part_filler: the backend's filler for parts of batches.
        filler: fills whole batches from files, where the samples are such and the backend takes batches, or from an
            array in memory; None where nobody does.
        file_reader: reads the files of a batch for the backend's pipeline, where the native core can.
    """

    def __init__(self, config: PipelineConfig, *, stats: PipelineStats | None = None) -> None:
        self.config, self.stats = config, stats if stats is not None else PipelineStats()
        plan, backend = config.plan, config.backend
        self.finish = Finish(plan=plan, key=config.key)
        self.sample_levels = Levels.of(plan.normalisation if plan.output is Output.FLOAT else None)
        self.sample_format = stored_format(self.sample_levels)
        self.batch_levels = UINT8 if config.leave_uint8 or config.decodes_packed else self.sample_levels
        self._memory_format = torch.channels_last if config.decodes_packed else config.memory_format
        is_contiguous = self._memory_format is not torch.channels_last
        self.batch_format = stored_format(self.batch_levels, channels_first=is_contiguous, channels=config.channels)
        self.ready_batches: ReadyBatches | None = backend.ready_batches() if config.fills_batch else None
        decoding = WholeBatchDecoding.of(config)
        self.batch_decoder, self.decodes_on_gpu = decoding.decoder, decoding.on_gpu
        self.batch_effects = decoding.effects
        self._memory = BatchMemory()
        self.part_filler = backend.filler(plan, config.key, threads=0)
        fills = config.fills_batch and plan.in_one_pass and self.batch_decoder is None
        self.filler = self._filler() if fills else None
        self.file_reader = self._reader()

    def _filler(self) -> Filler | None:
        """Who fills whole batches from files or an array, with the cache around it; None if nobody does."""
        config = self.config
        by_array = config.arrays is not None
        if not by_array and not (self.part_filler.takes_batches and has_file_ranges(config.source)):
            return None
        backend = create_backend("native") if by_array else config.backend
        filler = backend.filler(config.plan, config.key, threads=config.threads)
        if config.cache is None or by_array or not filler.reads_records:
            return filler
        return CachedFiller(filler, config.cache)

    def _reader(self) -> FileReader | None:
        config, core = self.config, native.available()
        if core is None or self.batch_decoder is None or not has_file_ranges(config.source):
            return None
        pool = Pool(core, config.threads) if config.threads else None
        return FileReader(
            core, pool, Options(pass_order=PassOrder.HORIZONTAL_FIRST, max_file_bytes=limits.MAX_ENCODED_BYTES)
        )

    def close(self, ended: bool = True) -> None:
        """Gives back what the epoch's batches shared; `ended` is False if a thread may still be at work."""
        self._memory.close()
        for each in (self.filler, self.part_filler, self.file_reader):
            if each is not None:
                each.close(ended)

    def empty_batch(self, count: int) -> torch.Tensor:
        """An uninitialised batch (N, C, H, W) in the format asked for, or as `packed_batch` takes it."""
        config, dtype = self.config, self.batch_levels.dtype
        assert config.plan.size is not None
        shape, pin = (count, config.channels, *config.plan.size), config.pin and not config.decodes_packed
        with self.pinning():
            return self._memory.images(shape, dtype, memory_format=self._memory_format, pin=pin)

    def pinning(self) -> AbstractContextManager[Any]:
        """Within it, pinned memory belongs to the loader's device, which need not be the thread's current one."""
        config = self.config
        return cuda.device(index_of(config.device)) if config.pin and config.on_gpu else nullcontext()

    def finished_empty_batch(self, count: int) -> torch.Tensor:
        """An uninitialised batch (N, C, H, W) as the caller will get it, on its device."""
        config, plan = self.config, self.config.plan
        assert plan.size is not None
        device = config.device if config.on_gpu else None
        shape = (count, config.channels, *plan.size)
        return torch.empty(shape, dtype=plan.output_dtype, device=device, memory_format=config.memory_format)
