"""Augmentations of uint8 tensors that the native core does on the host: the bits of torchvision's v2 operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from taken_over import on_batches as steps_on_batches
from taken_over import per_sample, pipelines_plan
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastdata import DataLoader, native
from fastdata.augment import tensors
from fastdata.tables import EFFECT, EffectKind, Format
from fastdata.transforms import compile as compiling
from fastdata.transforms import plan_builder

IMAGES = st.one_of(
    arrays.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3))),
    st.builds(
        lambda height, width, seed, low, high: np.random.default_rng(seed).integers(
            low, high, (height, width, 3), dtype=np.uint8
        ),
        *(st.integers(1, 70), st.integers(1, 70), st.integers(0, 99), st.integers(0, 120), st.integers(121, 256)),
    ),
)
# Below a millionth torch itself rounds in two ways, with and without a fused multiply-add, by the width of an image.
FACTORS = st.one_of(st.sampled_from([0.0, 0.5, 1.0, 2.0]), st.floats(2.0**-20, 3))
ADJUSTING = {
    EffectKind.BRIGHTNESS: functional.adjust_brightness,
    EffectKind.TENSOR_CONTRAST: functional.adjust_contrast,
    EffectKind.TENSOR_SATURATION: functional.adjust_saturation,
    EffectKind.TENSOR_SHARPNESS: functional.adjust_sharpness,
    EffectKind.TENSOR_HUE: functional.adjust_hue,
    EffectKind.SOLARIZE: functional.solarize,
    EffectKind.POSTERIZE: functional.posterize,
}
DOING = {
    EffectKind.TENSOR_GREY: lambda image: functional.rgb_to_grayscale(image, 3),
    EffectKind.TENSOR_AUTOCONTRAST: functional.autocontrast,
    EffectKind.EQUALIZE: functional.equalize,
    EffectKind.INVERT: functional.invert,
}


def by_core(pixels: np.ndarray, kind: EffectKind, *values: float) -> np.ndarray:
    effect = np.zeros((1, 1), EFFECT)
    effect["kind"], effect["values"][0, 0, : len(values)] = kind, values
    pixels = np.ascontiguousarray(pixels)
    result = np.empty_like(pixels)
    native.load().convert(pixels, result.ctypes.data, Format(), effect)
    return result


def by_torchvision(pixels: np.ndarray, function: Any, *arguments: Any) -> np.ndarray:
    image = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).contiguous()
    result: np.ndarray = function(image, *arguments).permute(1, 2, 0).numpy()
    return result


@pytest.mark.parametrize("examples", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [*ADJUSTING, *DOING])
def test_every_effect_has_torchvisions_bits(kind: EffectKind, examples: int) -> None:
    amounts = {
        EffectKind.TENSOR_HUE: st.one_of(st.sampled_from([-0.5, 0.0, 0.5]), st.floats(-0.5, 0.5)),
        EffectKind.SOLARIZE: st.floats(0, 255, width=32),
        EffectKind.POSTERIZE: st.integers(0, 8),
    }

    @settings(max_examples=examples, deadline=None)
    @given(IMAGES, amounts.get(kind, FACTORS))
    def check(pixels: np.ndarray, amount: float) -> None:
        if kind in DOING:
            values, wanted = (), by_torchvision(pixels, DOING[kind])
        else:
            values = (0.0, amount) if kind is EffectKind.TENSOR_HUE else (amount,)
            wanted = by_torchvision(pixels, ADJUSTING[kind], amount)
        assert np.array_equal(by_core(pixels, kind, *values), wanted)

    check()


def test_hues_of_all_colours() -> None:
    levels = np.arange(256, dtype=np.uint8)
    for red in range(0, 256, 5):
        pixels = np.stack(np.broadcast_arrays(np.uint8(red), levels[:, None], levels), axis=2)
        turn = red / 255 - 0.5
        wanted = by_torchvision(pixels, functional.adjust_hue, turn)
        assert np.array_equal(by_core(pixels, EffectKind.TENSOR_HUE, 0, turn), wanted), red


def test_the_largest_image_whose_contrast_is_fused() -> None:
    pixels = np.full((2**24 // 255 // 257, 257, 3), 255, np.uint8)
    pixels[::3] = 254
    wanted = by_torchvision(pixels, functional.adjust_contrast, 0.31)
    assert np.array_equal(by_core(pixels, EffectKind.TENSOR_CONTRAST, 0.31), wanted)


STEPS: dict[str, Any] = {
    "ColorJitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "RandomGrayscale": v2.RandomGrayscale(0.5),
    "Grayscale": v2.Grayscale(3),
    "RandomInvert": v2.RandomInvert(),
    "RandomPosterize": v2.RandomPosterize(3),
    "RandomSolarize": v2.RandomSolarize(99.5),
    "RandomAdjustSharpness": v2.RandomAdjustSharpness(2.5),
    "RandomAutocontrast": v2.RandomAutocontrast(),
    "RandomEqualize": v2.RandomEqualize(),
    "GaussianBlur": v2.GaussianBlur(5),
}


def loader(folder: Path, steps: list[Any], **options: Any) -> DataLoader[Any]:
    return DataLoader(ImageFolder(str(folder), v2.Compose(steps)), 13, shuffle=True, seed=4, **options)


def images_of(loader: Any) -> list[torch.Tensor]:
    return [images for images, _ in loader]


@pytest.mark.parametrize("name", STEPS)
def test_batches_are_those_of_the_operators_on_batches(folder: Path, name: str) -> None:
    """Both draw the same; operators on batches are compared with torchvision's in test_device_ops.py."""
    steps = [v2.ToImage(), v2.RandomResizedCrop(24, antialias=True), STEPS[name]]
    on_host, on_batches = loader(folder, steps, num_workers=2), loader(folder, steps, augment_on="device")
    assert len(pipelines_plan(on_host).fused) == 3
    assert per_sample(on_host) == steps_on_batches(on_host) == []
    assert steps_on_batches(on_batches) == [name]
    unchanged = images_of(loader(folder, steps[:2]))
    for ours, theirs, before in zip(images_of(on_host), images_of(on_batches), unchanged, strict=True):
        difference = (ours.int() - theirs.int()).abs()
        if name == "GaussianBlur":
            assert difference.max() <= 1
            assert (difference > 0).float().mean() <= 1e-3
        else:
            assert difference.max() == 0
        assert not torch.equal(ours, before)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [v2.GaussianBlur(5, (1.0, 2.0)), v2.RandomAffine(30, scale=(0.8, 1.2))])
