"""Finds the transforms inside a dataset, and puts fused ones in their places.

Searched are the dataset's attributes, those of datasets that it wraps and of the user's own transform objects, lists,
tuples and dictionaries of them, and what the code of the user's functions and methods names: global variables,
variables of the functions around them, attributes of their classes.

Fused transforms are put into the places themselves: in a worker process for good, in the training process only while a
batch is made.  Outside of a sample a fused transform does what its transform does, and in another thread, whose loader
has found the same transform, what that loader's would do.
"""

from __future__ import annotations

import dis
import inspect
import sys
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from fastdata.lazy.fused_transform import FusedTransform, fused_transform, plan_of
from fastdata.lazy.places import FusedTransforms, Place, original_of
from fastdata.transforms.known import is_known_transform
from fastdata.views.plan import Plan

__all__ = ["FindTransforms", "find_transforms", "looks_like_images"]

_DEEPEST = 6  # objects inside of each other
_MOST_ITEMS = 64  # longest list that may hold transforms; longer ones are lists of samples
_MOST_OBJECTS = 10_000  # looked at for one dataset, in some 20 ms
# Libraries whose objects hold no transforms, and may be large.
_FOREIGN = ("torch", "numpy", "pandas", "pyarrow", "PIL", "builtins", "collections", "io", "pathlib", "h5py", "lmdb")
# Libraries whose functions use no transforms of the user's by name.
_LIBRARIES = {*_FOREIGN, "torchvision", "timm", "albumentations", "kornia", "cv2", "skimage", "sklearn", "matplotlib"}
_LIBRARIES |= {"datasets", "transformers", "accelerate", "lightning", "pytorch_lightning", "webdataset", "fastdata"}
_OF_IMAGES = ("torchvision.transforms.", "timm.data.", "albumentations.", "fastdata.transforms", "kornia.augmentation")


def find_transforms(dataset: Any, *, follow: bool = False) -> FusedTransforms:
    """Searches a dataset for transforms that can be fused; changes nothing.

    Args:
        dataset: the dataset.
        follow: fused transforms draw from the global generators what their own code would draw.
    """
    search = _Search(follow=follow)
    search.replaced(dataset, "", 0)
    several_views = len(search.plans) > 1 or search.in_callable
    return FusedTransforms(search.plans, search.parts, search.swaps, several_views, search.fused)


class FindTransforms:
    """Finds the transforms of a dataset that are to be fused, or takes those that were found in it before.

    A forked process has the same objects; what is sent to a spawned one leaves them behind.

    Args:
        dataset: the dataset that was searched.
        found: what was found; None if it was not searched.
        follow: see `find_transforms`.
    """

    def __init__(self, dataset: Any, found: FusedTransforms | None, *, follow: bool) -> None:
        self._dataset, self._found, self._follow = dataset, found, follow

    def __call__(self, dataset: Any) -> FusedTransforms:
        """Returns the fused transforms of a dataset."""
        if self._found is not None and dataset is self._dataset:
            return self._found
        return find_transforms(dataset, follow=self._follow)

    def __reduce__(self) -> Any:
        return partial(FindTransforms, follow=self._follow), (None, None)


def looks_like_images(dataset: Any) -> bool:
    """True for torchvision's datasets, and for datasets that hold an image transform of any kind."""
    search = _Search()
    search.replaced(dataset, "", 0)
    return search.has_image_transforms or type(dataset).__module__.startswith("torchvision.datasets.")


