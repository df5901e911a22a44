"""`autotune=True`: what the tuner says is done to the running pipeline, and kept for the loader's next epochs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from fastdata.dataloader.verdict import Findings
from fastdata.errors import OptionError
from fastdata.pipeline.autotune import Autotuner, Limits, Setting
from fastdata.pipeline.jobs import OrderedJobs
from fastdata.pipeline.resources import EpochResources
from fastdata.pipeline.stats import PipelineStats
from fastdata.pipeline.whole_batch import WholeBatches
from fastdata.system.cpus import auto_threads
from fastdata.system.memory import available_memory

__all__ = ["check_tuning", "tuned"]

_SHARE_OF_MEMORY = 8  # that batches in flight may take, unless told otherwise
_THREADS_PER_CPU = 4  # the most, where files come slowly


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


def tuned(
    loader: Any, findings: Findings, pipeline: OrderedJobs | WholeBatches, resources: EpochResources
) -> Callable[[Any], None] | None:
    """What is to be called with each batch of an epoch that begins now; None where there is nothing to tune.

    Args:
        loader: whose `num_workers` and `prefetch_factor` say where it begins; both are kept up to date.
        findings: of the loader; keeps the tuner from its first epoch on.
        pipeline: of this epoch.
        resources: of its batches.
    """
    if loader.num_workers == 0 or not isinstance(pipeline, OrderedJobs):
        return None
    tuner = findings.tuner = findings.tuner or _tuner(loader, resources.stats)
    tuner.begin_epoch()

    def after_batch(batch: Any) -> None:
        if tuner.note_batch(_bytes_of(batch)):
            loader.num_workers, loader.prefetch_factor = tuner.setting
            resources.use_threads(tuner.setting.threads)
            pipeline.resize(threads=tuner.setting.threads, depth=tuner.setting.ahead)

    return after_batch


def _tuner(loader: Any, stats: PipelineStats) -> Autotuner:
    memory = loader.memory_budget
    if memory is None:
        processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
        memory = available_memory() // (_SHARE_OF_MEMORY * max(1, int(processes) if processes.isdigit() else 1))
    begin = Setting(threads=loader.num_workers, ahead=max(1, loader.prefetch_factor or 1))
    limits = Limits(threads=max(begin.threads, _THREADS_PER_CPU * auto_threads()), memory=memory)
    return Autotuner(begin, limits, stats)


def _bytes_of(batch: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
