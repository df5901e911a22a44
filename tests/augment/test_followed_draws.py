"""draws="torch": fused steps take the numbers that the libraries' own code would take, and give its pixels."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image
from torchvision.transforms import AutoAugmentPolicy, InterpolationMode

from fastdata.lazy import follow_trial
from fastdata.lazy.fused_steps import Fused
from fastdata.lazy.fused_transform import plan_of
from fastdata.lazy.sample_context import Draw
from fastdata.order.random_states import GlobalStates
from fastdata.transforms import followers
from fastdata.transforms.compile import compile_steps, flatten
from fastdata.views.philox import Key

MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]


def of_both(m: Any) -> dict[str, Any]:
    """Transforms that torchvision's two versions have, with other draws in many."""
    jitter, turn = m.ColorJitter(0.4, 0.4, 0.4, 0.1), m.RandomRotation(9)
    to_float = [v1.ToTensor()] if m is v1 else [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    return {
        "crop": m.RandomResizedCrop(50),
        "a crop that never fits": m.RandomResizedCrop((30, 70), (0.9, 1.0), (2, 3), InterpolationMode.BICUBIC),
        "random crop": m.RandomCrop(40),
        "crop of the same width": m.Compose([m.Resize((40, 60)), m.RandomCrop((30, 60))]),
        "crop of the same size": m.Compose([m.Resize((40, 60)), m.RandomCrop((40, 60))]),
        "padded crop": m.RandomCrop(50, padding=(1, 2, 3, 4), padding_mode="reflect"),
        "pad if needed": m.RandomCrop(130, pad_if_needed=True, fill=7),
        "too large": m.RandomCrop(150),
        "too large with padding": m.RandomCrop(150, padding=3),
        "flips": m.Compose([m.RandomHorizontalFlip(0.3), m.RandomResizedCrop(40), m.RandomVerticalFlip(0.7)]),
        "later flips": m.Compose([m.Resize((64, 64)), jitter, m.RandomHorizontalFlip(0.3), m.RandomVerticalFlip()]),
        "jitter before the crop": m.Compose([m.Resize(50), jitter, m.RandomCrop(45), m.RandomHorizontalFlip()]),
        "some of jitter": m.ColorJitter(0, 0.4, 0, 0.1),
        "RandAugment": m.RandAugment(3, 20, interpolation=InterpolationMode.BILINEAR, fill=(1, 2, 3)),
        "TrivialAugment": m.TrivialAugmentWide(11),
        **{policy.name: m.AutoAugment(policy) for policy in AutoAugmentPolicy},
        "rotation": m.RandomRotation(30),
        "affine": m.RandomAffine(20, (0.1, 0.2), (0.8, 1.2), (5, 10, -3, 4)),
        "affine, bilinear": m.RandomAffine((5, 30), shear=9, interpolation=InterpolationMode.BILINEAR),
        "perspective": m.RandomPerspective(0.6, 0.5),
        "grey": m.RandomGrayscale(0.4),
        "levels": m.Compose([m.RandomInvert(0.3), m.RandomPosterize(3, 0.4), m.RandomSolarize(100, 0.4)]),
        "more levels": m.Compose([m.RandomAdjustSharpness(2, 0.3), m.RandomAutocontrast(0.3), m.RandomEqualize(0.3)]),
        "apply": m.RandomApply([jitter, m.RandomInvert(0.5)], 0.6),
        "choice": m.RandomChoice([jitter, m.RandomInvert(0.5), turn], p=[0.1, 0.5, 0.4]),
        "any choice": m.RandomChoice([jitter, turn]),
        "order": m.RandomOrder([jitter, m.RandomInvert(0.5), turn]),
        "nested": m.RandomApply([m.RandomChoice([m.RandomApply([jitter], 0.5), m.RandomPerspective(0.4, 0.6)])], 0.7),
        "erasing": m.Compose([m.Resize((50, 60)), *to_float, m.RandomErasing(0.6)]),
        "erasing with a colour": m.Compose(
            [m.Resize((50, 60)), *to_float, m.Normalize(MEAN, STD), m.RandomErasing(0.7, value=(0.1, 0.2, 0.3))]
        ),
        "three crops": m.Compose([m.RandomCrop(60), m.RandomResizedCrop(40), m.RandomCrop(30)]),
        "stages": m.Compose([m.RandomResizedCrop(64), turn, m.RandomResizedCrop(32), m.RandAugment()]),
    }


def timms() -> dict[str, Any]:
    create = pytest.importorskip("timm.data").create_transform
    made = {
        "timm": {},
        "timm, RandAugment": {"auto_augment": "rand-m7-mstd0.5-inc1"},
        "timm, uniform magnitudes": {"auto_augment": "rand-m4-mstd101-n3-inc1"},
        "timm, one filter": {"auto_augment": "rand-m3-mstd0.3-p0.4-inc1", "interpolation": "bicubic"},
        "timm, AutoAugment": {"auto_augment": "original-mstd0.5"},
        "timm, 3-Augment": {"auto_augment": "3a"},
        "timm, erasing": {"re_prob": 0.6, "re_mode": "const", "re_count": 3},
        "timm, erasing with colours": {"re_prob": 0.6, "re_mode": "rand"},
        "timm, ResizeKeepRatio": {"train_crop_mode": "rkrr"},
        "timm, ResizeKeepRatio and crop": {"train_crop_mode": "rkrc"},
        "timm, arrays": {"use_prefetcher": True},
    }
    return {name: create(48, is_training=True, **options) for name, options in made.items()}


TRANSFORMS: dict[str, Any] = {
    **{f"v1, {name}": transform for name, transform in of_both(v1).items()},
    **{f"v2, {name}": transform for name, transform in of_both(v2).items()},
    "v2, distortion": v2.RandomPhotometricDistort(p=0.6),
    "v2, channels": v2.RandomChannelPermutation(),
    "tensors": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(50, antialias=True), v2.ColorJitter(0.4, 0.4), v2.RandomGrayscale()]
    ),
    **timms(),
}


