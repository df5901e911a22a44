"""Verdict of a loader on itself, and its warning when images gain nothing."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, Subset

from fastdata.dataloader.arguments import LoaderArguments
from fastdata.dataloader.routes import ADVICE_MAP_STYLE, LEFT_TO_TORCH, Route
from fastdata.errors import NotAccelerated
from fastdata.lazy.batch_messages import ImageCounts
from fastdata.lazy.find import looks_like_images
from fastdata.loaders import native_problem
from fastdata.pipeline.choose_backend import BackendChoice
from fastdata.pipeline.choose_threads import ThreadChoice
from fastdata.sources.arrays import ArraySource
from fastdata.system.cpus import auto_threads
from fastdata.system.stack_level import users_level
from fastdata.transforms.known import name_of
from fastdata.views.plan import Plan

__all__ = ["Findings", "Verdict", "asked_workers", "counts_threads", "verdict", "warn_if_images"]


@dataclass(frozen=True)
class Verdict:
    """Verdict of a loader on what it gains over torch's; `str()` of it is one line of any length.

    Attributes:
        kind: "accelerated": images are decoded and transformed here; "partly accelerated": a real share of that work is
            saved, some of it is left to the dataset's code; "little gain": nearly all of it is; "not accelerated":
            torch's loader would be as fast; "not known before the first batches".
        reason: reason for the verdict, in words.
        change: change to the program that would help most, where little or nothing is gained; else None.
    """

    kind: Literal[
        "accelerated", "partly accelerated", "little gain", "not accelerated", "not known before the first batches"
    ]
    reason: str
    change: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" + (f"; {self.change}" if self.change else "")


@dataclass
class Happened(ImageCounts):
    """Counts for the first batches that a dataset's own code has made.

    Attributes:
        batches: batches received; `samples` are those of batches that came with a report.
    """

    batches: int = 0

    @property
    def gains(self) -> bool:
        """True if anything was done natively."""
        return self.decoded > 0 or self.fused > 0

    @property
    def is_in_vain(self) -> bool:
        """True if the others are opened by the dataset's library, since nearly all decoded natively gained nothing."""
        return self.others > 0 and self.in_vain >= _NEARLY_ALL / (1 + _NEARLY_ALL) * self.decoded > 0

    @property
    def is_for_others(self) -> bool:
        """True if leaving images encoded has gained nothing over the library that the dataset opens them with."""
        return self.is_in_vain or (self.converted > 0 and not self.gains)

    def note(self, report: ImageCounts | None) -> None:
        """Adds another batch, with its report if there is one."""
        self.batches += 1
        if report is not None:
            self.add(report)


@dataclass
class Findings:
    """Facts that a loader has found out so far.

    Attributes:
        choice: the backend that decodes; None before the first iteration.
        happened: counts for the images in batches that the dataset's own code has made.
        is_auto: num_workers="auto" was asked for.
        threads: the number of threads that "auto" gives in the image pipeline; None if it was not counted.
    """

    choice: BackendChoice | None = None
    happened: Happened = field(default_factory=Happened)
    is_auto: bool = False
    threads: ThreadChoice | None = None


def counts_threads(loader: LoaderArguments, findings: Findings) -> bool:
    """True where the number of threads is measured: num_workers="auto", and nobody has set another number since."""
    return findings.is_auto and loader.num_workers == auto_threads()


def asked_workers(loader: Any) -> int | str:
    """The `num_workers` of a loader of ours as it was asked for: "auto", unless another number has been set since."""
    return "auto" if counts_threads(loader, loader._findings) else int(loader.num_workers)


def verdict(loader: LoaderArguments, route: Route, findings: Findings) -> Verdict:
    """Finds whether a loader is accelerated, how far, and if it is not, why and what to change."""
    if (problem := native_problem()) is not None:
        return Verdict("not accelerated", f"the native core is missing: {problem}")
    if route.plan is not None:
        what = "in memory are made into batches" if isinstance(route.source, ArraySource) else "are decoded"
        reason = f"images {what} by the image pipeline; {_share(route.plan)}"
        return Verdict("accelerated", reason)
    if _is_torchs(loader, route):
        return Verdict("not accelerated", _why_torchs(route), _change(loader, route, findings.happened))
    if findings.happened.batches:
        return _by_what_happened(loader, route, findings.happened)
    could = f", with the dataset's own transforms ({_shares(route)})" if route.fused else f" ({route.reason})"
    reason = f"JPEGs and PNGs opened with PIL.Image.open are decoded natively{could}"
    return Verdict("not known before the first batches", reason)


