"""Batch operations equal torchvision's v2 operators sample by sample, each with its own parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional as v2

from fastdata.augment import ops

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


FACTORS = torch.tensor([0.0, 0.3, 1.0, 1.7, 0.9123, 2.5], dtype=torch.float64)
HUES = torch.tensor([-0.5, -0.21, 0.0, 0.1234, 0.33, 0.5], dtype=torch.float64)
CHOSEN = torch.tensor([True, False, True, True, True, True])
SIGMAS = torch.tensor([0.1, 0.5, 0.7, 1.0, 1.7, 2.0], dtype=torch.float64)
BITS = torch.tensor([0, 1, 3, 4, 7, 8])
THRESHOLDS = torch.tensor([0.0, 12.5, 77.0, 128.0, 254.4, 255.0], dtype=torch.float64)

Case = tuple[Callable[..., torch.Tensor], torch.Tensor, Callable[[torch.Tensor, Any], torch.Tensor]]
CASES: dict[str, Case] = {
    "brightness": (ops.adjust_brightness, FACTORS, v2.adjust_brightness),
    "contrast": (ops.adjust_contrast, FACTORS, v2.adjust_contrast),
    "saturation": (ops.adjust_saturation, FACTORS, v2.adjust_saturation),
    "hue": (ops.adjust_hue, HUES, v2.adjust_hue),
    "sharpness": (ops.adjust_sharpness, FACTORS, v2.adjust_sharpness),
    "posterize": (ops.posterize, BITS, lambda image, bits: v2.posterize(image, int(bits))),
    "solarize": (ops.solarize, THRESHOLDS, v2.solarize),
    "grayscale": (ops.grayscale, CHOSEN, lambda image, yes: v2.rgb_to_grayscale(image, 3) if yes else image),
    "autocontrast": (ops.autocontrast, CHOSEN, lambda image, yes: v2.autocontrast(image) if yes else image),
    "equalize": (ops.equalize, CHOSEN, lambda image, yes: v2.equalize(image) if yes else image),
    "blur": (
        lambda images, sigmas: ops.gaussian_blur(images, 5, sigmas),
        SIGMAS,
        lambda image, sigma: v2.gaussian_blur(image, [5, 5], [sigma, sigma]),
    ),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", CASES)
def test_each_sample_gets_what_torchvision_gives_it(name: str, layout: torch.memory_format) -> None:
    ours, parameters, theirs = CASES[name]
    images = batch().contiguous(memory_format=layout)
    before = images.clone()
    result = ours(images, parameters)
    assert torch.equal(images, before)
    assert result.dtype is torch.uint8
    for image, parameter, got in zip(images, parameters.tolist(), result, strict=True):
        assert torch.equal(got, theirs(image, parameter)), parameter


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["brightness", "contrast", "saturation", "hue"]), st.floats(0, 3), st.integers(0, 10**6))
def test_any_parameter(name: str, factor: float, seed: int) -> None:
    ours, _, theirs = CASES[name]
    parameter = factor / 6 if name == "hue" else factor
    images = batch(9, 11, seed)
    result = ours(images, torch.full((N,), parameter, dtype=torch.float64))
    for image, got in zip(images, result, strict=True):
        assert torch.equal(got, theirs(image, parameter))


def test_a_hue_that_shows_how_levels_become_floats() -> None:
    """Divided by 255 instead of multiplied by its inverse, one level differs by one."""
    shift = 2.3877041182210603 / 6
    image = torch.tensor([225, 184, 99], dtype=torch.uint8).view(3, 1, 1)
    result = ops.adjust_hue(image.unsqueeze(0), torch.tensor([shift], dtype=torch.float64))
    assert torch.equal(result[0], v2.adjust_hue(image, shift))


@pytest.mark.parametrize("name", CASES)
def test_a_sample_does_not_depend_on_its_place_in_the_batch(name: str) -> None:
    ours, parameters, _ = CASES[name]
    images, order = batch(), torch.tensor([3, 1, 5, 0, 4, 2])
    assert torch.equal(ours(images[order], parameters[order]), ours(images, parameters)[order])


def test_erase() -> None:
    images = torch.randn(N, 3, 20, 30)
    boxes = torch.tensor([[0, 0, 30, 20], [3, 4, 10, 9], [5, 5, 5, 9], [29, 19, 30, 20], [0, 7, 30, 8], [1, 0, 2, 20]])
    noise = torch.randn(N, 3, 20, 30)
    result = ops.erase(images, boxes, noise)
    for image, (left, top, right, bottom), values, got in zip(images, boxes.tolist(), noise, result, strict=True):
        fill = values[:, top:bottom, left:right]
        assert torch.equal(got, v2.erase(image, top, left, bottom - top, right - left, fill))
    assert torch.equal(ops.erase(batch(), torch.zeros(N, 4, dtype=torch.int64), 0.0), batch())


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
@pytest.mark.parametrize("name", CASES)
def test_a_device_gives_the_pixels_of_the_cpu(name: str) -> None:
    ours, parameters, _ = CASES[name]
    images = batch()
    difference = ours(images.cuda(), parameters).cpu().int() - ours(images, parameters).int()
    assert difference.abs().max() <= 1  # sums of many values, and library functions, may round otherwise there
    assert difference.ne(0).float().mean() < 0.01
