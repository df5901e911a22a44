"""What kernels make of images with effects, against the core, which has Pillow's pixels."""

from __future__ import annotations

import math

import images
import numpy as np
import torch
from packed import Packed, record_of, view_of

from fastdata.device import effect_kernels
from fastdata.device.decode_kernels import PLACES
from fastdata.native import load
from fastdata.tables import EFFECT, PACKED_HEAD, EffectKind, EffectTable, Format

OUT = (19, 16)
TURN = math.cos(0.4), math.sin(0.4), -1.5, -math.sin(0.4), math.cos(0.4), 4.2, 0, 0, 10, 20, 30

PERSPECTIVE = 0.9, 0.1, -0.7, -0.05, 1.1, 0.3, 0.004, -0.006, 7, 8, 9

K = EffectKind
BILINEAR: tuple[EffectKind, tuple[float, ...]] = K.NONE, (2,)  # filter of the effect before
ONE_BY_ONE: list[list[tuple[EffectKind, tuple[float, ...]]]] = [
    [(K.BRIGHTNESS, (1.4,))],
    [(K.CONTRAST, (0.3,))],
    [(K.CONTRAST, (1.9,))],
    [(K.SATURATION, (1.7,))],
    [(K.SATURATION, (0.2,))],
    [(K.HUE, (30,))],
    [(K.HUE, (200,))],
    [(K.SHARPNESS, (1.9,))],
    [(K.SHARPNESS, (0.1,))],
    [(K.GREY, ())],
    [(K.INVERT, ())],
    [(K.POSTERIZE, (3,))],
    [(K.SOLARIZE, (100,))],
    [(K.AUTOCONTRAST, ())],
    [(K.EQUALIZE, ())],
    [(K.AFFINE, TURN)],
    [(K.AFFINE, (1, 0, 3.3, 0, 1, -2.2, 0, 0, 5, 6, 7))],
    [(K.FLIP, (1, 0))],
    [(K.FLIP, (0, 1))],
    [(K.PERMUTE, (2, 0, 1))],
    [(K.SOLARIZE_ADD, (40, 128))],
    [(K.BLUR, (3, 3, 1.0, 1.0))],
    [(K.BLUR, (5, 9, 0.4, 2.7))],
    [(K.BLUR, (39, 3, 2.0, 2.0))],  # wider than the image: nothing is done
    [(K.GREY, ()), (K.BLUR, (7, 7, 1.9, 1.9)), (K.SOLARIZE, (128,))],
    [(K.PERSPECTIVE, PERSPECTIVE)],
    [(K.PERSPECTIVE, PERSPECTIVE), BILINEAR],
    [(K.AFFINE, TURN), BILINEAR],
    [(K.AFFINE, (1, 0, 0.25, 0, 1, -0.5, 0, 0, 90, 80, 70)), BILINEAR],
    [(K.AFFINE, (1e5, 0.1, 3, 0.1, 1, 2, 0, 0, 1, 2, 3))],  # beyond 16.16 bits
    [(K.BRIGHTNESS, (0.7,)), (K.CONTRAST, (1.2,)), (K.SATURATION, (1.3,)), (K.HUE, (10,))],
    [(K.HUE, (250,)), (K.INVERT, ()), (K.POSTERIZE, (4,)), (K.EQUALIZE, ()), (K.SHARPNESS, (1.5,))],
    [(K.EQUALIZE, ()), (K.AUTOCONTRAST, ())],
    [],
]
LEFT_TO_THE_HOST: list[list[tuple[EffectKind, tuple[float, ...]]]] = [
    [(K.BOX_BLUR, (1.5,))],
    [(K.INVERT, ()), (K.TENSOR_CONTRAST, (1.5,))],
]


def table_of(lists: list[list[tuple[EffectKind, tuple[float, ...]]]]) -> EffectTable:
    table = np.zeros((len(lists), max(map(len, lists))), EFFECT)
    for row, effects in enumerate(lists):
        for column, (kind, values) in enumerate(effects):
            if (kind, values) == BILINEAR:
                table[row, column - 1]["filter"] = 2
                continue
            table[row, column]["kind"] = kind
            table[row, column]["values"][: len(values)] = values
    return table


def test_effects_have_the_bits_of_the_core() -> None:
    lists = [*ONE_BY_ONE, *LEFT_TO_THE_HOST]
    sizes = [(40 + row % 4, 50 - row % 4) for row in range(len(lists))]
    records = [record_of(images.jpeg(*sizes[row], seed=row, sampling=("4:4:4", "4:2:0")[row % 2])) for row in range(4)]
    data = [records[row % 4] for row in range(len(lists))]
    views = [view_of(size, (2, 3, 38, 44), OUT, flips="x" * (row % 2)) for row, size in enumerate(sizes)]
    batch = Packed(data, views, effects=table_of(lists))
    arena, decoded = batch.arena()
    assert decoded.packed == len(ONE_BY_ONE)
    pixels, _ = decoded.run(arena)
    expected = batch.decoded()
    for row in range(len(lists)):
        assert torch.equal(pixels[row].permute(1, 2, 0), expected[row]), lists[row]


def test_hues_of_many_colours() -> None:
    """Every turn's arithmetic has cases that few colours meet, so a canvas has 40,000."""
    rng = np.random.default_rng(8)
    width, height, shift = 200, 200, 77
    rgb = rng.integers(0, 256, (height, width, 3), np.uint8)
    rgb[:20] = rgb[:20] // 32 * 32  # equal channels
    rgb[20:40, :, 1] = rgb[20:40, :, 0]
    words = np.zeros(64, np.int32)
    for name, value in {"result_width": width, "result_height": height, "steps": 1, "effects_at": 4 * 48}.items():
        words[PACKED_HEAD.index(name)] = value
    words[48] = 6  # kStepHue
    words[48 + 3] = shift
    canvas = torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1))).view(-1)
    turned = torch.zeros_like(canvas)
    arena, table = torch.from_numpy(words), torch.zeros(len(PLACES), dtype=torch.int64)
    effect_kernels.change[(-(-width * height // 4096), 1)](
        arena.view(torch.uint8),
        arena,
        arena.view(torch.float32),
        arena.view(torch.float64),
        table,
        canvas,
        torch.zeros(1),
        turned,
        torch.zeros(768, dtype=torch.uint8),
        0,
        PIXELS=4096,
    )
    expected = np.empty_like(rgb)
    load().convert(rgb, expected.ctypes.data, Format(), table_of([[(K.HUE, (shift,))]]))
    assert np.array_equal(turned.view(3, height, width).numpy().transpose(1, 2, 0), expected)
