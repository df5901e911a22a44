"""Batch operations equal torchvision's v2 operators sample by sample, each with its own parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as v2

from fastdata import native
from fastdata.augment import batch_effects, batch_program, ops
from fastdata.augment.batch_program import BatchProgram
from fastdata.augment.effects import nothing, put
from fastdata.augment.geometry import RandomAffine, RandomPerspective, RandomRotation
from fastdata.errors import OptionError
from fastdata.pipeline.postprocess import Finish
from fastdata.tables import EffectKind, EffectTable, Format
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key

N = 6


def batch(height: int = 33, width: int = 47, seed: int = 0) -> torch.Tensor:
    """Noise, a dark image, a flat one, and one of few colours."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (N, 3, height, width), generator=generator, dtype=torch.uint8)
    images[1] //= 3
    images[2] = 77
    images[3] = images[3] // 128 * 200
    images[4, 0] = images[4, 1]
    return images


def table(kind: EffectKind, *columns: Any, rows: Any = range(N)) -> EffectTable:
    effects = nothing(N, 1)
    put(effects, np.array(rows), 0, kind, *columns)
    return effects


def applied(effects: EffectTable, images: torch.Tensor) -> torch.Tensor:
    height, width = images.shape[2:]
    return BatchProgram(batch_effects.operations(effects, (height, width))).run(images)


FACTORS = np.array([0.0, 0.3, 1.0, 1.7, 0.9123, 2.5])
HUES = np.array([-0.5, -0.21, 0.0, 0.1234, 0.33, 0.5])
SIGMAS = np.array([0.1, 0.5, 0.7, 1.0, 1.7, 2.0])
BITS = np.array([0, 1, 3, 4, 7, 8])
THRESHOLDS = np.array([0.0, 12.5, 77.0, 128.0, 254.4, 255.0])
ORDERS = np.array([[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0], [2, 0, 1], [0, 2, 1]])
SOME = [0, 2, 3, 5]  # the others stay as they are

