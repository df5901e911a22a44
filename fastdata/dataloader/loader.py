"""DataLoader: torch's class with the same arguments, and an image pipeline behind it where one fits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import fields
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeVar, cast

import torch
import torch.utils.data
from torch.utils.data import Dataset, Sampler

from fastdata.dataloader.arguments import (
    AUGMENT_ON,
    OWN_ARGUMENTS,
    AugmentOn,
    DecodeDevice,
    Draws,
    LoaderArguments,
    check_choice,
    check_dali,
    check_decode_device,
    check_draws,
    check_order,
    check_seed,
    thread_count,
)
from fastdata.dataloader.epoch_paths import EpochPaths
from fastdata.dataloader.explain import explain, without_effect
from fastdata.dataloader.iterators import (
    SingleProcessIterator,
)
from fastdata.dataloader.results import BatchIterator, LoaderStats
from fastdata.dataloader.routes import Route, find_route
from fastdata.dataloader.verdict import Findings, Verdict, asked_workers, verdict
from fastdata.dataloader.worker_iterator import MultiProcessIterator
from fastdata.device.prefetch import check_device
from fastdata.loaders import (
    FIDELITIES,
    BackendName,
    RegisteredBackend,
    check_backend_name,
    create_backend,
)
from fastdata.loaders.backend import Fidelity
from fastdata.loaders.dali_options import DaliOptions
from fastdata.patches.accelerate import remember
from fastdata.patches.torch_internals import check_torch
from fastdata.pipeline.choose_backend import BackendChoice
from fastdata.pipeline.config import ON_ERROR, OnError
from fastdata.pipeline.record_cache import open_cache
from fastdata.pipeline.stats import PipelineStats
from fastdata.system.stack_level import users_level
from fastdata.system.switches import is_off

__all__ = ["DataLoader", "StatelessDataLoader", "observers"]

observers: list[Callable[[Any, PipelineStats], None]] = []  # called with a loader, and its totals, when an epoch begins

Sample = TypeVar("Sample", covariant=True)

_MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


class StatelessDataLoader(EpochPaths, torch.utils.data.DataLoader[Sample]):
    """torch.utils.data.DataLoader with an image pipeline behind it.

    All of torch's arguments mean what they mean there, and a batch is what torch's DataLoader would give: with
    torchvision's transforms for training, `images` of float32 (or of uint8 after PILToTensor), shape (N, 3, H, W), RGB,
    contiguous or channels_last (`memory_format`), in host memory, pinned if `pin_memory`, or on `device`; `labels` of
    int64, shape (N,).  The caller owns it: it is never overwritten, and its memory is used again only once nobody holds
    it.  The last batch is smaller unless `drop_last`.  A batch that failed raises its error at its place, and the next
    call gives the batch behind it.

    Where the dataset is an image folder or keeps its images in
    memory (see `sources/protocol.py`), all steps of its transform can be fused (see `views/plan.py`) and no code of the
    user's is called for samples or batches, `num_workers` counts threads of this process instead of worker processes,
    and batches are decoded straight into their memory.  All other samples are made by the dataset's own code, where
    torch would run it; images that it opens with `PIL.Image.open` stay encoded meanwhile, and transforms that are found
    in it are fused, so that whole batches can be decoded here (see `lazy/`).  `explain()` says what was done and
    why.

    Args:
        dataset: map-style or iterable dataset.
        batch_size: samples in a batch; None gives single samples, by the dataset's own code.
        shuffle: a new order in each epoch, which after `torch.manual_seed` is the order of torch's DataLoader.
        sampler: order of the samples; `fastdata.EpochSampler` divides it among ranks and resumes with other ranks.
        batch_sampler: index batches, instead of the four arguments before.
        num_workers: decode threads; if code of the user's runs, worker processes and as many threads.  0 works in the
            caller's thread; "auto" takes the CPUs of this process, divided by LOCAL_WORLD_SIZE, and in the image
            pipeline up to four times as many threads if reading some samples waits for storage.
        collate_fn: makes a batch of samples.  torch's and timm's are done natively; another one is called where torch
            would call it.
        pin_memory: deliver in pinned memory, for copies that do not block.  Without an accelerator it has no effect.
        drop_last: leave out a last batch that is smaller.
        timeout: longest wait for one batch, in seconds; 0 waits for ever.
        worker_init_fn: called in each worker process.  If it does more than set seeds, there will be such processes.
        multiprocessing_context: start method of worker processes; given one, there will be such processes.
        generator: draws the order and the base seed, as with torch.
        prefetch_factor: batches ahead per worker on torch's path; in the image pipeline, where all threads work on the
            same batch, batches ahead in all.
        persistent_workers: keep worker processes from epoch to epoch, with the dataset as it was in the first.
        pin_memory_device: device whose memory is pinned, as with torch; "" for the current accelerator.
        in_order: False lets worker processes hand batches over as they are ready; threads keep the order.
        backend: decode backend: one of `fastdata.loaders.BACKENDS`, or "auto", which takes the first of native,
            turbojpeg and pil that is available (`fastdata bench` measures all of them).  For type checkers the name of
            a registered backend is the one that `register_backend` returned.
        fidelity: "exact" gives the pixels of Pillow and torchvision; "fast" decodes large JPEGs at reduced size.
        device: device to which batches are delivered; None and "cpu": host memory, pinned if `pin_memory`.
        seed: makes views and the draws of worker processes (but for persistent ones, which go on drawing) a function of
            (seed, epoch), and also the order, for every sampler that draws from global generators; one with a seed or
            generator of its own (DistributedSampler, EpochSampler) keeps to that.  None derives them as torch does.
        on_error: policy for a sample that cannot be decoded: "raise" DecodeError, "skip" it (the batch is
            smaller), or "replace" it by another one, a function of seed, epoch and the sample's number.
        memory_format: format of image batches: torch.contiguous_format, as torch collates, or torch.channels_last.
        augment_on: "host" does augmentations (ColorJitter, RandAugment, …) to each image, with the pixels
            of torchvision on PIL images; "device" does them on whole batches where those are delivered, with
            torchvision's arithmetic for tensors, or where DALI decodes, by its operators.  Either draws by
            (seed, epoch, sample).
        draws: "sample" draws the numbers of random transforms by (seed, epoch, sample), so that they do not depend on
            the number of workers, and a resumed epoch repeats them; "torch" takes the numbers that the transforms' own
            code would draw with torch's DataLoader: after the same `torch.manual_seed`, and with as many workers,
            training batches equal torch's to the last bit (with an exact backend, and without `seed`).  A transform
            whose draws are not known runs its own code.  None is the environment variable FASTDATA_DRAWS, or "sample".
        defer: leave images encoded in a dataset's own code, and fuse its transforms; False has all of it done by
            torch and Pillow, for image folders, too.  FASTDATA_DEFER=0 does that in a whole process, and FASTDATA=0
            leaves worker processes and their batches to torch as well.
        decode_device: device that decodes.  "cuda" is the GPU of `device`, with Pillow's pixels to the last bit, as far
            as it can: unpacked JPEGs (shards converted with --unpacked, the cache) and JPEGs with an index (`fastdata
            index`); the CPU decodes all others.  It needs Triton, which torch's builds for CUDA bring, and has not run
            on a GPU yet.  With backend="dali": "mixed" (the GPU) or "cpu".  "auto" is "mixed" with DALI if `device` is
            a GPU, else "cpu".
        dali: further choices for that backend.
        progress: show how far an epoch is, and the share of time spent waiting.
        cache: "ram", or a folder: keep JPEGs there with their coefficients unpacked while they are decoded, a third of
            them in each epoch, and read them from there later, with the same pixels and in less time.  For images
            that the native backend decodes from files or shards, or that a dataset's own code opens in files and that
            stay encoded.  Processes and runs may have a folder in common; an image that has changed is kept anew;
            "ram" is this process's own memory.
        cache_bytes: bytes that the cache may take: when it is full it is only read.  None is a quarter of the memory
            available, or half of the space that is free on the disk.

    Raises:
        OptionError: an argument has a value that cannot work, at once.
        BackendUnavailable: the backend's library is missing, at once.
        ValueError, TypeError: arguments that torch refuses, with torch's words.
        DecodeError: while iterating with on_error="raise": it names sample, file and reason.
        DatasetError: while iterating: every sample of an epoch failed and was left out.
        ShardError: while iterating: a shard is damaged or has changed.
        RuntimeError: while iterating: a batch took longer than `timeout`, or a worker process ended, as with torch;
            PipelineError, a subclass, also if the iterator is used in another process than it was made in.
        StateMismatch: while iterating: the sampler or dataset does not repeat what a loaded state says was delivered.

    Example:
        >>> from fastdata import DataLoader
        >>> loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8)
        >>> for images, labels in loader: ...
    """

    backend: str
    fidelity: Fidelity
    on_error: OnError

    def __init__(
        self,
        dataset: Dataset[Sample],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        backend: BackendName | RegisteredBackend = "auto",
        fidelity: Fidelity = "exact",
        device: str | torch.device | None = None,
        seed: int | None = None,
        on_error: OnError = "raise",
        memory_format: torch.memory_format = torch.contiguous_format,
        augment_on: AugmentOn = "host",
        draws: Draws | None = None,
        decode_device: DecodeDevice = "auto",
        dali: DaliOptions = DaliOptions(),  # noqa: B008 - frozen
        progress: bool = False,
        defer: bool = True,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        check_torch()
        leaves_all_to_torch = is_off()
        check_backend_name(backend)
        check_choice("fidelity", fidelity, FIDELITIES)
        check_choice("on_error", on_error, ON_ERROR)
        check_choice("memory_format", memory_format, _MEMORY_FORMATS)
        check_choice("augment_on", augment_on, AUGMENT_ON)
        check_choice("defer", defer, (True, False))
        check_order(dataset, sampler, batch_sampler)
        self.backend, self.fidelity, self.device = backend, fidelity, device
        self.seed, self.on_error = check_seed(seed), on_error
        self.memory_format, self.progress, self.defer = memory_format, progress, defer
        self.draws = check_draws(draws, augment_on=augment_on)
        self.augment_on, self.decode_device, self.dali = augment_on, decode_device, check_dali(dali)
        self._device = check_device(device) if device is not None else None
        self._decode_on = check_decode_device(decode_device, backend, self._device, fidelity)
        self.cache, self.cache_bytes, self._record_cache = cache, cache_bytes, open_cache(cache, cache_bytes)
        self._begin_state(is_auto=num_workers == "auto")
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            thread_count(num_workers),
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        if not leaves_all_to_torch:
            remember(self, _made_anew)

    def _begin_state(self, *, is_auto: bool) -> None:
        self._findings = Findings(is_auto=is_auto)
        if self.backend != "auto":
            self._findings.choice = BackendChoice(
                backend=create_backend(self.backend, fidelity=self.fidelity), reason="named by you"
            )
        self._stats = PipelineStats()
        self._begin_counting()
        self._warned_of_torch_path = False
        self._kept_route: Route | None = None  # of persistent workers
        self._route_now: Route | None = None  # of the iterator that torch's code is about to make

    # ---- what to ask a loader

    def explain(self) -> str:
        """Describes the verdict, the path of the batches, the steps that are fused, the backend, and the reasons.

        Lines are wrapped to the terminal's width (80 to 120 columns; to COLUMNS, if that is set).
        """
        return explain(self._arguments(), self._route(), self._findings)

    def verdict(self) -> Verdict:
        """Says if images are accelerated, how far and, if not, why and what to change; `str()` of it is one line."""
        return verdict(self._arguments(), self._route(), self._findings)

    def stats(self) -> LoaderStats:
        """Totals since the loader was made: seconds per stage, waiting time, failures and the quarantine list.

        See `fastdata.dataloader.results.LoaderStats` for the entries.  On torch's path batches, samples and waiting are
        counted.
        """
        choice = self._findings.choice
        return cast(LoaderStats, {**self._stats.to_dict(), "backend": choice.backend.name if choice else None})

    def __repr__(self) -> str:
        route, batches = self._route(), getattr(self.batch_sampler, "batch_size", self.batch_size)
        if route.is_image_pipeline:
            how = f"image pipeline, num_workers={self.num_workers} (threads), backend={self._backend_name()!r}"
        elif route.fused:
            how = f"fused transforms ({', '.join(route.fused)}), num_workers={self.num_workers} (processes)"
        else:
            how = f"torch's own path ({route.reason}), num_workers={self.num_workers} (processes)"
        return f"{type(self).__name__}({type(self.dataset).__name__}, batch_size={batches}; {how})"

    def _backend_name(self) -> str:
        return self._findings.choice.backend.name if self._findings.choice is not None else self.backend

    def _arguments(self) -> LoaderArguments:
        names = (field.name for field in fields(LoaderArguments) if field.name not in ("decode_on", "record_cache"))
        return LoaderArguments(
            **{name: getattr(self, name) for name in names},
            decode_on=self._decode_on,
            record_cache=self._record_cache,
        )

    def _route(self) -> Route:
        if "_stats" not in vars(self):
            return Route(reason=f"{type(self).__name__} does not call DataLoader.__init__", advice="call it")
        return find_route(self._arguments())

    # ---- iterating

    def __iter__(self) -> BatchIterator:  # type: ignore[override] # torch's, whose attributes are private
        self._show_to_observers()
        route = self._kept_route or self._route()
        if route.is_image_pipeline:
            return self._iterate_images(route)
        if (ignored := without_effect(self._arguments(), route)) and not self._warned_of_torch_path:
            self._warned_of_torch_path = True
            warnings.warn(f"{', '.join(ignored)} has no effect: {route.reason}", stacklevel=users_level())
        self._route_now = route
        if self._device is None and not self.progress:
            return super().__iter__()
        return self._iterate_torch()

    def _show_to_observers(self) -> None:
        for observe in observers:
            observe(self, self._stats)

    def _get_iterator(self) -> Any:
        route, self._route_now = self._route_now or self._route(), None
        if is_off() and not hasattr(self, "state_dict"):
            return super()._get_iterator()
        samples, plans = self._samples(route), route.fused.values()
        by_sample = samples.fused and not any(plan.unfused for plan in plans)  # what is fused draws so
        if self._resume_from is not None and not by_sample:
            self._warn_of_other_draws(self._resume_from)
        if self.num_workers == 0:
            return SingleProcessIterator(self, self.begin_epoch(), samples)
        super().check_worker_number_rationality()
        return MultiProcessIterator(self, self.begin_epoch(), samples)

    def check_worker_number_rationality(self) -> None:
        """Nothing, where torch's constructor asks: whether there will be worker processes is known to iterators."""


StatelessDataLoader.__init__.__qualname__ = "DataLoader.__init__"  # Python's message on wrong arguments has it


def _made_anew(loader: Any, dataset: Any, *arguments: Any, **named: Any) -> Any:
    """Makes a loader of the arguments that accelerate gives torch's class, with the choices of one of ours."""
    if named.get("num_workers") == loader.num_workers:
        named["num_workers"] = asked_workers(loader)
    named |= {name: getattr(loader, name) for name in OWN_ARGUMENTS}
    return StatelessDataLoader(dataset, *arguments, **named)


class DataLoader(StatelessDataLoader[Sample]):  # noqa: D101
    __doc__ = StatelessDataLoader.__doc__

    # Not in the class above, which also stands in for torch's (fastdata/run): frameworks that find these methods call
    # them before seeds are set and generators are synchronised, and a state fixes the order of the next epoch.

    def state_dict(self) -> dict[str, Any]:
        """Position of the latest iterator, counted in samples handed over, as a few plain, JSON-able values."""
        return self.state_now()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Makes the next iterator continue right after the sample where `state` was taken.

        Raises:
            StateMismatch: the state is of another format, dataset, sampler or seed, or its numbers cannot be.
        """
        self._kept_route = None
        self.continue_from(state)
