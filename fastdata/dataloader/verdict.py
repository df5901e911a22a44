"""What a loader says of itself in one sentence, and its warning when images gain nothing."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache

from fastdata.captures.find import looks_like_images
from fastdata.dataloader.arguments import LoaderArguments
from fastdata.dataloader.routes import Route
from fastdata.errors import NotAccelerated
from fastdata.loaders import native_problem
from fastdata.pipeline.autotune import Autotuner
from fastdata.pipeline.choose_backend import BackendChoice
from fastdata.pipeline.choose_threads import ThreadChoice
from fastdata.sources.arrays import ArraySource
from fastdata.system.cpus import auto_threads
from fastdata.system.stack_level import users_level
from fastdata.views.plan import Plan

__all__ = ["Findings", "counts_threads", "verdict", "warn_if_images"]


NOT_ACCELERATED = "not accelerated"


@dataclass
class Findings:
    """What a loader has found out so far.

    Attributes:
        choice: who decodes; None before the first iteration.
        plain_batches: batches of a dataset's own code in which no image was left to be decoded here; -1 once one had
            some.
        tried: ids of steps that are called per sample, of which it is known whether threads wait for each other there.
        left: those of them that are left to worker processes.
        tuner: of the number of threads, with `autotune`.
        is_auto: num_workers="auto" was asked for.
        threads: how many that is in the image pipeline.
    """

    choice: BackendChoice | None = None
    plain_batches: int = 0
    tried: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    tuner: Autotuner | None = None
    is_auto: bool = False
    threads: ThreadChoice | None = None


def counts_threads(loader: LoaderArguments, findings: Findings) -> bool:
    """True where the number of threads is measured: num_workers="auto", and nobody has set another number since."""
    return findings.is_auto and not loader.autotune and loader.num_workers == auto_threads()


def verdict(loader: LoaderArguments, route: Route, findings: Findings) -> str:
    """Whether a loader is accelerated, how far, and if it is not, why and what to change."""
    if (problem := native_problem()) is not None:
        return f"{NOT_ACCELERATED}: the native core is missing: {problem}"
    pipeline = route if route.instead_of is None else route.instead_of
    if pipeline.plan is not None:
        what = "in memory are made into batches" if isinstance(pipeline.source, ArraySource) else "are decoded"
        word = "partly accelerated" if pipeline.plan.tail else "accelerated"
        return f"{word}: images {what} by the image pipeline; {_share(pipeline.plan)}"
    if findings.plain_batches > 0:
        word = "hardly accelerated" if route.captured else NOT_ACCELERATED
        return f"{word}: {_no_images(route)}; {_changes(route)[0]}"
    if route.captured:
        shares = "; ".join(f"{place}: {_share(plan)}" for place, plan in route.captured.items())
        some = any(plan.tail for plan in route.captured.values()) or route.captured_parts
        word = "partly accelerated" if some else "accelerated"
        return f"{word}: images are decoded by the native core, with the dataset's own transforms ({shares})"
    if findings.plain_batches < 0:
        return "accelerated: images that the dataset opens are decoded by the native core, a batch at a time"
    if loader.batch_sampler is None:
        return f"{NOT_ACCELERATED}: {route.reason}" + (f"; {route.advice}" if route.advice else "")
    return f"{NOT_ACCELERATED}, unless it opens JPEGs or PNGs with PIL.Image.open: {route.reason}"


def _share(plan: Plan) -> str:
    """How much of a transform is done in one go with decoding."""
    done = len(plan.fused)
    rest = ", ".join(getattr(step, "__name__", type(step).__name__) for step in plan.tail)
    return f"{done} of {done + len(plan.tail)} steps fused" + (f", then {rest} per sample" if rest else "")


def _no_images(route: Route) -> str:
    if route.captured:
        places = ", ".join(route.captured)
        given = "is not given JPEGs or PNGs opened with PIL.Image.open, so images are transformed one by one"
        return f"{places} could be fused, but {given} ({route.reason})"
    return f"{route.reason}, and it does not open JPEGs or PNGs with PIL.Image.open"


_OPEN_WITH_PILLOW = (
    "in __getitem__, open image files with PIL.Image.open(path).convert('RGB') and give the image to a transform of "
    "torchvision.transforms"
)


def warn_if_images(loader: LoaderArguments, route: Route) -> None:
    """Says once in a process that a loader of images gains nothing, why, and what would help."""
    if loader.batch_sampler is None or not looks_like_images(loader.dataset):
        return
    speed = "is loaded hardly faster than by torch" if route.captured else "is loaded at torch's speed"
    _warn_once(
        f"{type(loader.dataset).__name__} {speed}: {_no_images(route)}. What would help: "
        f"{'; or '.join(_changes(route))}. loader.explain() says more."
    )


def _changes(route: Route) -> list[str]:
    """What would help a loader of images that gains nothing, most effective first."""
    return [*([route.advice] if route.advice else []), _OPEN_WITH_PILLOW]


@cache
def _warned() -> list[str]:
    return []


def _warn_once(text: str) -> None:
    if not _warned():
        _warned().append(text)
        warnings.warn(text, NotAccelerated, stacklevel=users_level())
