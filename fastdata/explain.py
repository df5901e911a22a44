"""`DataLoader.explain()`: the pipeline in words."""

from __future__ import annotations

from typing import Any

from fastdata.auto import Choice
from fastdata.plan import Plan
from fastdata.routes import Route

__all__ = ["explain"]


def explain(loader: Any, route: Route, choice: Choice | None) -> str:
    """Which way a loader's batches go and why, one fact a line."""
    if route.plan is None:
        return "\n".join(
            [
                "path:       torch's own DataLoader code",
                f"why:        {route.reason}",
                f"workers:    {_count(loader.num_workers, 'worker process', 'es')}",
            ]
        )
    plan = route.plan
    return "\n".join(
        [
            "path:       fastdata's image pipeline",
            f"source:     {type(loader.dataset).__name__}, {len(loader.dataset)} samples",
            f"fused:      {' → '.join(('decode', *plan.fused))}",
            f"on batches: {_augmentations(plan) or 'nothing'}",
            f"per sample: {_names(plan) or 'nothing'}",
            f"why:        {route.reason}",
            f"output:     {_output(loader, plan)}",
            f"backend:    {_backend(loader, choice)}",
            f"fidelity:   {loader.fidelity}",
            f"threads:    {_threads(loader)}",
            f"on error:   {loader.on_error}",
            f"device:     {loader.device if loader.device is not None else 'host memory'}",
            *(
                [f"decodes on: {_decode_device(loader)}"]
                if choice is not None and choice.backend.name == "dali"
                else []
            ),
        ]
    )


def _names(plan: Plan) -> str:
    return " → ".join(getattr(step, "__name__", type(step).__name__) for step in plan.tail)


def _augmentations(plan: Plan) -> str:
    return " → ".join(type(step).__name__ for step in (*plan.augmentations, *plan.float_augmentations))


def _decode_device(loader: Any) -> str:
    return "the GPU (mixed)" if loader._decode_device == "mixed" else "the CPU"


def _output(loader: Any, plan: Plan) -> str:
    where = "decoded straight into the batch" if plan.batchable else "made per sample, then collated"
    size = "×".join(map(str, plan.size)) if plan.size is not None else "size differs from image to image"
    return f"{plan.output.value}, {size}; {where}"


def _backend(loader: Any, choice: Choice | None) -> str:
    if choice is None:
        return f"{loader.backend} (timed on your samples at the first iteration)"
    return f"{choice.backend.name}: {choice.reason}"


def _threads(loader: Any) -> str:
    if loader.num_workers == 0:
        return "none; decodes in the calling thread (num_workers=0); num_workers='auto' uses all CPUs"
    return f"{_count(loader.num_workers, 'thread', 's')}, {loader.prefetch_factor} batches ahead"


def _count(number: int, noun: str, plural: str) -> str:
    return f"{number} {noun if number == 1 else noun + plural}"
