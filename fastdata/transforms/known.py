"""Recognises transforms by their names, if they are a library's own and nobody has changed them."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

import torch

__all__ = ["holds_only_known", "is_hooked", "is_known_transform", "is_timms", "is_tv_image", "is_v2", "name_of"]

_OWN_MODULES = (
    "fastdata.transforms",
    "fastdata.augment.erasing",
    "fastdata.augment.auto_augment",
    "fastdata.augment.container",
    "fastdata.augment.color",
    "fastdata.augment.color",
    "fastdata.augment.timm_auto_augment",
    "fastdata.augment.geometry",
)
_TIMMS_MODULES = ("timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing")
_LIBRARIES = ("PIL", "fastdata", "timm", "torch", "torchvision")


def is_known_transform(step: object) -> bool:
    """True for an instance of a library's own class; a subclass in the user's own module may do anything."""
    module = type(step).__module__
    return module.startswith("torchvision.transforms.") or module in (*_OWN_MODULES, *_TIMMS_MODULES)


def holds_only_known(step: object) -> bool:
    """True for a library's own transform that calls nothing of the user's: no function, hook or step that it holds."""
    if not is_known_transform(step):
        return False
    inside: list[Any] = [step]
    seen = set[int]()
    while inside:
        value = inside.pop()
        if id(value) in seen or isinstance(value, type):
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple | set):
            inside += value
        elif isinstance(value, dict):
            inside += value.values()
        elif not callable(value):
            continue
        elif is_known_transform(value) or type(value).__module__ == "torch.nn.modules.container":
            if is_hooked(value):
                return False
            inside += vars(value).values()
        elif isinstance(value, MethodType):
            inside += [value.__self__, value.__func__]
        elif _module_of(value).partition(".")[0] not in _LIBRARIES:
            return False
    return True


def _module_of(value: object) -> str:
    """The module in which a function was written, whatever functools.wraps says, or an object's class."""
    if isinstance(value, FunctionType):
        return str(value.__globals__.get("__name__", ""))
    return getattr(value, "__module__", None) or type(value).__module__


def is_timms(step: object) -> bool:
    """True for classes of timm's, whose names may be torchvision's for something else."""
    return type(step).__module__ in _TIMMS_MODULES


def is_v2(step: object) -> bool:
    """True for classes of torchvision.transforms.v2."""
    return ".v2." in type(step).__module__


def is_tv_image(cls: type) -> bool:
    """True for torchvision's class of tensors that are images."""
    return (cls.__module__, cls.__name__) == ("torchvision.tv_tensors._image", "Image")


def name_of(step: object) -> str:
    """Display name: `__name__`, else the class name."""
    return getattr(step, "__name__", type(step).__name__)


def is_hooked(step: object) -> bool:
    """True for an object that does something else than its class says: by hooks, or by functions that were replaced."""
    library = type(step).__module__.partition(".")[0]
    inside = [getattr(type(step), name, None) for name in _INSIDES]
    own = vars(step) if hasattr(step, "__dict__") else {}
    return (
        (isinstance(step, torch.nn.Module) and _has_hooks(step))
        or any(name in own for name in _INSIDES)
        or any(_is_foreign(each, library) for each in inside)
    )


def _has_hooks(module: torch.nn.Module) -> bool:
    everywhere = torch.nn.modules.module
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            everywhere._global_forward_hooks,
            everywhere._global_forward_pre_hooks,
        )
    )


def _is_foreign(inside: object, library: str) -> bool:
    """True for a function, or a table of such, that comes from somewhere else."""
    if isinstance(inside, dict):
        return any(_is_foreign(part, library) for part in inside.values())
    if isinstance(inside, tuple):
        return any(_is_foreign(part, library) for part in inside)
    module = getattr(inside, "__module__", None) or library
    return module.partition(".")[0] not in (library, "torch", "torchvision", "builtins")


# What decides what a transform does, besides its arguments, and what people replace in an object or a class.
_INSIDES = (
    "__call__",
    "forward",
    "get_params",
    "make_params",
    "transform",
    "_augmentation_space",
    "_AUGMENTATION_SPACE",
    "_apply_image_or_video_transform",
)
