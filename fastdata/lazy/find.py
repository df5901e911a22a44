"""Finds the transforms inside a dataset, and puts fused ones in their places.

Searched are the dataset's attributes, those of datasets that it wraps and of the user's own transform objects, and
lists, tuples and dictionaries of them.

Fused transforms are put into the objects themselves where those are the loader's own, in a worker process, or only
while a batch is made, in the training process; outside of a sample a fused transform does what its transform does.
Decode threads, in which samples are made all the time, get copies of the objects on the way to a transform.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Subset

from fastdata.lazy.fused_transform import FusedTransform, fused_transform, plan_of
from fastdata.lazy.pure_code import only_calls_known_transforms
from fastdata.lazy.sample_context import context
from fastdata.sources.recognise import is_concatenation
from fastdata.transforms.known import holds_only_known, is_known_transform
from fastdata.views.plan import Plan

__all__ = [
    "FusedTransforms",
    "copy_with_fused_transforms",
    "find_transforms",
    "is_safe_in_threads",
    "looks_like_images",
]

_DEEPEST = 6  # objects inside of each other
_MOST_ITEMS = 64  # longest list that may hold transforms; longer ones are lists of samples
# Libraries whose objects hold no transforms, and may be large.
_FOREIGN = ("torch", "numpy", "pandas", "pyarrow", "PIL", "builtins", "collections", "io", "pathlib", "h5py", "lmdb")
_OF_IMAGES = ("torchvision.transforms.", "timm.data.", "albumentations.", "fastdata.transforms", "kornia.augmentation")
_SAFE = ("torchvision.datasets.", "fastdata.image_folder", "fastdata.shards.")  # datasets that several threads may read


@dataclass(frozen=True)
class _Swap:
    """A place that holds a transform, or a tuple with one: attributes of an object, a dictionary or a list."""

    holder: Any
    key: Any
    original: Any
    ours: Any


@dataclass(frozen=True)
class FusedTransforms:
    """The transforms of a dataset that can be fused.

    Attributes:
        plans: the compiled plan of each, by its place, like "transform" or "dataset.transform".
        parts: places of transforms that are steps of a longer transform, which cannot be fused as a whole.
        swaps: the places, each with its original and its fused transform.
        several_views: an image may be given to more than one of them, or several times to one.
    """

    plans: dict[str, Plan]
    parts: set[str]
    swaps: list[_Swap]
    several_views: bool = False

    def install(self) -> None:
        """Puts the fused transforms in all places that still hold the original ones."""
        context.several_views = self.several_views
        for swap in self.swaps:
            _exchange(swap, swap.original, swap.ours)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Installs the fused transforms within a `with` block; transforms set by other code meanwhile stay."""
        before = context.several_views
        self.install()
        try:
            yield
        finally:
            context.several_views = before
            for swap in self.swaps:
                _exchange(swap, swap.ours, swap.original)


def _exchange(swap: _Swap, old: Any, new: Any) -> None:
    try:
        if swap.holder[swap.key] is old:
            swap.holder[swap.key] = new
    except (KeyError, IndexError):  # somebody has removed it
        pass


def find_transforms(dataset: Any, *, follow: bool = False) -> FusedTransforms:
    """Searches a dataset for transforms that can be fused; changes nothing.

    Args:
        dataset: the dataset.
        follow: fused transforms draw from the global generators what their own code would draw.
    """
    search = _Search(per_thread=False, copies=False, follow=follow)
    search.replaced(dataset, "", 0)
    several_views = len(search.plans) > 1 or search.in_callable
    return FusedTransforms(search.plans, search.parts, search.swaps, several_views)


def copy_with_fused_transforms(dataset: Any) -> Any:
    """Copies a dataset, as deep as its transforms lie, with fused transforms that several threads may call."""
    return _Search(per_thread=True, copies=True).replaced(dataset, "", 0)


def looks_like_images(dataset: Any) -> bool:
    """True for torchvision's datasets, and for datasets that hold an image transform of any kind."""
    search = _Search(per_thread=False, copies=False)
    search.replaced(dataset, "", 0)
    return search.has_image_transforms or type(dataset).__module__.startswith("torchvision.datasets.")


