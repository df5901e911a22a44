"""Choices made before a loader's first epoch in the image pipeline: the backend and the number of threads."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from fastdata.dataloader.arguments import LoaderArguments
from fastdata.dataloader.routes import Route
from fastdata.dataloader.verdict import Findings, counts_threads
from fastdata.device.packed_batch import problem
from fastdata.loaders import Backend
from fastdata.pipeline.choose_backend import choose_backend
from fastdata.pipeline.choose_threads import choose_threads
from fastdata.pipeline.config import PipelineConfig
from fastdata.system.stack_level import users_level
from fastdata.views.philox import Key

__all__ = ["decodes_on", "pipeline_config"]


def pipeline_config(
    loader: LoaderArguments,
    route: Route,
    findings: Findings,
    *,
    key: Key,
    device: torch.device | None = None,
    **more: Any,
) -> PipelineConfig:
    """Returns the configuration of an epoch in the image pipeline.

    Args:
        loader: arguments of the loader.
        route: route through the image pipeline.
        findings: findings of the loader; the backend and the number of threads are added if they are missing.
        key: seed and epoch.
        device: device to which batches go.
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
        decode_device=decodes_on(loader, device),
        backend_options=loader.dali,
        threads=loader.num_workers,
        cache=loader.record_cache,
        **more,
    )
    return _with_threads_counted(config, loader, findings)


def decodes_on(loader: LoaderArguments, device: torch.device | None) -> str:
    """Returns the device that decodes: the CPU, with a warning, where kernels for the GPU cannot run."""
    if loader.decode_on != "cuda" or device is None or (why := problem(device)) is None:
        return loader.decode_on
    warnings.warn(f"decode_device='cuda' has no effect, the CPU decodes: {why}", stacklevel=users_level())
    return "cpu"


def _find_backend(loader: LoaderArguments, route: Route, findings: Findings) -> Backend:
    assert route.source is not None
    if findings.choice is None:
        findings.choice = choose_backend(route.source, fidelity=loader.fidelity)
    return findings.choice.backend


def _with_threads_counted(config: PipelineConfig, loader: LoaderArguments, findings: Findings) -> PipelineConfig:
    """Sets the number of threads for num_workers="auto", measured once; `loader.num_workers` is not changed."""
    if not counts_threads(loader, findings):
        return config
    if findings.threads is None:
        findings.threads = choose_threads(config, cpus=loader.num_workers)
    return replace(config, threads=findings.threads.threads)
