"""Augmentations of uint8 tensors on the host.

torchvision's v2 operators do to a uint8 tensor what they do to a PIL image with another arithmetic: float32, with fused
multiply-adds where torch's vector code has them.  The native core repeats it; `core_agrees_on_tensors` tries whether it
does so with the bits of the installed torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from fastdata import native
from fastdata.augment.auto_augment import Policy
from fastdata.augment.base import Augmentation, Parameters
from fastdata.augment.color import ColorJitter, RandomPhotometricDistort, RandomSolarize
from fastdata.augment.container import parts_of
from fastdata.augment.effects import nothing, put
from fastdata.augment.geometry import RandomAffine, RandomPerspective, RandomRotation
from fastdata.errors import OptionError
from fastdata.tables import EffectKind, EffectTable, Format
from fastdata.views.streams import Draws

__all__ = ["OfTensors", "core_agrees_on_tensors", "refusal"]

_SAME = (
    EffectKind.NONE,
    EffectKind.BRIGHTNESS,
    EffectKind.INVERT,
    EffectKind.POSTERIZE,
    EffectKind.SOLARIZE,
    EffectKind.EQUALIZE,
    EffectKind.BLUR,
    EffectKind.PERMUTE,
    EffectKind.FLIP,
)
_UNKNOWN = -1
_KINDS = np.full(len(EffectKind), _UNKNOWN)  # what each kind is for tensors
_KINDS[list(_SAME)] = _SAME
for _kind in EffectKind:
    if _kind.name.startswith("TENSOR_"):
        _KINDS[EffectKind[_kind.name.removeprefix("TENSOR_")]] = _kind
# Up to here float32 holds every sum of grey levels, so that the order in which torch adds them does not matter.
_MOST_PIXELS = 2**24 // 255


def refusal(augmentation: Augmentation, size: tuple[int, int]) -> str | None:
    """Reason why the native core does not do it to uint8 tensors of (height, width), even if it is rarely drawn."""
    if isinstance(augmentation, RandomAffine | RandomPerspective | RandomRotation | Policy):
        return _MOVES
    contrast = augmentation.contrast if isinstance(augmentation, ColorJitter | RandomPhotometricDistort) else None
    if contrast is not None and size[0] * size[1] > _MOST_PIXELS:
        return _LARGE
    if isinstance(augmentation, RandomSolarize) and augmentation.threshold > 255:
        return _BRIGHT
    return next((why for part in parts_of(augmentation) if (why := refusal(part, size)) is not None), None)


_MOVES = "pixels of a tensor are moved by torch's grid_sample, which the native core does not do"
_LARGE = f"the contrast of tensors is fused for images of up to {_MOST_PIXELS} pixels"
_BRIGHT = "torchvision takes no threshold above 255 for tensors"


class OfTensors(Augmentation):
    """Applies an augmentation to uint8 tensors, with torchvision's arithmetic for tensors.

    Args:
        augmentation: augmentation of images that draws the parameters.
    """

    def __init__(self, augmentation: Augmentation) -> None:
        self.augmentation = augmentation

    @property
    def label(self) -> str:
        """See `Augmentation.label`."""
        return self.augmentation.label

    @property
    def on_host(self) -> bool:
        """See `Augmentation.on_host`."""
        return self.augmentation.on_host

    @property
    def is_random(self) -> bool:
        """See `Augmentation.is_random`."""
        return self.augmentation.is_random

    @property
    def changes_size(self) -> bool:
        """See `Augmentation.changes_size`."""
        return self.augmentation.changes_size

    def draw(self, draws: Draws, size: tuple[int, int]) -> Parameters:
        """See `Augmentation.draw`."""
        return self.augmentation.draw(draws, size)

    def effects(self, parameters: Parameters, size: tuple[int, int]) -> EffectTable:
        """See `Augmentation.effects`.

        Raises:
            OptionError: torch does some of it in a way that the core does not repeat.
        """
        table: EffectTable = self.augmentation.effects(parameters, size)
        kinds = table["kind"]
        if np.any(_KINDS[kinds] == _UNKNOWN):
            raise OptionError(_MOVES)
        solarized = kinds == EffectKind.SOLARIZE
        thresholds = table["values"][solarized, 0]
        table["values"][solarized, 0] = thresholds.astype(np.float32)  # as torch compares
        table["kind"] = _KINDS[kinds]
        return table


@cache
def core_agrees_on_tensors() -> bool:
    """True if the native core does all effects with the bits of the installed torch and torchvision, tried on images.

    False where torch's vector code has no fused multiply-adds, for example.
    """
    core = native.available()
    if core is None:
        return False
    try:
        from torchvision.transforms.v2 import functional
    except ImportError:
        return False
    tried: list[tuple[EffectKind, tuple[float, ...], Any, tuple[float, ...]]] = []
    for factor in (0.0, 0.37, 1.0, 1.61):
        tried += [
            (EffectKind.BRIGHTNESS, (factor,), functional.adjust_brightness, (factor,)),
            (EffectKind.TENSOR_CONTRAST, (factor,), functional.adjust_contrast, (factor,)),
            (EffectKind.TENSOR_SATURATION, (factor,), functional.adjust_saturation, (factor,)),
            (EffectKind.TENSOR_SHARPNESS, (factor,), functional.adjust_sharpness, (factor,)),
            (EffectKind.TENSOR_HUE, (0, factor / 4), functional.adjust_hue, (factor / 4,)),
        ]
    tried += [
        (EffectKind.TENSOR_GREY, (), functional.rgb_to_grayscale, (3,)),
        (EffectKind.TENSOR_AUTOCONTRAST, (), functional.autocontrast, ()),
        (EffectKind.EQUALIZE, (), functional.equalize, ()),
        (EffectKind.SOLARIZE, (99.5,), functional.solarize, (99.5,)),
        (EffectKind.POSTERIZE, (3,), functional.posterize, (3,)),
        (EffectKind.INVERT, (), functional.invert, ()),
    ]
    rng = np.random.default_rng(0)
    for low, high in ((0, 256), (60, 180)):
        pixels = rng.integers(low, high, (37, 61, 3), dtype=np.uint8)
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
        for kind, values, function, arguments in tried:
            effect, ours = nothing(1, 1), np.empty_like(pixels)
            put(effect, np.zeros(1, np.intp), 0, kind, *values)
            core.convert(pixels, ours.ctypes.data, Format(), effect)
            if not np.array_equal(ours, function(tensor, *arguments).permute(1, 2, 0).numpy()):
                return False
    return True
