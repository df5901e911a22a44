"""torchvision's private table of v2's functions on images: {function: {type of image: what does it}}.

`_KERNEL_REGISTRY` is where its transforms and its `v2.functional` look up what to call, by the type of the image.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["kernels_of_images", "old_wrap", "resized_size", "returns_tv_tensors"]

_UTILS = "torchvision.transforms.v2.functional._utils"
_GEOMETRY = "torchvision.transforms.v2.functional._geometry"


def kernels_of_images(names: Any) -> Iterator[tuple[str, dict[Any, Any], type]]:
    """Yields (name, table, type of image) for functions, and for tensors and Images; nothing where v2 is not imported.

    Args:
        names: the functions' names.
    """
    registry = getattr(sys.modules.get(_UTILS), "_KERNEL_REGISTRY", {})
    for function, kernels in list(registry.items()):
        if getattr(function, "__name__", "") in names:
            for cls in list(kernels):
                if cls is torch.Tensor or (cls.__module__, cls.__name__) == ("torchvision.tv_tensors._image", "Image"):
                    yield function.__name__, kernels, cls


def resized_size(image_size: tuple[int, int], size: int | list[int] | None, max_size: int | None) -> tuple[int, int]:
    """Returns the (height, width) to which torchvision resizes an image.

    Args:
        image_size: its (height, width).
        size: length of the shorter side, or (height, width).
        max_size: longest length of the longer side.

    Raises:
        ValueError: torchvision refuses them.
    """
    compute = sys.modules[_GEOMETRY]._compute_resized_output_size
    height, width = compute(image_size, size=size, max_size=max_size)
    return height, width


def returns_tv_tensors() -> bool:
    """True after ``tv_tensors.set_return_type("TVTensor")``: torch's functions keep the class."""
    helpers = sys.modules.get("torchvision.tv_tensors._torch_function_helpers")
    return bool(getattr(helpers, "_TORCHFUNCTION_SUBCLASS", False))


def old_wrap() -> dict[str, Any] | None:
    """The namespace of `tv_tensors.wrap` where it does not ask a class for its own `wrap`; None for others."""
    tv_tensors = sys.modules.get("torchvision.tv_tensors")
    if tv_tensors is None or hasattr(tv_tensors.TVTensor, "wrap"):
        return None
    return vars(tv_tensors)