Case = tuple[EffectTable, Callable[[torch.Tensor, int], torch.Tensor]]
CASES: dict[str, Case] = {
    "brightness": (table(EffectKind.BRIGHTNESS, FACTORS), lambda one, n: v2.adjust_brightness(one, FACTORS[n])),
    "contrast": (table(EffectKind.CONTRAST, FACTORS), lambda one, n: v2.adjust_contrast(one, FACTORS[n])),
    "saturation": (table(EffectKind.SATURATION, FACTORS), lambda one, n: v2.adjust_saturation(one, FACTORS[n])),
    "hue": (table(EffectKind.HUE, 0, HUES), lambda one, n: v2.adjust_hue(one, HUES[n])),
    "sharpness": (table(EffectKind.SHARPNESS, FACTORS), lambda one, n: v2.adjust_sharpness(one, FACTORS[n])),
    "posterize": (table(EffectKind.POSTERIZE, BITS), lambda one, n: v2.posterize(one, int(BITS[n]))),
    "solarize": (table(EffectKind.SOLARIZE, THRESHOLDS), lambda one, n: v2.solarize(one, THRESHOLDS[n])),
    "invert": (table(EffectKind.INVERT, rows=SOME), lambda one, n: v2.invert(one) if n in SOME else one),
    "grey": (table(EffectKind.GREY, rows=SOME), lambda one, n: v2.rgb_to_grayscale(one, 3) if n in SOME else one),
    "autocontrast": (
        table(EffectKind.AUTOCONTRAST, rows=SOME),
        lambda one, n: v2.autocontrast(one) if n in SOME else one,
    ),
    "equalize": (table(EffectKind.EQUALIZE, rows=SOME), lambda one, n: v2.equalize(one) if n in SOME else one),
    "blur": (
        table(EffectKind.BLUR, 5, 7, SIGMAS, SIGMAS[::-1]),
        lambda one, n: v2.gaussian_blur(one, [5, 7], [SIGMAS[n], SIGMAS[::-1][n]]),
    ),
    "permuted": (table(EffectKind.PERMUTE, *ORDERS.T), lambda one, n: v2.permute_channels(one, ORDERS[n].tolist())),
    "flipped": (table(EffectKind.FLIP, 1, 0, rows=SOME), lambda one, n: one.flip(2) if n in SOME else one),
    "turned over": (table(EffectKind.FLIP, 1, 1), lambda one, n: one.flip(1, 2)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_each_sample_gets_what_torchvision_gives_it(name: str, layout: torch.memory_format) -> None:
    effects, theirs = CASES[name]
    images = batch().contiguous(memory_format=layout)
    before = images.clone()
    result = applied(effects, images)
    assert torch.equal(images, before)
    assert result.dtype is torch.uint8
    assert result.is_contiguous(memory_format=layout)
    for number, (image, got) in enumerate(zip(images, result, strict=True)):
        assert torch.equal(got, theirs(image, number)), number


@pytest.mark.parametrize("taps", [99, 101, 103, 201, 301])
def test_blurs_of_any_width(taps: int) -> None:
    images = batch(160, 170)[:2].repeat(3, 1, 1, 1)
    result = applied(table(EffectKind.BLUR, taps, 3, 9.0, 1.0), images)
    assert torch.equal(result[0], v2.gaussian_blur(images[0], [taps, 3], [9.0, 1.0]))


def test_kinds_of_one_family_are_done_together() -> None:
    """Five kinds in each of two turns are six operations, with the result that each image has alone."""
    kinds = [EffectKind.BRIGHTNESS, EffectKind.INVERT, EffectKind.CONTRAST, EffectKind.GREY, EffectKind.HUE]
    effects = nothing(N, 2)
    for row, kind in enumerate(kinds):
        put(effects, np.array([row]), 0, kind, 0.4, 0.2)
        put(effects, np.array([N - 1 - row]), 1, kind, 0.4, 0.2)
    operations = batch_effects.operations(effects, (33, 47))
    assert [each.function for each in operations] == [ops.map_levels, ops.blend_with_grey, ops.adjust_hue] * 2
    alone = [applied(effects[row : row + 1], batch()[row : row + 1]) for row in range(N)]
    assert torch.equal(applied(effects, batch()), torch.cat(alone))


def test_levels_are_added_below_a_threshold_as_the_core_does() -> None:
    effects = table(EffectKind.SOLARIZE_ADD, np.array([0, 1, 37, 110, 55, 90]), 128)
    pixels = batch().permute(0, 2, 3, 1).contiguous().numpy()
    for row in range(N):
        native.load().convert(pixels[row], pixels[row].ctypes.data, Format(), effects[row : row + 1])
    assert torch.equal(applied(effects, batch()), torch.from_numpy(pixels).permute(0, 3, 1, 2))


def test_the_numbers_of_all_operations_travel_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [v1.RandomResizedCrop(24), v1.RandAugment(), v1.ColorJitter(0.3, 0.3, 0.3, 0.1), v1.ToTensor()]
    steps += [v1.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.2]), v1.RandomErasing()]
    plan = compile_transform(v1.Compose(steps), augment_on="device").plan
    assert plan is not None
    program = Finish(plan=plan, key=Key(seed=1, epoch=0)).on_batch(range(N), [0] * N)
    copied: list[torch.Tensor] = []

    def copy(images: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if any(values.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in copied):
            return values  # is there already
        copied.append(values.clone())
        return copied[-1]

    for module in (batch_program, ops):
        monkeypatch.setattr(module, "on_device_of", copy)
    assert program.run(batch(24, 24)).dtype is torch.float32
    assert len(copied) == 1


SIZES = [(33, 47), (32, 32)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 0, 127.5, [10, 20, 30]])
def test_turns_maps_and_perspectives(size: tuple[int, int], mode: str, fill: Any) -> None:
    """Pillow's maps, from which torchvision's grids differ in the last bits of a few places."""
    height, width = size
    images, options = batch(*size), {"interpolation": v1.InterpolationMode(mode), "fill": fill}
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    ends = [[2, 3], [width - 4, 1], [width - 1, height - 6], [4, height - 1]]
    turned = RandomRotation((0, 9), mode, fill=fill)
    mapped = RandomAffine((0, 9), interpolation=mode, fill=fill)
    seen = RandomPerspective(interpolation=mode, fill=fill)
    angles = np.array([0.0, 33.3, 90.0, 180.0, 270.0, 359.0])
    moves, scales = np.array([[3, -4]] * N), np.full(N, 0.8)
    shears = np.array([[12.0, -7.0]] * N)
    cases = [
        (turned, {"angles": angles}, lambda one, n: v2.rotate(one, angles[n], **options)),
        (
            mapped,
            {"angles": angles, "moves": moves, "scales": scales, "shears": shears},
            lambda one, n: v2.affine(one, angles[n], [3, -4], 0.8, [12.0, -7.0], **options),
        ),
        (
            seen,
            {"chosen": np.ones(N, bool), "corners": np.array([ends] * N)},
            lambda one, n: v2.perspective(one, corners, ends, **options),
        ),
    ]
    for ours, parameters, theirs in cases:
        result = ours.apply(images, parameters)
        for number, (image, got) in enumerate(zip(images, result, strict=True)):
            expected = theirs(image, number)
            differ = (got.int() - expected.int()).abs()
            assert (differ > (0 if mode == "nearest" else 1)).float().mean() < 0.005, (type(ours).__name__, number)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["brightness", "contrast", "saturation", "hue"]), st.floats(0, 3), st.integers(0, 10**6))
