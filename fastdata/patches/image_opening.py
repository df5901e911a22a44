"""Replaces Pillow's `open`, torchvision's conversions of images to tensors, and torch's stacking of tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data._utils import collate

from fastdata.patches.replacements import Replacements

__all__ = ["image_opening"]

_FUNCTIONALS = ("torchvision.transforms.functional", "torchvision.transforms.v2.functional")


def image_opening(
    *,
    pillow: Any,
    open_for: Callable[[Any], Any],
    conversions_for: Mapping[str, Callable[[Any], Any]],
    stacking_for: Callable[[Any], Any],
) -> Replacements:
    """Returns the replacements, not in force yet.

    Args:
        pillow: the module PIL.Image.
        open_for: makes the replacement of its `open`.
        conversions_for: by name, makes the replacement of a function of torchvision's `functional` modules.  Of these
            only the modules that are imported when the replacements come into force are looked at.
        stacking_for: makes the replacement of what torch's default_collate does with tensors; where a program has put a
            function of its own there, nothing is replaced.
    """

    def replace_all(replacements: Replacements) -> None:
        replacements.replace(vars(pillow), "open", open_for)
        for functional in filter(None, map(sys.modules.get, _FUNCTIONALS)):
            for name, conversion_for in conversions_for.items():
                if hasattr(functional, name):
                    replacements.replace(vars(functional), name, conversion_for)
        if collate.default_collate_fn_map.get(torch.Tensor) is collate.collate_tensor_fn:
            replacements.replace(collate.default_collate_fn_map, torch.Tensor, stacking_for)

    return Replacements(replace_all)
