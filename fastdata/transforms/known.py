"""Which transforms are known by their names, since they are a library's own and nobody has changed them."""

from __future__ import annotations

import torch

__all__ = ["is_hooked", "is_known_transform", "is_timms", "name_of"]

_OWN_MODULES = (
    "fastdata.transforms",
    "fastdata.augment.erasing",
    "fastdata.augment.policies",
    "fastdata.augment.several",
    "fastdata.augment.single",
    "fastdata.augment.sometimes",
)
_TIMMS_MODULES = ("timm.data.transforms", "timm.data.auto_augment", "timm.data.random_erasing")


def is_known_transform(step: object) -> bool:
    """True for an instance of a library's own class; a subclass in the user's own module may do anything."""
    module = type(step).__module__
    return module.startswith("torchvision.transforms.") or module in (*_OWN_MODULES, *_TIMMS_MODULES)


def is_timms(step: object) -> bool:
    """True for classes of timm's, whose names may be torchvision's for something else."""
    return type(step).__module__ in _TIMMS_MODULES


def name_of(step: object) -> str:
    """As people call it."""
    return getattr(step, "__name__", type(step).__name__)


def is_hooked(step: object) -> bool:
    """True for a module that does something else than its class says: by hooks, or by functions that were replaced."""
    if not isinstance(step, torch.nn.Module):
        return False
    everywhere = torch.nn.modules.module
    hooks = (
        step._forward_hooks,
        step._forward_pre_hooks,
        everywhere._global_forward_hooks,
        everywhere._global_forward_pre_hooks,
    )
    library = type(step).__module__.partition(".")[0]
    replaced = (getattr(type(step), name, None) for name in _INSIDES)
    return (
        any(hooks)
        or any(name in vars(step) for name in _INSIDES)
        or any(getattr(each, "__module__", library).partition(".")[0] not in (library, "torch") for each in replaced)
    )


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