def test_the_loops_autocast_changes_no_image(folder: Path, step: Any, workers: int) -> None:
    steps = [v2.ToImage(), v2.RandomResizedCrop(24, antialias=True), step, v2.ToDtype(torch.float32, scale=True)]
    batches = loader(folder, steps, augment_on="device", num_workers=workers)
    assert steps_on_batches(batches)
    expected = images_of(batches)
    again = loader(folder, steps, augment_on="device", num_workers=workers)
    with torch.autocast("cpu", torch.bfloat16):
        found = images_of(again)
    assert all(torch.equal(ours, before) for ours, before in zip(found, expected, strict=True))


RECIPES: dict[str, list[Any]] = {
    "jitter, then floats": [
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        v2.RandomGrayscale(0.2),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5], [0.2]),
    ],
    "before a crop": [v2.ColorJitter(0.4, 0, 0.4, 0.1), v2.Resize(40), v2.RandomCrop(24)],
    "distorted": [v2.Resize((20, 30)), v2.RandomPhotometricDistort(), v2.RandomChannelPermutation()],
    "of a choice": [v2.Resize((20, 30)), v2.RandomChoice([v2.RandomInvert(1.0), v2.ColorJitter(0.9, 0.9)])],
}


@pytest.mark.parametrize("name", RECIPES)
def test_batches_do_not_depend_on_who_decodes(folder: Path, name: str) -> None:
    steps = [v2.ToImage(), *RECIPES[name]]
    expected = images_of(loader(folder, steps, backend="pil"))
    for backend, threads in (("native", 2), ("native", 0), ("turbojpeg", 1)):
        ours = images_of(loader(folder, steps, backend=backend, num_workers=threads))
        assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))
    plan = pipelines_plan(loader(folder, steps))
    assert plan.unfused == ()


