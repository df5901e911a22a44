"""What the core does to a fixed image has not changed since it was frozen: a hash of the pixels for each effect.

The blur is left out: its weights come from the C library's exp(), whose last bit differs between libraries.  All other
effects add, multiply and divide in a fixed order, and multiply-adds
are fused where tensors' arithmetic has them, and nowhere else.

    PYTHONPATH=tests/helpers python tests/native/test_golden_effects.py

writes the file anew, after an effect was added or meant to change.
"""

from __future__ import annotations

import hashlib
import json
from itertools import product
from typing import TypeAlias

import numpy as np
from places import GOLDEN

from fastdata import native
from fastdata.loaders.pillow_effects import MIXES
from fastdata.tables import EFFECT, EffectKind, EffectTable, Format

FROZEN = GOLDEN / "effects.json"
FILTERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}
Values: TypeAlias = tuple[float, ...]

FACTORS: list[Values] = [(0.0,), (0.3,), (1.0,), (1.37,), (2.0,), (3.5,)]
VALUES: dict[EffectKind, list[Values]] = {
    EffectKind.NONE: [()],
    EffectKind.BRIGHTNESS: FACTORS,
    EffectKind.CONTRAST: FACTORS,
    EffectKind.SATURATION: FACTORS,
    EffectKind.HUE: [(0,), (1,), (100,), (255,)],
    EffectKind.SHARPNESS: FACTORS,
    EffectKind.GREY: [()],
    EffectKind.INVERT: [()],
    EffectKind.POSTERIZE: [(bits,) for bits in range(1, 9)],
    EffectKind.SOLARIZE: [(0,), (99.5,), (128,), (256,)],
    EffectKind.AUTOCONTRAST: [()],
    EffectKind.EQUALIZE: [()],
    EffectKind.BOX_BLUR: [(0.4,), (1.7,), (9.0,)],
    EffectKind.SOLARIZE_ADD: [(40, 128), (110, 200)],
    EffectKind.FLIP: [(1, 0), (0, 1), (1, 1)],
    EffectKind.TENSOR_CONTRAST: FACTORS,
    EffectKind.TENSOR_SATURATION: FACTORS,
    EffectKind.TENSOR_HUE: [(0, -0.5), (0, -0.11), (0, 0.0), (0, 0.37)],
    EffectKind.TENSOR_SHARPNESS: FACTORS,
    EffectKind.TENSOR_GREY: [()],
    EffectKind.TENSOR_AUTOCONTRAST: [()],
    EffectKind.PERMUTE: [(0, 1, 2), (2, 0, 1), (2, 1, 0), (1, 1, 1)],
    EffectKind.AFFINE: [
        (1, 0, -7, 0, 1, 4, 0, 0, 10, 20, 30),  # moved
        (1, 0.3, 0, 0, 1, 0),  # sheared along rows
        (1, 0, 0, -0.25, 1, 0, 0, 0, 128, 128, 128),
        (0.8, 0.6, -8.75, -0.6, 0.8, 23, 0, 0, 0, 255, 0),  # turned
        (-1, 0, 61, 0, -1, 47),
        (0.55, 0, 9.1, 0, 1.9, -20.3),  # stretched
    ],
    EffectKind.PERSPECTIVE: [
        (0.9, 0.1, 1.3, -0.2, 1.1, -2.0, 0.001, 0.002, 10, 20, 30),
        (1.2, -0.3, 5, 0.05, 0.8, 3, -0.004, 0.0035),
    ],
}
COMBINED = {
    "combined levels": [(EffectKind.BRIGHTNESS, (1.3,)), (EffectKind.CONTRAST, (0.6,)), (EffectKind.SOLARIZE, (90,))],
    "combined colours": [(EffectKind.HUE, (40,)), (EffectKind.SATURATION, (1.8,)), (EffectKind.EQUALIZE, ())],
    "mixed": [
        (EffectKind.MIX_BEGIN, ()),
        (EffectKind.INVERT, ()),
        (EffectKind.MIX_ADD, (0.25,)),
        (EffectKind.POSTERIZE, (2,)),
        (EffectKind.MIX_ADD, (0.75,)),
        (EffectKind.MIX_END, (0.6,)),
    ],
    "blended": [
        (EffectKind.MIX_BEGIN, (1,)),
        (EffectKind.INVERT, ()),
        (EffectKind.MIX_BLEND, (0.25,)),
        (EffectKind.POSTERIZE, (2,)),
        (EffectKind.MIX_BLEND, (0.75,)),
        (EffectKind.MIX_END, (1,)),
    ],
    "combined shapes": [(EffectKind.AFFINE, (0.8, 0.6, -8.75, -0.6, 0.8, 23)), (EffectKind.SHARPNESS, (2.0,))],
}


def image() -> np.ndarray:
    """61 × 47 pixels: a ramp, products that fill not all levels, and squares that wrap around; of integers alone."""
    y, x = np.indices((47, 61), dtype=np.int64)
    return np.stack([4 * x + y // 8, 40 + x * y % 151, (3 * x * x + 5 * y * y) % 256], axis=2).astype(np.uint8)


def effects() -> dict[str, EffectTable]:
    """What is hashed, and what it is called."""
    made = {name: table(steps) for name, steps in COMBINED.items()}
    for kind, every in VALUES.items():
        filters = FILTERS if kind in (EffectKind.AFFINE, EffectKind.PERSPECTIVE) else {0: ""}
        for filter_, values in product(filters, every):
            name = f"{filters[filter_]} {kind.name.lower()} {' '.join(map(str, values))}".strip()
            made[name] = table([(kind, values)], filter_)
    return made


def table(steps: list[tuple[EffectKind, Values]], filter_: int = 0) -> EffectTable:
    """Effects on one image, in order."""
    made = np.zeros((1, len(steps)), EFFECT)
    for number, (kind, values) in enumerate(steps):
        made["kind"][0, number], made["filter"][0, number] = kind, filter_
        made["values"][0, number, : len(values)] = values
    return made


def hashes() -> dict[str, str]:
    """Of the pixels after each effect."""
    pixels, found = image(), {}
    for name, each in effects().items():
        result = np.empty_like(pixels)
        native.load().convert(pixels, result.ctypes.data, Format(), each)
        found[name] = hashlib.sha256(result.tobytes()).hexdigest()[:16]
    return found


def test_effects_have_not_changed_since_they_were_frozen() -> None:
    frozen, now = json.loads(FROZEN.read_text()), hashes()
    assert frozen.keys() == now.keys()
    assert [name for name, found in now.items() if found != frozen[name]] == []


def test_every_effect_but_the_blur_is_frozen() -> None:
    assert set(VALUES) == set(EffectKind) - {EffectKind.BLUR, *MIXES}


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(hashes(), indent=1) + "\n")
