"""`autotune=True`: what the tuner says is done to the running pipeline, and kept for the loader's next epochs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from fastdata.dataloader.routes import Route
from fastdata.dataloader.verdict import Findings
from fastdata.errors import OptionError
from fastdata.pipeline.autotune import Autotuner, Limits, Setting
from fastdata.pipeline.choose_threads import MOST_PER_CPU
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.stats import PipelineStats
from fastdata.pipeline.whole_batch import WholeBatches
from fastdata.system.cpus import auto_threads, local_processes
from fastdata.system.memory import available_memory
from fastdata.system.stack_level import users_level

__all__ = ["begin_with_all_cpus", "check_tuning", "tuned"]

_SHARE_OF_MEMORY = 8  # that batches in flight may take, unless told otherwise
_AHEAD = 2  # batches, as torch has it


def check_tuning(autotune: object, memory_budget: object) -> None:
    """Raises OptionError unless these are values of `autotune` and `memory_budget`."""
    if not isinstance(autotune, bool):
        raise OptionError(f"autotune={autotune!r} is not accepted; use True or False")
    if memory_budget is None:
        return
    if not autotune:
        raise OptionError(f"memory_budget={memory_budget!r} limits what autotune takes; pass autotune=True, too")
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int) or memory_budget < 1:
        raise OptionError(f"memory_budget={memory_budget!r} is not accepted; use a number of bytes, such as 2 << 30")


def begin_with_all_cpus(loader: Any, route: Route) -> None:
    """Gives a loader without threads as many as there are CPUs, where the image pipeline is its way."""
    if loader.autotune and loader.num_workers == 0 and route.is_image_pipeline:
        loader.num_workers, loader.prefetch_factor = auto_threads(), _AHEAD


def tuned(
    loader: Any, findings: Findings, pipeline: OrderedJobs | WholeBatches, resources: EpochResources
) -> Callable[[Any], None] | None:
    """Returns a function to call with each batch of an epoch that begins now; None if there is nothing to tune.

    Args:
        loader: the loader; its `num_workers` and `prefetch_factor` are the first setting, and are kept up to date.
        findings: findings of the loader; keeps the tuner from its first epoch on.
        pipeline: pipeline of this epoch.
        resources: resources of the epoch's batches.
    """
    if not isinstance(pipeline, OrderedJobs):
        warnings.warn(
            "autotune=True has no effect: the backend has threads of its own; see DaliOptions(threads=...)",
            stacklevel=users_level(),
        )
        return None
    tuner = findings.tuner = findings.tuner or _tuner(loader, resources.stats)

    def apply() -> None:
        threads, ahead = tuner.setting
        try:
            resources.use_threads(threads)
        except (MemoryError, OSError, RuntimeError):  # no more threads are to be had; those that are go on
            tuner.stay_at(Setting(loader.num_workers, loader.prefetch_factor))
            return
        loader.num_workers, loader.prefetch_factor = threads, ahead
        pipeline.resize(threads=threads, depth=ahead)

    def after_batch(batch: Any) -> None:
        if tuner.note_batch(_bytes_of(batch)):
            apply()

    if tuner.begin_epoch():
        apply()
    return after_batch


def _tuner(loader: Any, stats: PipelineStats) -> Autotuner:
    memory = loader.memory_budget
    if memory is None:
        memory = available_memory() // (_SHARE_OF_MEMORY * local_processes())
    begin = Setting(threads=loader.num_workers, ahead=max(1, loader.prefetch_factor or 1))
    limits = Limits(threads=max(begin.threads, MOST_PER_CPU * auto_threads()), memory=memory)
    return Autotuner(begin, limits, stats)


def _bytes_of(batch: Any) -> int:
    """Bytes of the batch's dense tensors; other leaves count as 0."""
    leaves = (leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided)
    return sum(leaf.nbytes for leaf in leaves)