def _by_what_happened(loader: LoaderArguments, route: Route, happened: Happened) -> Verdict:
    """The verdict for a dataset's own code, by what it did in the first batches."""
    if not happened.gains:
        return Verdict("not accelerated", _no_images(loader, happened), _change(loader, route, happened))
    if happened.opened > _NEARLY_ALL * happened.decoded or not happened.decoded or happened.is_in_vain:
        return _only_transformed(loader, route, happened)
    decoded = f"images are decoded by the native core ({happened.decoded} in the first {_batches(happened)})"
    is_whole = happened.whole >= _NEARLY_ALL / (1 + _NEARLY_ALL) * happened.decoded and not _saves_steps(route)
    if is_whole and 2 * happened.handed > happened.whole:
        uses = f" ({', '.join(sorted(happened.uses))})" if happened.uses else ""
        reason = f"{decoded}, but then all of their pixels are given to Pillow, which does the rest{uses}"
        return Verdict("little gain", reason, _CROP_FIRST)
    if happened.joint:
        return _with_targets(decoded, happened)
    if is_whole or not happened.fused:
        plain = "; ".join(sorted(happened.plain))
        return Verdict("partly accelerated", f"{decoded}, {_ONLY_DECODED}" + (f" ({plain})" if plain else ""))
    return _decoded_and_transformed(decoded, loader, route, happened)


_NEARLY_ALL = 3  # times as many as of the others

_ONLY_DECODED = "1.3 to 1.5 times as fast as by Pillow; what is done with their pixels stays your code's"

_CROP_FIRST = (
    "crop and resize the image right after PIL.Image.open(path).convert('RGB'), in a transform of "
    "torchvision.transforms or with image.resize(size), before anything else works on its pixels"
)


def _saves_steps(route: Route) -> bool:
    """True if a fused transform crops, resizes, flips or augments: conversions to tensors alone save little."""
    return any(plan.saves_steps for plan in route.fused.values())


def _shares(route: Route) -> str:
    return "; ".join(f"{place}: {_share(plan)}" for place, plan in route.fused.items())


def _only_transformed(loader: LoaderArguments, route: Route, happened: Happened) -> Verdict:
    """The verdict for images that are not, or hardly, decoded natively."""
    reason = "the dataset decodes its images itself"
    if happened.converted:
        reason = _no_images(loader, happened)
    elif happened.is_in_vain:
        reason = f"{_library(loader)} decodes its images, since your code uses each by itself: small, or as a tensor"
    elif happened.opened:
        reason = f"Pillow decodes its images: {happened.opened} in the first {_batches(happened)}, {_kinds(happened)}"
    if happened.fused:
        reason += f"; of its transforms, {_shares(route) or 'conversions to tensors'}"
    if happened.fused and _saves_steps(route):
        return Verdict("partly accelerated", reason)
    return Verdict("little gain", reason, None if happened.is_in_vain else _change(loader, route, happened))


def _decoded_and_transformed(decoded: str, loader: LoaderArguments, route: Route, happened: Happened) -> Verdict:
    plain = "; ".join(sorted(happened.plain))
    touches = 2 * happened.touched >= happened.samples > 0
    has_parts = route.found is not None and bool(route.found.parts)
    some = plain or touches or has_parts or any(plan.unfused for plan in route.fused.values())
    rest = f"; some calls were left to the transform: {plain}" if plain else ""
    rest += "; your code works on pixels itself, too" if touches else ""
    known = "their known steps" if isinstance(loader.dataset, IterableDataset) else "conversions to tensors"
    reason = f"{decoded}, with the dataset's own transforms ({_shares(route) or known}){rest}"
    return Verdict("partly accelerated" if some else "accelerated", reason)


def _with_targets(decoded: str, happened: Happened) -> Verdict:
    """The verdict for transforms of an image and its targets."""
    if 2 * happened.left < happened.decoded:
        reason = f"{decoded}; the transforms of image and target, or collate_fn, work on pixels"
        return Verdict("partly accelerated", reason)
    return Verdict("accelerated", f"{decoded}, together with what the transforms of image and target do to images")


def _kinds(happened: Happened) -> str:
    """The kinds of images that Pillow has opened."""
    return " and ".join(sorted(happened.kinds))


def _batches(happened: Happened) -> str:
    return f"{happened.batches} batches" if happened.batches > 1 else "batch"


def _is_torchs(loader: LoaderArguments, route: Route) -> bool:
    """True where torch's code makes the batches without us."""
    is_stream = isinstance(loader.dataset, IterableDataset)
    return (loader.batch_sampler is None and not is_stream) or route.left_to_torch is not None


def _why_torchs(route: Route) -> str:
    """Reason why nothing can be taken over, before any batch."""
    return route.left_to_torch or route.reason


def _share(plan: Plan) -> str:
    """Describes the part of a transform that is done in one go with decoding."""
    done, left = len(plan.fused) + len(plan.behind), plan.left
    rest = ", ".join(map(name_of, left))
    return f"{done} of {done + len(left)} steps fused" + (f", per sample: {rest}" if rest else "")


def _no_images(loader: LoaderArguments, happened: Happened) -> str:
    """Reason why no image was decoded natively, by what the dataset's code did."""
    if happened.converted:
        return (
            f"{type(loader.dataset).__name__} converts its images to another mode than RGB at once, which is left to "
            "Pillow"
        )
    if happened.opened:
        count, batches = happened.opened + happened.others, _batches(happened)
        return (
            f"{type(loader.dataset).__name__} opened {count} images in the first {batches}: {_kinds(happened)}, which "
            "Pillow decodes"
        )
    if not (isinstance(loader.dataset, IterableDataset) or _loads_images(loader, happened, None)):
        return f"{type(loader.dataset).__name__} opens no images with PIL.Image.open"
    other = _other_decoder(loader.dataset)
    how = f"it uses {other}" if other else "it opens none with PIL.Image.open"
    return f"{type(loader.dataset).__name__} decodes its images itself: {how}"


