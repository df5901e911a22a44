"""Choice of a loader's route: the image pipeline, the dataset's own code in threads, or torch's own iterators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch.utils.data import IterableDataset

from fastdata.dataloader.arguments import LoaderArguments, may_defer
from fastdata.lazy.find import find_transforms
from fastdata.lazy.follow_trial import follows_its_own_code
from fastdata.lazy.places import FusedTransforms
from fastdata.loaders import native_problem
from fastdata.patches.originals import replaced_function
from fastdata.pipeline.collate import is_known_collation, is_timms, stacks_images
from fastdata.sources.arrays import ArraySource, look_again
from fastdata.sources.protocol import ADVICE_SOURCE, ImageSource, NotASource
from fastdata.sources.recognise import has_target_transform, makes_samples, recognise
from fastdata.sources.samples import samples_of
from fastdata.transforms.augmentations import has_batch_form
from fastdata.transforms.compile import ADVICE_FIRST_STEP, compile_transform, flatten
from fastdata.transforms.known import name_of
from fastdata.views.plan import Plan

__all__ = ["ADVICE_MAP_STYLE", "LEFT_TO_TORCH", "Route", "find_route"]


# Functions of frameworks that only seed the random generators of a worker process.
_SEEDING = {
    ("lightning.fabric.utilities.seed", "pl_worker_init_function"),
    ("lightning_fabric.utilities.seed", "pl_worker_init_function"),
    ("timm.data.loader", "_worker_init"),
    ("transformers.trainer_utils", "seed_worker"),
}


ADVICE_MAP_STYLE = (
    "use a map-style dataset that opens images with PIL.Image.open, or tar shards with fastdata.ShardDataset"
)


LEFT_TO_TORCH = "defer=False, FASTDATA_DEFER=0 or FASTDATA=0 leaves the dataset to torch and Pillow"


@dataclass(frozen=True, kw_only=True)
class Route:
    """Path of a loader's batches, and the reason for it.

    Attributes:
        source: the source of the images; None where the dataset's own code makes samples.
        plan: the views and transforms of the images; None where the dataset's own code makes samples.
        reason: reason in words: why the dataset's own code is used, or why the fused prefix ended where it did.
        advice: change that would avoid the dataset's own code, where that is used; else None.
        found: the fused transforms of the dataset's own code; of this dataset object, not of a copy in another process.
        dataset: what makes the samples, where that is the dataset's own code.
        left_to_torch: why torch and Pillow make the samples, and no image stays encoded; None if they do not.
    """

    source: ImageSource | None = None
    plan: Plan | None = None
    reason: str
    advice: str | None = None
    found: FusedTransforms | None = field(default=None, compare=False, repr=False)
    dataset: Any = field(default=None, compare=False, repr=False)
    left_to_torch: str | None = None

    @property
    def fused(self) -> Mapping[str, Plan]:
        """Plans of the fused transforms, by their places in the dataset."""
        return self.found.plans if self.found is not None else {}

    @property
    def is_image_pipeline(self) -> bool:
        """True when batches come from the image pipeline."""
        return self.plan is not None

    @property
    def by_torchs_code(self) -> bool:
        """True where torch's iterators make the batches and `num_workers` counts worker processes."""
        return not self.is_image_pipeline


def find_route(loader: LoaderArguments) -> Route:
    """Decides the route of a loader from its arguments, and from the functions of other libraries as they are now."""
    left = replaced_function() if may_defer(loader) else LEFT_TO_TORCH
    dataset = samples_of(loader.dataset)
    return replace(_found(loader, dataset, left), dataset=dataset, left_to_torch=left)


def _found(loader: LoaderArguments, dataset: Any, left: str | None) -> Route:
    if isinstance(loader.dataset, IterableDataset):
        reason = f"{type(loader.dataset).__name__} is an iterable dataset, which torch's own code iterates"
        return Route(reason=reason, advice=ADVICE_MAP_STYLE)
    if loader.batch_sampler is None:
        return Route(reason="batch_size=None asks for single samples", advice="pass a batch_size")
    if left is not None:
        return Route(reason=left)
    route = _pipeline_route(loader)
    if route.plan is not None:
        return route
    found = find_transforms(dataset, follow=loader.draws == "torch")
    if not found.plans or native_problem() is not None:  # asked last, since it imports Pillow
        return route
    if route.advice in (ADVICE_SOURCE, ADVICE_FIRST_STEP):  # the image pipeline would gain little more
        route = replace(route, advice=None)
    return replace(route, found=found)