class _Search:
    """A search for transforms through a dataset's objects.

    Args:
        follow: see `find_transforms`.
    """

    def __init__(self, *, follow: bool = False) -> None:
        self._follow = follow
        self._done: dict[int, Any] = {}  # result for each object, so that one object stays one
        self._kept: list[Any] = []  # so that no other object gets the id of one that was looked at
        self._classes: set[int] = set()  # those whose attributes and methods were looked at
        self._in_transform = 0  # how many of a library's transforms the search has gone into
        self._in_users_callable = 0  # and of callable objects of the user's, which may call a transform several times
        self.in_callable = False  # a transform was found in one of them
        self.plans: dict[str, Plan] = {}
        self.parts: set[str] = set()
        self.swaps: list[Place] = []
        self.fused: dict[int, FusedTransform] = {}
        self.has_image_transforms = False

    def replaced(self, value: Any, place: str, depth: int) -> Any:
        """Returns the value, or its replacement if it is a transform, or a tuple that holds one."""
        if id(value) in self._done:
            return self._done[id(value)]
        self._done[id(value)] = value
        self._kept.append(value)
        result = self._replaced(value, place, depth)
        self._done[id(value)] = result
        return result

    def _replaced(self, value: Any, place: str, depth: int) -> Any:
        cls = type(value)
        if depth > _DEEPEST or len(self._kept) > _MOST_OBJECTS or issubclass(cls, type):
            return value
        if cls in (list, tuple, dict):
            return self._container(value, place, depth)
        if issubclass(cls, FunctionType | MethodType | partial):
            self._in_users_callable += 1
            self._function(value, place, depth)
            self._in_users_callable -= 1
            return value
        if not _has_plain_attributes(cls) or not isinstance(getattr(value, "__dict__", None), dict):
            return value
        self.has_image_transforms |= cls.__module__.startswith(_OF_IMAGES)
        if callable(value) and is_known_transform(value):
            plan = plan_of(value, follow=self._follow)
            if plan is not None and (plan.fused or not self._find_inside(plan, place, depth)):
                place = place or cls.__name__
                place = f"{place} ({len(self.plans)})" if place in self.plans else place
                self.plans[place] = plan
                self.in_callable |= self._in_users_callable > 0
                if self._in_transform:
                    self.parts.add(place)
                self.fused[id(value)] = fused_transform(value, follow=self._follow)
                return self.fused[id(value)]
            self._in_transform += 1
            self._object(value, place, depth)
            self._in_transform -= 1
            return value
        if not _may_hold_transforms(value):
            return value
        is_called = not hasattr(cls, "__getitem__")
        self._in_users_callable += is_called
        self._object(value, place, depth)
        self._in_users_callable -= is_called
        return value

    def _find_inside(self, plan: Plan, place: str, depth: int) -> bool:
        """Searches a plan's steps that cannot be fused; True if they hold others that can: then each is by itself."""
        before, left = len(self.plans), set(map(id, plan.left))
        self._in_transform += 1
        for number, step in enumerate(plan.unfused):
            if id(step) in left:
                self.replaced(step, f"{place}.transforms[{number}]" if place else f"transforms[{number}]", depth + 2)
        self._in_transform -= 1
        return len(self.plans) > before

    def _container(self, value: Any, place: str, depth: int) -> Any:
        if len(value) > _MOST_ITEMS:
            return value
        held = value.items() if isinstance(value, dict) else enumerate(value)
        pairs = [(key, original_of(each)) for key, each in held]
        new = {key: self.replaced(each, f"{place}[{key!r}]", depth + 1) for key, each in pairs}
        changed = {key for key, each in pairs if new[key] is not each}
        if not changed:
            return value
        if isinstance(value, tuple):
            return tuple(new.values())
        self.swaps += [Place(value, key, each, new[key]) for key, each in pairs if key in changed]
        return value

    def _object(self, value: Any, place: str, depth: int) -> None:
        attributes = vars(value)
        for name, each in list(attributes.items()):
            self._swapped(attributes, name, each, place, depth)
        for cls in filter(_is_users, type(value).__mro__):
            self._class(cls, place, depth)

    def _class(self, cls: type, place: str, depth: int) -> None:
        """Searches the attributes of a user's class, and what the code of its methods names."""
        if id(cls) in self._classes:
            return
        self._classes.add(id(cls))
        may_change = inspect.getattr_static(type(cls), "__setattr__") is vars(type)["__setattr__"]
        for name, each in list(vars(cls).items()):
            kind = type(each)
            function = each.fget if kind is property else each.__func__ if kind in (staticmethod, classmethod) else each
            if type(function) is FunctionType:
                self._function(function, place, depth)
            elif may_change and not name.startswith("__"):
                self._swapped(cls, name, each, place, depth)

    def _function(self, function: Any, place: str, depth: int) -> None:
        """Searches what the code of a user's function names, and what a bound method or a partial function holds."""
        if depth > _DEEPEST:
            return
        if isinstance(function, partial):
            self.replaced(function.func, place, depth + 1)
            self._container(function.keywords, place, depth + 1)
            return
        if isinstance(function, MethodType):
            if not is_known_transform(function.__self__):
                self.replaced(function.__self__, place, depth + 1)
            function = function.__func__
        if not isinstance(function, FunctionType) or not _is_users(function):
            return
        inside = function.__name__ if function.__name__.isidentifier() else place
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with suppress(ValueError):  # not bound yet
                self._swapped(cell, name, cell.cell_contents, inside, depth)
        variables = function.__globals__
        for name, attributes in _global_names(function.__code__):
            each = variables.get(name)
            if type(each) is ModuleType and _is_users(each):
                for of_module in sorted(attributes & vars(each).keys()):
                    self._swapped(vars(each), of_module, vars(each)[of_module], name, depth)
            elif each is not None:
                self._swapped(variables, name, each, "", depth)

    def _swapped(self, holder: Any, key: str, value: Any, place: str, depth: int) -> None:
        """Searches the value in a place, and notes the place if another one belongs there."""
        value = original_of(value)
        other = self.replaced(value, f"{place}.{key}" if place else key, depth + 1)
        if other is not value:
            self.swaps.append(Place(holder, key, value, other))


@lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> list[tuple[str, frozenset[str]]]:
    """The global variables in a function's code, and in that inside of it, each with the attributes named there."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    names = [(name, frozenset(code.co_names)) for name in sorted(found)]
    return names + [name for each in code.co_consts if isinstance(each, CodeType) for name in _global_names(each)]


def _has_plain_attributes(cls: type) -> bool:
    """True if looking at the attributes of an instance runs no code of the user's: it may be a proxy that loads."""
    getter, by_itself = (inspect.getattr_static(cls, name, None) for name in ("__getattribute__", "__dict__"))
    return getter is vars(object)["__getattribute__"] and not isinstance(by_itself, property)


def _is_users(part: Any) -> bool:
    """True for functions, classes and modules of the user's."""
    if isinstance(part, FunctionType):
        module = str(part.__globals__.get("__name__", ""))
    else:
        module = part.__name__ if isinstance(part, ModuleType) else str(part.__module__)
    library = module.partition(".")[0]
    if library in _LIBRARIES:  # programs have folders of such names, like "datasets"
        return "-packages" not in (getattr(sys.modules.get(library), "__file__", None) or "-packages")
    return library == "__main__" or library not in sys.stdlib_module_names


def _may_hold_transforms(value: Any) -> bool:
    """True for datasets, and for objects of the user's."""
    cls = type(value)
    is_part = hasattr(cls, "__getitem__") or callable(value) or _is_users(cls)
    library = cls.__module__.partition(".")[0]
    is_ours_to_search = library not in _FOREIGN or cls.__module__.startswith("torch.utils.data.")
    return is_part and is_ours_to_search