def outcome(transform: Callable[[Any], Any], image: Any, seed: int) -> tuple[Any, GlobalStates]:
    states = GlobalStates.of_seed(seed)
    with states.drawing():
        try:
            value = transform(image.copy())
        except ValueError as error:
            return str(error), states
    return value if isinstance(value, torch.Tensor) else np.asarray(value), states


@pytest.mark.parametrize("name", TRANSFORMS)
def test_numbers_and_pixels_are_the_librarys_own(name: str) -> None:
    steps = flatten(TRANSFORMS[name])
    plan = compile_steps(steps, ends_with_pil=True, follow=True).plan
    assert plan is not None
    assert plan.draws
    assert not plan.unfused
    fused, generator = Fused(steps, plan), np.random.default_rng(5)
    for number in range(16):
        size = (*generator.integers(60, 160, 2).tolist(), 3)
        image = Image.fromarray(generator.integers(0, 256, size, np.uint8))
        expected, states = outcome(TRANSFORMS[name], image, number)
        found, after = outcome(lambda given, n=number: fused(given, Draw(Key(seed=1, epoch=0), n, 0)), image, number)
        assert type(found) is type(expected)
        assert np.array_equal(found, expected)
        assert after == states


NOT_FOLLOWED = {
    "a blur, whose convolution rounds otherwise": [v1.GaussianBlur(5)],
    "noise": [v1.Resize((40, 40)), v1.ToTensor(), v1.RandomErasing(value="random")],
    "a rotation that changes the size": [v1.RandomRotation(20, expand=True)],
    "a blur that is sometimes done": [v1.RandomApply([v1.GaussianBlur(5)])],
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_cannot_be_followed_ends_the_fused_run(name: str) -> None:
    found = compile_steps([v1.Resize(50), *NOT_FOLLOWED[name]], ends_with_pil=True, follow=True)
    assert found.plan is not None
    assert len(found.plan.unfused) == 1
    assert "draws='torch' has it" in found.reason


def test_a_library_that_draws_otherwise_runs_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a later version may: one number more, or other numbers."""
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()])
    assert plan_of(transform, follow=True) is not None
    try:
        for other in (
            lambda step, op, drawn, size: (int(drawn.is_below(step.p)), drawn.share() < 0)[:1],
            lambda step, op, drawn, size: (int(not drawn.is_below(step.p)),),
        ):
            monkeypatch.setitem(followers._GEOMETRY, "RandomHorizontalFlip", other)
            follow_trial._agree.cache_clear()
            assert plan_of(transform, follow=True) is None
            assert plan_of(transform) is not None
    finally:
        follow_trial._agree.cache_clear()


def test_a_trial_leaves_the_generators_as_they_were() -> None:
    follow_trial._agree.cache_clear()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    before = GlobalStates.now()
    assert plan_of(v1.Compose([v1.RandomResizedCrop(32), v1.RandAugment(), v1.ToTensor()]), follow=True) is not None
    assert GlobalStates.now() == before
