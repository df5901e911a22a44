"""What a loader of ours takes over from a dataset's code, as values: plans, steps, and what its first batches did."""

from __future__ import annotations

from typing import Any

from fastdata import DataLoader
from fastdata.sources.arrays import ArraySource
from fastdata.transforms.known import name_of
from fastdata.views.plan import Plan

__all__ = ["decodes_natively", "from_memory", "on_batches", "per_sample", "pipelines_plan"]


def pipelines_plan(loader: DataLoader[Any]) -> Plan:
    """The plan of a loader whose batches come from the image pipeline; there has to be one."""
    plan = loader._route().plan
    assert plan is not None, loader._route().reason
    return plan


def per_sample(loader: DataLoader[Any]) -> list[str]:
    """Names of the steps behind the fused ones, of the image pipeline or of all fused transforms."""
    route = loader._route()
    plans = route.fused.values() if route.plan is None else [route.plan]
    return [name_of(step) for plan in plans for step in plan.unfused]


def on_batches(loader: DataLoader[Any]) -> list[str]:
    """Names of the steps that the image pipeline does on whole batches."""
    plan = pipelines_plan(loader)
    return [step.label for step in (*plan.augmentations, *plan.float_augmentations)]


def decodes_natively(loader: DataLoader[Any]) -> bool:
    """True if images that the dataset's own code opened were decoded natively in the first batches."""
    gains = loader.verdict().kind in ("accelerated", "partly accelerated", "little gain")
    return gains and not loader._route().is_image_pipeline and loader._findings.happened.decoded > 0


def from_memory(loader: DataLoader[Any]) -> bool:
    """True if the image pipeline makes batches of an array's images, which need no decoding."""
    return loader._route().is_image_pipeline and isinstance(loader._route().source, ArraySource)