def is_safe_in_threads(dataset: Any) -> bool:
    """True for torchvision's and our datasets and subsets of them, without user code that could notice threads."""
    if type(dataset) is Subset:
        return is_safe_in_threads(dataset.dataset)
    if is_concatenation(dataset):
        return all(map(is_safe_in_threads, dataset.datasets))
    transform = getattr(dataset, "transform", None)
    others = (getattr(dataset, name, None) for name in ("target_transform", "loader", "is_valid_file", "transforms"))
    return (
        type(dataset).__module__.startswith(_SAFE)
        and (transform is None or holds_only_known(transform) or only_calls_known_transforms(transform))
        and all(other is None or getattr(other, "__module__", "").startswith(_SAFE) for other in others)
    )


class _Search:
    """A search for transforms through a dataset's objects.

    Args:
        per_thread: fused transforms will be called in several threads.
        copies: copy what holds a transform, instead of noting its place.
        follow: see `find_transforms`.
    """

    def __init__(self, *, per_thread: bool, copies: bool, follow: bool = False) -> None:
        self._per_thread, self._copies, self._follow = per_thread, copies, follow
        self._done: dict[int, Any] = {}  # result for each object, so that one object stays one
        self._kept: list[Any] = []  # so that no other object gets the id of one that was looked at
        self._in_transform = 0  # how many of a library's transforms the search has gone into
        self._in_users_callable = 0  # and of callable objects of the user's, which may call a transform several times
        self.in_callable = False  # a transform was found in one of them
        self.plans: dict[str, Plan] = {}
        self.parts: set[str] = set()
        self.swaps: list[_Swap] = []
        self.has_image_transforms = False

    def replaced(self, value: Any, place: str, depth: int) -> Any:
        """Returns the value, or its replacement if it is a transform or a copied object that holds one."""
        if id(value) in self._done:
            return self._done[id(value)]
        self._done[id(value)] = value
        self._kept.append(value)
        result = self._replaced(value, place, depth)
        self._done[id(value)] = result
        return result

    def _replaced(self, value: Any, place: str, depth: int) -> Any:
        if depth > _DEEPEST or issubclass(type(value), FusedTransform) or isinstance(value, type):
            return value
        if type(value) in (list, tuple, dict):
            return self._container(value, place, depth)
        if not isinstance(getattr(value, "__dict__", None), dict):
            return value
        self.has_image_transforms |= type(value).__module__.startswith(_OF_IMAGES)
        if callable(value) and is_known_transform(value):
            plan = plan_of(value, follow=self._follow)
            if plan is not None:
                self.plans[place or type(value).__name__] = plan
                self.in_callable |= self._in_users_callable > 0
                if self._in_transform:
                    self.parts.add(place)
                return fused_transform(value, per_thread=self._per_thread, follow=self._follow)
            self._in_transform += 1
            try:
                return self._object(value, place, depth)
            finally:
                self._in_transform -= 1
        if not _may_hold_transforms(value):
            return value
        is_callable = callable(value) and not hasattr(type(value), "__getitem__")
        self._in_users_callable += is_callable
        try:
            return self._object(value, place, depth)
        finally:
            self._in_users_callable -= is_callable

    def _container(self, value: Any, place: str, depth: int) -> Any:
        if len(value) > _MOST_ITEMS:
            return value
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        new = {key: self.replaced(each, f"{place}[{key!r}]", depth + 1) for key, each in pairs}
        changed = {key for key, each in pairs if new[key] is not each}
        if not changed:
            return value
        if isinstance(value, tuple):
            return tuple(new.values())
        if not self._copies:
            self.swaps += [_Swap(value, key, value[key], new[key]) for key in changed]
            return value
        return new if isinstance(value, dict) else list(new.values())

    def _object(self, value: Any, place: str, depth: int) -> Any:
        attributes, new = vars(value), {}
        for name, each in list(attributes.items()):
            other = self.replaced(each, f"{place}.{name}" if place else name, depth + 1)
            if other is not each:
                new[name] = other
        if not self._copies:
            self.swaps += [_Swap(attributes, name, attributes[name], other) for name, other in new.items()]
            return value
        if not new or hasattr(type(value), "__del__"):  # a copy would release what the original holds
            return value
        try:
            copied = object.__new__(type(value))
            vars(copied).update({**attributes, **new})
        except TypeError:  # made by C code, which wants to do that itself
            return value
        return copied


def _may_hold_transforms(value: Any) -> bool:
    """True for datasets, and for callable objects of the user's."""
    cls = type(value)
    is_part = hasattr(cls, "__getitem__") or callable(value)
    library = cls.__module__.partition(".")[0]
    is_ours_to_search = library not in _FOREIGN or cls.__module__.startswith("torch.utils.data.")
    is_function = hasattr(value, "__code__") or hasattr(value, "__func__")
    return is_part and is_ours_to_search and not is_function
