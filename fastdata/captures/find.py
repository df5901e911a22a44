"""Finds the transforms inside a dataset, and copies it with captures in their places.

Searched are the dataset's attributes, those of datasets that it wraps and of the user's own transform objects, and
lists, tuples and dictionaries of them.  Whatever lies on the way to a transform is copied, one level deep, so the
user's objects stay as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import ConcatDataset, Subset

from fastdata.captures.capture import Capture
from fastdata.transforms.compile import compile_transform, is_known_transform
from fastdata.views.plan import Plan

__all__ = ["CapturedDataset", "capture_transforms", "find_plans", "is_safe_in_threads", "looks_like_images"]

_DEEPEST = 6  # objects inside of each other
_MOST_ITEMS = 64  # of a list that may hold transforms; longer ones are lists of samples
# Of libraries whose objects hold no transforms, and may be large.
_FOREIGN = ("torch", "numpy", "pandas", "pyarrow", "PIL", "builtins", "collections", "io", "pathlib", "h5py", "lmdb")


_OF_IMAGES = ("torchvision.transforms.", "timm.data.", "albumentations.", "fastdata.transforms", "kornia.augmentation")


@dataclass(frozen=True)
class _Link:
    """An object and its copy, and the attributes in which they differ."""

    original: Any
    copied: Any
    replaced: frozenset[str]


@dataclass
class CapturedDataset:
    """A dataset's copy with captures in it.

    Attributes:
        dataset: the copy.
        plans: where each transform was found, and what it does.
        links: objects that were copied, with their copies.
    """

    dataset: Any
    plans: dict[str, Plan]
    links: list[_Link] = field(default_factory=list)

    def pull(self) -> None:
        """Takes over attributes that somebody has set on the originals since."""
        for link in self.links:
            _update(vars(link.original), vars(link.copied), link.replaced)

    def push(self) -> None:
        """Sets on the originals what the dataset's own code has set on the copies."""
        for link in self.links:
            _update(vars(link.copied), vars(link.original), link.replaced)


def capture_transforms(dataset: Any, *, per_thread: bool = False) -> CapturedDataset | None:
    """Copies a dataset with captures in place of its transforms; None if none is found.

    Args:
        dataset: any map-style dataset.
        per_thread: samples will be made in several threads.
    """
    search = _Search(per_thread)
    copied = search.replaced(dataset, "", 0)
    return CapturedDataset(copied, search.plans, search.links) if search.plans else None


def find_plans(dataset: Any) -> dict[str, Plan]:
    """What would be captured: the place of each transform, like "transform" or "dataset.transform", and its plan."""
    found = capture_transforms(dataset)
    return found.plans if found is not None else {}


def looks_like_images(dataset: Any) -> bool:
    """True for torchvision's datasets, and for those in which a transform of images is found, of whatever kind."""
    search = _Search(False)
    search.replaced(dataset, "", 0)
    return search.has_image_transforms or type(dataset).__module__.startswith("torchvision.datasets.")


def is_safe_in_threads(dataset: Any) -> bool:
    """True for torchvision's own datasets and parts of them, whose code keeps nothing between two samples."""
    if type(dataset) is Subset:
        return is_safe_in_threads(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(is_safe_in_threads, dataset.datasets))
    return type(dataset).__module__.startswith("torchvision.datasets.")


def _update(source: dict[str, Any], target: dict[str, Any], but: frozenset[str]) -> None:
    for name, value in list(source.items()):
        if name not in but and target.get(name, _update) is not value:
            target[name] = value


class _Search:
    """Goes through objects, copying those that hold a transform."""

    def __init__(self, per_thread: bool) -> None:
        self._per_thread = per_thread
        self._done: dict[int, Any] = {}  # what became of each object, so that one object stays one
        self._kept: list[Any] = []  # so that no other object gets the id of one that was looked at
        self.plans: dict[str, Plan] = {}
        self.links: list[_Link] = []
        self.has_image_transforms = False

    def replaced(self, value: Any, place: str, depth: int) -> Any:
        """The value itself, or what stands in its place."""
        if id(value) in self._done:
            return self._done[id(value)]
        self._done[id(value)] = value
        self._kept.append(value)
        result = self._replaced(value, place, depth)
        self._done[id(value)] = result
        return result

    def _replaced(self, value: Any, place: str, depth: int) -> Any:
        if depth > _DEEPEST or type(value) is Capture:
            return value
        if isinstance(value, type) or (not hasattr(value, "__dict__") and type(value) not in (list, tuple, dict)):
            return value
        self.has_image_transforms |= type(value).__module__.startswith(_OF_IMAGES)
        if callable(value) and is_known_transform(value):
            plan = compile_transform(value).plan
            if plan is not None:
                self.plans[place or type(value).__name__] = plan
                return Capture(value, plan, per_thread=self._per_thread)
        if type(value) in (list, tuple, dict):
            return self._container(value, place, depth)
        if _may_hold_transforms(value):
            return self._object(value, place, depth)
        return value

    def _container(self, value: Any, place: str, depth: int) -> Any:
        if len(value) > _MOST_ITEMS:
            return value
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        new = [self.replaced(each, f"{place}[{key!r}]", depth + 1) for key, each in pairs]
        if all(one is other for one, (_, other) in zip(new, pairs, strict=True)):
            return value
        if isinstance(value, dict):
            return {key: each for (key, _), each in zip(pairs, new, strict=True)}
        return type(value)(new)

    def _object(self, value: Any, place: str, depth: int) -> Any:
        new = {}
        for name, each in list(vars(value).items()):
            other = self.replaced(each, f"{place}.{name}" if place else name, depth + 1)
            if other is not each:
                new[name] = other
        if not new:
            return value
        try:
            copied = copy.copy(value)
            vars(copied).update(new)
        except Exception:  # noqa: BLE001 - objects may refuse to be copied in any way; they are left as they are
            return value
        self.links.append(_Link(value, copied, frozenset(new)))
        return copied


def _may_hold_transforms(value: Any) -> bool:
    """True for datasets, and for callable objects of the user's."""
    if isinstance(value, type) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    cls = type(value)
    is_part = hasattr(cls, "__getitem__") or isinstance(value, Callable)  # type: ignore[arg-type]
    library = cls.__module__.partition(".")[0]
    return (
        is_part
        and (library not in _FOREIGN or cls.__module__.startswith("torch.utils.data."))
        and not _is_function(value)
    )


def _is_function(value: Any) -> bool:
    return hasattr(value, "__code__") or hasattr(value, "__func__")
