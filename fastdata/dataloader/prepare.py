"""What is found out before a loader's first epoch in the image pipeline: who decodes, and where the rest runs."""

from __future__ import annotations

import multiprocessing
import shutil
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from fastdata.dataloader.arguments import LoaderArguments
from fastdata.dataloader.routes import Route
from fastdata.dataloader.verdict import Findings, counts_threads
from fastdata.loaders import Backend
from fastdata.pipeline.choose_backend import choose_backend
from fastdata.pipeline.choose_threads import choose_threads
from fastdata.pipeline.config import PipelineConfig
from fastdata.pipeline.tail_in_turn import tail_holds_interpreter
from fastdata.sources.recognise import transforms_targets
from fastdata.views.philox import Key
from fastdata.views.plan import Plan

__all__ = ["leaves_tail_to_processes", "pipeline_config"]


_A_LARGE_IMAGE = (512, 512)  # where sizes differ


def pipeline_config(
    loader: LoaderArguments,
    route: Route,
    findings: Findings,
    *,
    key: Key,
    device: torch.device | None = None,
    **more: Any,
) -> PipelineConfig:
    """How an epoch is made.

    Args:
        loader: its arguments.
        route: into the pipeline.
        findings: what is known; the backend and the number of threads are, from now on.
        key: seed and epoch.
        device: where batches go.
        more: further fields of the configuration.
    """
    assert route.plan is not None
    assert route.source is not None
    config = PipelineConfig(
        source=route.source,
        plan=route.plan,
        backend=_find_backend(loader, route, findings),
        key=key,
        collate_fn=loader.collate_fn if loader.collate_fn is not None else default_collate,
        on_error=loader.on_error,
        memory_format=loader.memory_format,
        device=device,
        decode_device=loader.decode_on,
        backend_options=loader.dali,
        threads=loader.num_workers,
        **more,
    )
    return _with_threads_counted(config, loader, findings)


def _find_backend(loader: LoaderArguments, route: Route, findings: Findings) -> Backend:
    assert route.source is not None
    if findings.choice is None:
        findings.choice = choose_backend(route.source, fidelity=loader.fidelity)
    return findings.choice.backend


def _with_threads_counted(config: PipelineConfig, loader: LoaderArguments, findings: Findings) -> PipelineConfig:
    """With as many threads as num_workers="auto" means, found out once; `loader.num_workers` stays as it is."""
    if not counts_threads(loader, findings):
        return config
    if findings.threads is None:
        findings.threads = choose_threads(config, cpus=loader.num_workers)
    return replace(config, threads=findings.threads.threads)


def leaves_tail_to_processes(loader: LoaderArguments, route: Route, findings: Findings) -> bool:
    """True if the steps that are called per sample hold up decode threads, and worker processes give the same samples.

    They draw for each sample from the same seeds.  Not so a target_transform, which worker processes call within
    the dataset's own code; and they decode natively.  Where processes are not forked, the user's program may not be
    made for them.
    """
    assert route.source is not None
    assert route.plan is not None
    if loader.workers != "auto" or loader.num_workers == 0 or not loader.in_order or transforms_targets(route.source):
        return False
    if not _may_fork() or any(map(_is_on_gpu, route.plan.tail)) or not _has_shared_memory(loader, route.plan):
        return False
    if _find_backend(loader, route, findings).name != "native":
        return False
    return tail_holds_interpreter(pipeline_config(loader, route, findings, key=Key(seed=0, epoch=0)))


def _may_fork() -> bool:
    """True where worker processes begin as copies of this one, and this one may have any."""
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    return method == "fork" and not multiprocessing.current_process().daemon


def _is_on_gpu(step: Any) -> bool:
    """True for modules with a state on a device, which a forked process cannot use."""
    tensors = (*step.parameters(), *step.buffers()) if isinstance(step, torch.nn.Module) else ()
    return any(tensor.device.type != "cpu" for tensor in tensors)


def _has_shared_memory(loader: LoaderArguments, plan: Plan) -> bool:
    """True if the batches of worker processes fit into shared memory, which containers often have little of."""
    height, width = plan.size if plan.size is not None else _A_LARGE_IMAGE
    batches = 2 + loader.num_workers * (loader.prefetch_factor or 1)
    wanted = batches * (getattr(loader.batch_sampler, "batch_size", None) or 1) * 3 * 4 * height * width
    try:
        return shutil.disk_usage("/dev/shm").free > wanted
    except OSError:  # a system without it
        return True
