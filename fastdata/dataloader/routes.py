"""Which way a loader's batches go: the image pipeline, or torch's own path."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.utils.data import default_collate

from fastdata.dataloader.arguments import LoaderArguments
from fastdata.loaders import native_problem
from fastdata.sources.arrays import ArraySource
from fastdata.sources.protocol import ImageSource, NotASource
from fastdata.sources.recognise import recognise
from fastdata.transforms.compile import compile_transform, has_batch_form
from fastdata.views.plan import Plan

__all__ = ["Route", "find_route"]


@dataclass(frozen=True, kw_only=True)
class Route:
    """The way taken and why.

    Attributes:
        source: where images come from; None on torch's path.
        plan: what happens to them; None on torch's path.
        reason: in words: why torch's path was taken, or why the fused prefix ended where it did.
        advice: on torch's path, what would change that.
    """

    source: ImageSource | None = None
    plan: Plan | None = None
    reason: str
    advice: str | None = None

    @property
    def is_image_pipeline(self) -> bool:
        """True when batches come from the image pipeline."""
        return self.plan is not None


def find_route(loader: LoaderArguments) -> Route:
    """Decides the route of a loader from its arguments."""
    if problem := _unsuited_argument(loader):
        return Route(reason=problem[0], advice=problem[1])
    try:
        source = recognise(loader.dataset)
    except NotASource as error:
        return Route(reason=str(error), advice=error.advice)
    compiled = compile_transform(source.transform, augment_on=loader.augment_on)
    if compiled.plan is None:
        return Route(reason=compiled.reason, advice=compiled.advice)
    if isinstance(source, ArraySource):
        return _array_route(loader, source, compiled.plan, compiled.reason)
    return Route(source=source, plan=compiled.plan, reason=compiled.reason)


def _array_route(loader: LoaderArguments, source: ArraySource, plan: Plan, reason: str) -> Route:
    """Images in memory, which are only worth taking from torch when whole batches of them are made."""
    plan = replace(plan, source_size=source.image_size)
    if (problem := native_problem()) is not None:
        return Route(reason="images in memory need the native core", advice=problem)
    if plan.tail:
        advice = "end the transform with ToTensor or PILToTensor, and Normalize"
        if has_batch_form(plan.tail[0]) and loader.augment_on == "host":
            advice = "augment_on='device' applies the augmentations to whole batches"
        return Route(reason=f"images in memory are only done in whole batches, and {reason}", advice=advice)
    if not plan.batchable:
        return Route(reason="the transform ends with a PIL image", advice="end it with ToTensor or PILToTensor")
    if loader.collate_fn not in (None, default_collate):
        name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        return Route(
            reason=f"images in memory are only done in whole batches, and {name} collates samples",
            advice="leave collate_fn out, and do its work on the batch",
        )
    if plan.augments and source.channels == 1:
        return Route(reason="augmentations on batches need three channels", advice="leave augment_on out")
    if plan.normalisation is not None and not plan.normalisation.suits(source.channels):
        return Route(
            reason="Normalize has three values, and the images have one channel", advice="give it one mean and one std"
        )
    return Route(source=source, plan=plan, reason=reason)


def _unsuited_argument(loader: LoaderArguments) -> tuple[str, str | None] | None:
    """Why the image pipeline cannot be used, and what to change."""
    if loader.batch_sampler is None:
        return "batch_size=None asks for single samples, or the dataset is iterable", "pass a batch_size"
    if loader.num_workers > 0 and loader.worker_init_fn is not None:
        return (
            "worker_init_fn runs in worker processes, which the image pipeline does not have",
            "if it only sets seeds, remove it: random crops are seeded per sample",
        )
    if loader.multiprocessing_context is not None:
        return (
            "multiprocessing_context asks for worker processes, which the image pipeline does not have",
            "leave multiprocessing_context out",
        )
    return None
