"""Replaces Pillow's `open` and `expand`, torchvision's conversions and some kernels, decoders, and torch's stacking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch.utils.data._utils import collate

from fastdata.patches.replacements import Replacements
from fastdata.patches.torchvision_kernels import kernels_of_images, old_wrap

__all__ = ["image_opening"]

_FUNCTIONALS = (
    "torchvision.transforms.functional",
    "torchvision.transforms.v2.functional",
    "torchvision.transforms.v2.functional._type_conversion",
)


def image_opening(
    *,
    pillow: Any,
    open_for: Callable[[Any], Any],
    expand_for: Callable[[Any], Any],
    filter_for: Callable[[Any], Any],
    hue_for: Callable[[Any], Any],
    conversions_for: Mapping[str, Callable[[Any], Any]],
    kernels_for: Mapping[str, Callable[[Any], Any]],
    decoders_for: Mapping[str, Callable[[Any], Any]],
    torchcodecs_for: Mapping[str, Callable[[Any], Any]],
    processing_for: Callable[[Any], Any],
    stacking_for: Callable[[Any], Any],
) -> Replacements:
    """Returns the replacements, not in force yet.

    Args:
        pillow: the module PIL.Image.
        open_for: makes the replacement of its `open`.
        expand_for: makes the replacement of PIL.ImageOps.expand.
        filter_for: makes the replacement of the method `filter` of GaussianBlur and BuiltinFilter in PIL.ImageFilter.
            That of images stays: Python would look for all their attributes anew whenever their class has changed.
        hue_for: makes the replacement of torchvision's function for the hue of its images.
        conversions_for: by name, makes the replacement of a function of torchvision's `functional` modules.  Of these
            only the modules that are imported when the replacements come into force are looked at.
        kernels_for: by name, makes the replacement of what a function of torchvision's v2 does with tensors and Images.
        decoders_for: by name, makes the replacement of an operator by which torchvision reads or decodes files.
        torchcodecs_for: by name, makes the replacement of an operator by which torchcodec decodes images.
        processing_for: makes the replacement of the method by which transformers' processors make tensors of images.
        stacking_for: makes the replacement of what torch's default_collate does with tensors; where a program has put a
            function of its own there, nothing is replaced.
    """

    def replace_all(replacements: Replacements) -> None:
        replacements.replace(vars(pillow), "open", open_for)
        if (image_ops := sys.modules.get("PIL.ImageOps")) is not None:
            replacements.replace(vars(image_ops), "expand", expand_for)
        if (filters := sys.modules.get("PIL.ImageFilter")) is not None:
            for cls in (filters.GaussianBlur, filters.BuiltinFilter):
                replacements.replace(cls, "filter", filter_for)
        if (functions := sys.modules.get("torchvision.transforms._functional_pil")) is not None:
            replacements.replace(vars(functions), "adjust_hue", hue_for)
        for functional in filter(None, map(sys.modules.get, _FUNCTIONALS)):
            _replace_those_there(replacements, functional, conversions_for)
        for name, kernels, cls in kernels_of_images(kernels_for):
            replacements.replace(kernels, cls, kernels_for[name])
        if "torchvision.io.image" in sys.modules:
            _replace_those_there(replacements, torch.ops.image, decoders_for)
        if (torchcodec := sys.modules.get("torchcodec.decoders._image_decoders")) is not None:
            _replace_those_there(replacements, torchcodec, torchcodecs_for)
        processors = getattr(sys.modules.get("transformers.image_processing_backends"), "TorchvisionBackend", None)
        if processors is not None and "process_image" in vars(processors):
            replacements.replace(processors, "process_image", processing_for)
        if (names := old_wrap()) is not None:
            replacements.replace(names, "wrap", _asking_the_class)
        if collate.default_collate_fn_map.get(torch.Tensor) is collate.collate_tensor_fn:
            replacements.replace(collate.default_collate_fn_map, torch.Tensor, stacking_for)

    return Replacements(replace_all)


def _replace_those_there(replacements: Replacements, module: Any, makers: Mapping[str, Callable[[Any], Any]]) -> None:
    """Replaces those functions of a module, or operators of a namespace of torch's, that this version has."""
    for name, maker in makers.items():
        if hasattr(module, name):  # which puts an operator into its namespace
            replacements.replace(vars(module), name, maker)


def _asking_the_class(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `tv_tensors.wrap` so that it asks a class for its own `wrap`, as newer versions do."""

    @wraps(original)
    def wrap(wrappee: Any, *, like: Any, **kwargs: Any) -> Any:
        own = getattr(type(like), "wrap", None)
        return original(wrappee, like=like, **kwargs) if own is None else own(wrappee, like, **kwargs)

    return wrap