def test_a_whole_recipe_without_chance_has_torchvisions_pixels(folder: Path) -> None:
    """Sharpened, resized, changed and resized again, on tensors all the way."""
    steps = [v2.ToImage(), v2.RandomAdjustSharpness(2.5, p=1.0), v2.Resize(40), v2.CenterCrop(36), v2.Grayscale(3)]
    steps += [v2.ColorJitter((0.7, 0.7)), v2.RandomAutocontrast(1.0), v2.Resize((20, 30)), v2.RandomEqualize(1.0)]
    ours = DataLoader(ImageFolder(str(folder), v2.Compose(steps)), 13)
    assert pipelines_plan(ours).unfused == ()
    theirs = torch.utils.data.DataLoader(ours.dataset, 13)
    assert all(torch.equal(one, other) for one, other in zip(images_of(ours), images_of(theirs), strict=True))


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_factors_are_rounded_as_torchvisions(folder: Path, name: str) -> None:
    """v2's ColorJitter draws float32, of which one between 0.3 and 0.3 is not 0.3."""
    steps = [v2.ToImage(), v2.Resize((40, 56)), v2.ColorJitter(**{name: (0.3, 0.3)})]
    ours = DataLoader(ImageFolder(str(folder), v2.Compose(steps)), 13)
    theirs = torch.utils.data.DataLoader(ours.dataset, 13)
    assert all(torch.equal(one, other) for one, other in zip(images_of(ours), images_of(theirs), strict=True))


def test_thresholds_are_compared_as_torch_does(folder: Path) -> None:
    def steps(threshold: float) -> list[Any]:
        return [v2.ToImage(), v2.Resize((24, 24)), v2.RandomSolarize(threshold, p=1.0)]

    almost, exactly = (images_of(loader(folder, steps(threshold))) for threshold in (127.99999999, 128.0))
    assert all(torch.equal(one, other) for one, other in zip(almost, exactly, strict=True))


LEFT: dict[str, tuple[list[Any], str]] = {
    "warps": ([v2.Resize((24, 24)), v2.RandAugment()], "torch's grid_sample"),
    "a rotation that expands": ([v2.Resize((24, 24)), v2.RandomRotation(9, expand=True)], "torch's grid_sample"),
    "contrast of large images": ([v2.Resize((300, 300)), v2.ColorJitter(contrast=0.3)], "up to 65793 pixels"),
    "contrast of any images": ([v2.ColorJitter(contrast=0.3), v2.Resize((24, 24))], "up to 65793 pixels"),
    "a threshold": ([v2.Resize((24, 24)), v2.RandomSolarize(256)], "no threshold above 255"),
    "v1": ([v2.Resize((24, 24)), v1.ColorJitter(0.3)], "arithmetic of torchvision's v1"),
    "v1 inside": ([v2.Resize((24, 24)), v2.RandomApply([v1.ColorJitter(0.3)])], "arithmetic of torchvision's v1"),
    "rare warps": (
        [v2.Resize((24, 24)), v2.RandomApply([v2.RandomRotation(30)], p=0.0001)],
        "torch's grid_sample",
    ),
    "a rare contrast": (
        [v2.Resize((300, 300)), v2.RandomChoice([v2.ColorJitter(contrast=0.3), v2.RandomInvert()], p=[0.0001, 1])],
        "up to 65793 pixels",
    ),
    "a rare threshold": ([v2.Resize((24, 24)), v2.RandomSolarize(256, p=0.0001)], "no threshold above 255"),
    "erasing": ([v2.Resize((24, 24)), v2.RandomErasing()], "put it behind the conversion to float"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_torchvision_says_why(folder: Path, name: str) -> None:
    steps, why = LEFT[name]
    left = loader(folder, [v2.ToImage(), *steps])
    assert why in left._route().reason
    assert "called per sample" in left._route().reason


def test_where_torch_has_other_bits_it_does_it_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_builder, "core_agrees_on_tensors", lambda: False)
    left = loader(folder, [v2.ToImage(), v2.Resize((8, 8)), v2.ColorJitter(0.2)])
    assert per_sample(left) == ["ColorJitter"]
    assert "torch's bits" in left._route().reason


def test_a_core_with_other_bits_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = functional.adjust_saturation
    monkeypatch.setattr(functional, "adjust_saturation", lambda image, factor: original(image, factor + 0.01))
    assert tensors.core_agrees_on_tensors()
    assert not tensors.core_agrees_on_tensors.__wrapped__()
    assert compiling.core_agrees()