def _pipeline_route(loader: LoaderArguments) -> Route:
    """Returns the route through the image pipeline; a route without plan, with the reason, if that cannot be taken."""
    if problem := _asks_for_processes(loader):
        return Route(reason=problem[0], advice=problem[1])
    look_again()
    try:
        source = recognise(loader.dataset)
    except NotASource as error:
        return Route(reason=str(error), advice=error.advice)
    follow = loader.draws == "torch" and makes_samples(loader.dataset)
    compiled = compile_transform(source.transform, augment_on=loader.augment_on, follow=follow)
    plan = compiled.plan
    if plan is not None and plan.augments and not stacks_images(loader.collate_fn, plan.output_dtype):
        compiled = compile_transform(source.transform, follow=follow)  # there will be no batch of images to augment
    if (plan := compiled.plan) is None:
        return Route(reason=compiled.reason, advice=compiled.advice)
    code = _users_code(loader, source, plan, compiled.reason)
    if not plan.draws:
        plan = replace(plan, following=None)
    elif follow and code is None and (reason := _not_followed(loader, source, plan)) is not None:
        return Route(
            reason=f"draws='torch' has samples made where torch would make them: {reason}",
            advice="leave draws out: draws by (seed, epoch, sample) take less CPU",
        )
    if isinstance(source, ArraySource) and not (route := _array_route(loader, source, plan, compiled.reason)).plan:
        return route
    if code is not None:
        where = "in worker processes" if loader.num_workers else "for one sample after the other"
        advice = None
        if any(map(has_batch_form, plan.unfused)) and loader.augment_on == "host":
            advice = "augment_on='device' applies the augmentations to whole batches, if no step of yours comes before"
        return Route(
            reason=f"{code}; code that is called per sample runs where torch would run it, {where}", advice=advice
        )
    return route if isinstance(source, ArraySource) else Route(source=source, plan=plan, reason=compiled.reason)


def _not_followed(loader: LoaderArguments, source: ImageSource, plan: Plan) -> str | None:
    """Reason why threads cannot draw what torch's worker processes would draw; None if they can."""
    if loader.num_workers == 0:
        return "with num_workers=0 random transforms share the generators of the training loop"
    if loader.persistent_workers:
        return "persistent workers go on drawing where the last epoch ended, also after a break"
    if not loader.in_order:
        return "with in_order=False the clock decides which worker draws for which batch"
    if loader.worker_init_fn is not None:
        return "worker_init_fn may seed the generators of the worker processes"
    if native_problem() is not None or not follows_its_own_code(flatten(source.transform), plan):
        return "with the installed versions the draws of its transform are not known"
    return None


def _users_code(loader: LoaderArguments, source: ImageSource, plan: Plan, reason: str) -> str | None:
    """Code that would be called for each sample or batch and is not known to be pure, in words; None for none.

    That a source reads encoded bytes and targets in several threads is what its protocol says (sources/protocol.py).
    """
    if plan.unfused:
        return reason
    if not is_known_collation(loader.collate_fn):
        return f"{name_of(loader.collate_fn)} collates samples"
    if has_target_transform(source):
        return "target_transform is called per sample"
    return None


def _array_route(loader: LoaderArguments, source: ArraySource, plan: Plan, reason: str) -> Route:
    """Returns the image pipeline's route for images in memory; one without plan if it cannot make whole batches.

    Taking over single images from torch would gain little.
    """
    plan = replace(plan, source_size=source.image_size)
    if (problem := native_problem()) is not None:
        return Route(reason="images in memory need the native core", advice=problem)
    if plan.unfused:
        advice = "end the transform with ToTensor or PILToTensor, and Normalize"
        if has_batch_form(plan.unfused[0]) and loader.augment_on == "host":
            advice = "augment_on='device' applies the augmentations to whole batches"
        return Route(reason=f"images in memory are only transformed in whole batches, and {reason}", advice=advice)
    if not plan.in_one_pass:
        reason = "images in memory are only transformed in one pass, which cannot do the steps in this order"
        return Route(reason=reason, advice="put crops, resizes and flips before augmentations, with at most one resize")
    if not plan.batchable:
        return Route(reason="the transform ends with a PIL image", advice="end it with ToTensor or PILToTensor")
    if not stacks_images(loader.collate_fn, plan.output_dtype):
        name = getattr(loader.collate_fn, "__name__", type(loader.collate_fn).__name__)
        return Route(
            reason=f"images in memory are only transformed in whole batches, and {name} collates samples",
            advice="leave collate_fn out, and do its work on the batch",
        )
    if source.form is not None and is_timms(loader.collate_fn):
        return Route(reason="fast_collate takes samples of an image and a label", advice="return (image, label)")
    if plan.augments and source.channels == 1:
        return Route(reason="augmentations on batches need three channels", advice="leave augment_on out")
    if plan.normalisation is not None and not plan.normalisation.suits(source.channels):
        return Route(
            reason="Normalize has three values, and the images have one channel", advice="give it one mean and one std"
        )
    return Route(source=source, plan=plan, reason=reason)


def _asks_for_processes(loader: LoaderArguments) -> tuple[str, str | None] | None:
    """The argument that asks for worker processes, which the image pipeline lacks, and what to change; None if none."""
    if loader.num_workers > 0 and not _only_seeds(loader.worker_init_fn):
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


def _only_seeds(function: Any) -> bool:
    """True for None, and for functions that are known to set nothing but seeds."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    return function is None or name in _SEEDING