def test_any_factor(name: str, factor: float, seed: int) -> None:
    amount = factor / 6 if name == "hue" else factor
    images = batch(9, 11, seed)
    result = applied(table(EffectKind[name.upper()], amount, amount), images)
    for image, got in zip(images, result, strict=True):
        assert torch.equal(got, getattr(v2, f"adjust_{name}")(image, amount))


def test_a_hue_that_shows_how_levels_become_floats() -> None:
    """Divided by 255 instead of multiplied by its inverse, one level differs by one."""
    shift = 2.3877041182210603 / 6
    image = torch.tensor([225, 184, 99], dtype=torch.uint8).view(3, 1, 1)
    result = applied(table(EffectKind.HUE, 0, shift), image.expand(N, 3, 1, 1))
    assert torch.equal(result[0], v2.adjust_hue(image, shift))


@pytest.mark.parametrize("name", CASES)
def test_a_sample_does_not_depend_on_its_place_in_the_batch(name: str) -> None:
    effects, _ = CASES[name]
    images, order = batch(), torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.equal(applied(effects[order.numpy()], images[order]), applied(effects, images)[order])


def test_what_no_operation_does_is_refused() -> None:
    with pytest.raises(OptionError, match="BOX_BLUR is done by the native core to PIL images, not to tensors"):
        batch_effects.operations(table(EffectKind.BOX_BLUR, 1.5), (33, 47))
    with pytest.raises(OptionError, match="a blur of 5 × 43 pixels reaches across images of 33 × 21"):
        batch_effects.operations(table(EffectKind.BLUR, 5, 43, 1.0, 1.0), (21, 33))


def test_erase() -> None:
    images = torch.randn(N, 3, 20, 30)
    boxes = torch.tensor([[0, 0, 30, 20], [3, 4, 10, 9], [5, 5, 5, 9], [29, 19, 30, 20], [0, 7, 30, 8], [1, 0, 2, 20]])
    values = torch.randn(N, 3)
    result = ops.erase(images, boxes, values)
    for image, (left, top, right, bottom), fill, got in zip(images, boxes.tolist(), values, result, strict=True):
        assert torch.equal(got, v2.erase(image, top, left, bottom - top, right - left, fill.view(3, 1, 1)))
    assert torch.equal(ops.erase(batch(), torch.zeros(N, 4, dtype=torch.int64), torch.zeros(N, 1)), batch())


def test_mixup_and_its_labels() -> None:
    images, partners = torch.rand(N, 3, 8, 9), torch.tensor([5, 0, 1, 2, 3, 4])
    labels, shares = torch.tensor([0, 1, 2, 0, 1, 2]), torch.full((N,), 0.3)
    expected = images.roll(1, 0).mul(1.0 - 0.3).add(images.mul(0.3))  # torchvision's MixUp rolls the batch by one
    torch.testing.assert_close(ops.mixup(images, partners, shares), expected, rtol=0, atol=1e-7)
    targets = ops.soft_labels(labels, partners, shares, 3)
    torch.testing.assert_close(targets.sum(1), torch.ones(N))
    torch.testing.assert_close(targets[0], torch.tensor([0.3, 0.0, 0.7]))


def test_cutmix() -> None:
    images, partners = batch(), torch.tensor([5, 0, 1, 2, 3, 4])
    boxes = torch.tensor([[2, 3, 20, 30]] * N)
    result = ops.cutmix(images, partners, boxes)
    expected = images.clone()
    expected[..., 3:30, 2:20] = images.roll(1, 0)[..., 3:30, 2:20]
    assert torch.equal(result, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_a_device_gives_the_pixels_of_the_cpu(name: str, layout: torch.memory_format) -> None:
    effects, _ = CASES[name]
    images = batch().contiguous(memory_format=layout)
    torch.backends.cudnn.allow_tf32, before = True, torch.backends.cudnn.allow_tf32
    try:
        difference = applied(effects, images.cuda()).cpu().int() - applied(effects, images).int()
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert difference.abs().max() <= 1  # sums of many values, and library functions, may round otherwise there
    assert difference.ne(0).float().mean() < 0.01