_DECODERS = {  # by a name that code uses
    "imread": "OpenCV",
    "imdecode": "OpenCV",
    "read_image": "torchvision.io",
    "decode_image": "torchvision.io",
    "decode_jpeg": "torchvision.io",
    "decode_png": "torchvision.io",
}


def _other_decoder(dataset: Any) -> str | None:
    """The library that a dataset's methods decode with, by the names that their code mentions."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    for method in vars(type(dataset)).values():
        code = getattr(method, "__code__", None)
        names = {*getattr(code, "co_names", ())} & _DECODERS.keys()
        if code is not None and names:
            module = getattr(method.__globals__.get(min(names)), "__module__", None) or ""
            is_torchcodecs = module.startswith("torchcodec") or "torchcodec" in code.co_names
            return "torchcodec" if is_torchcodecs else _DECODERS[min(names)]
    return None


def _library(loader: LoaderArguments) -> str:
    """The library that a dataset opens its images with."""
    return _other_decoder(loader.dataset) or "Pillow"


_OPEN_WITH_PILLOW = (
    "in __getitem__, open image files with PIL.Image.open(path).convert('RGB') and give the image to a transform of "
    "torchvision.transforms"
)


_FUSE_THE_REST = (
    "only 8-bit JPEGs and PNGs that are used in RGB are decoded natively. Store images as such; or give them, after "
    "convert('RGB'), to a transform of torchvision.transforms, whose crops and resizes are native"
)


# See benchmarks/results/opencv.json.
_INSTEAD_OF_OPENCV = (
    " for all that is done to it, which takes about half the CPU of OpenCV with albumentations; opening images with "
    "Pillow for albumentations gains nothing"
)


def warn_if_images(loader: LoaderArguments, route: Route, happened: Happened, batch: Any) -> None:
    """Says once in a process that a loader of images gains nothing, why, and what would help.

    Args:
        loader: arguments of the loader.
        route: route of the loader.
        happened: counts for the loader's first batches.
        batch: one of these batches.
    """
    if route.left_to_torch == LEFT_TO_TORCH or not _loads_images(loader, happened, batch):
        return
    if happened.converted:  # no change would help a program that wants another mode
        return
    why = _why_torchs(route) if _is_torchs(loader, route) else _no_images(loader, happened)
    _warn_once(
        f"{type(loader.dataset).__name__} is loaded at torch's speed: {why}. What would help: "
        f"{_change(loader, route, happened)}. loader.explain() says more."
    )


def _loads_images(loader: LoaderArguments, happened: Happened, batch: Any) -> bool:
    """True if a dataset's code opens image files, as far as can be seen; tensors alone may be anything."""
    if isinstance(loader.dataset, IterableDataset):
        return _has_images(batch) and not sys.modules.keys().isdisjoint(("PIL.Image", "cv2"))
    return happened.opened > 0 or bool(_other_decoder(loader.dataset)) or looks_like_images(loader.dataset)


_SMALLEST_IMAGE = 16  # pixels of a side


def _has_images(batch: Any) -> bool:
    """True if a batch has tensors that look like images: (N, 3, H, W), or (N, H, W, 3)."""

    def is_of_images(leaf: Any) -> bool:
        shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else ()
        sides = shape[-2:] if shape[-3:-2] == (3,) else shape[-3:-1] if shape[-1:] == (3,) else ()
        return len(shape) >= 3 and len(sides) == 2 and min(sides) >= _SMALLEST_IMAGE

    return any(map(is_of_images, tree_leaves(batch)))


def _change(loader: LoaderArguments, route: Route, happened: Happened) -> str | None:
    """The change that would help most; None if no images are loaded."""
    if route.left_to_torch == LEFT_TO_TORCH:
        return "leave defer=False, FASTDATA_DEFER=0 and FASTDATA=0 out"
    if route.left_to_torch is not None:
        return "put the library's function back, and do in a step of the dataset's transform what takes its place"
    if _is_torchs(loader, route):
        return route.advice or ADVICE_MAP_STYLE
    converts = happened.converted > 0
    if happened.opened and not converts:
        return _FUSE_THE_REST
    if not (
        isinstance(loader.dataset, IterableDataset)
        or _loads_images(loader, happened, None)
        or happened.gains
        or converts
    ):
        return None
    return _OPEN_WITH_PILLOW + (_INSTEAD_OF_OPENCV if _other_decoder(loader.dataset) == "OpenCV" else "")


@cache
def _warned() -> list[str]:
    return []


def _warn_once(text: str) -> None:
    if not _warned():
        _warned().append(text)
        warnings.warn(text, NotAccelerated, stacklevel=users_level())
