"""Augmentations that the native core does on the host, beside torchvision's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from PIL import Image

from fastdata import native
from fastdata.augment.base import Augmentation
from fastdata.tables import Format
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

N = 40
SIZE = (33, 41)


def augmentation_of(step: Any, size: tuple[int, int] = SIZE) -> Augmentation:
    """What the step of a transform becomes."""
    plan = compile_transform(v1.Compose([v1.Resize(size), step, v1.PILToTensor()])).plan
    assert plan is not None
    assert not plan.unfused
    (effect,) = plan.effects
    assert isinstance(effect, Augmentation)
    return effect


def images(size: tuple[int, int] = SIZE) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    smooth = torch.nn.functional.interpolate(torch.rand((N, 3, 5, 5), generator=generator), size, mode="bicubic")
    return smooth.clamp(0, 1).mul(255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def drawn(step: Augmentation, size: tuple[int, int] = SIZE, seed: int = 3) -> Any:
    zeros = np.zeros(N, np.int64)
    return step.draw(Draws(key=Key(seed=seed, epoch=0), indices=np.arange(N), occurrences=zeros), size)


def done(step: Augmentation, parameters: Any, pixels: np.ndarray) -> np.ndarray:
    table, result = step.effects(parameters, pixels.shape[1:3]), np.empty_like(pixels)
    for row, (image, place) in enumerate(zip(pixels, result, strict=True)):
        native.load().convert(image, place.ctypes.data, Format(), table[row : row + 1])
    return result


def check(step: Any, expected_of: Any, size: tuple[int, int] = SIZE) -> None:
    """Compares every sample with torchvision's functions, called with what was drawn for it."""
    ours, pixels = augmentation_of(step, size), images(size)
    parameters = drawn(ours, size)
    changed = 0
    for row, (before, after) in enumerate(zip(pixels, done(ours, parameters, pixels), strict=True)):
        image = Image.fromarray(before)
        own = {name: values[row] for name, values in parameters.items()}
        assert np.array_equal(after, np.asarray(expected_of(image, own))), (row, own)
        changed += not np.array_equal(before, after)
    assert changed > 0
