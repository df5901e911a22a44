"""What is drawn for augmentations has torchvision's distribution, and no number has to do with another.

torchvision's side is its own code: its get_params or make_params, or calls of the transform that show what it drew.
Both sides have fixed seeds, so a test always gives the same; 0.01 % of seeds would fail a comparison of equals.  Ranges
that differ by 2 % and probabilities that differ by 0.02 are found; the sign of amounts, which all policies draw in one
function, by RandAugment of v2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image
from same_distribution import p_of_counts, p_of_ends, p_of_gap
from torchvision.transforms import autoaugment, v2

from fastdata.augment.base import Augmentation, Parameters
from fastdata.pipeline.postprocess import Finish
from fastdata.transforms.augmentations import _AUGMENTATIONS
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

OURS, THEIRS = 100_000, 20_000  # ours cost little, and more of them find smaller differences
FEWER = 10_000  # of theirs, where a call of torchvision's takes longer
SEED = 3
SIZE = (33, 41)
LARGE = (1800, 2240)  # where whole pixels hardly round a box's area and shape
UNLIKELY = 1e-4
MODULES = pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
NAMES = [*v1.RandAugment()._augmentation_space(31, SIZE), "Invert"]  # in our order
SIGNED = np.arange(1, 10)  # those of them whose amounts may be negative


def drawn(step: Any, size: tuple[int, int] = SIZE) -> Parameters:
    """What we draw for many samples."""
    erases = isinstance(step, v1.RandomErasing | v2.RandomErasing)
    steps = [v1.ToTensor(), step] if erases else [step, v1.PILToTensor()]
    plan = compile_transform(v1.Compose([v1.Resize(size), *steps])).plan
    assert plan is not None
    (augmentation,) = plan.float_augmentations if erases else plan.effects
    assert isinstance(augmentation, Augmentation)
    draws = Draws(key=Key(seed=SEED, epoch=0), indices=np.arange(OURS), occurrences=np.zeros(OURS, np.int64))
    return augmentation.draw(draws, size)


def check_numbers(ours: np.ndarray, theirs: np.ndarray) -> None:
    """Compares each column of numbers."""
    assert ours.shape[1] == theirs.shape[1]
    for column, (own, other) in enumerate(zip(ours.T, theirs.T, strict=True)):
        assert p_of_gap(own, other) > UNLIKELY, column
        assert p_of_ends(own, other) > UNLIKELY, column


# ---- transforms that have a function for their parameters


ARGUMENTS: dict[str, dict[str, Any]] = {
    "ColorJitter": {"brightness": (0.2, 3), "contrast": 1.5, "saturation": 0.4, "hue": (-0.3, 0.1)},
    "GaussianBlur": {"kernel_size": 5, "sigma": (0.1, 2.0)},
    "RandomRotation": {"degrees": (-20, 45)},
    "RandomAffine": {"degrees": 20, "translate": (0.5, 0.3), "scale": (0.8, 1.3), "shear": (-5, 5, 0, 30)},
    "RandomErasing": {"p": 1.0, "scale": (0.02, 0.33), "ratio": (0.3, 3.3)},
}


def get_params(step: Any, image: torch.Tensor) -> list[float]:
    """What torchvision draws for an image, whichever version it is."""
    made = step.make_params([image]).values() if hasattr(step, "make_params") else None
    match step:
        case v1.ColorJitter() | v2.ColorJitter():
            order, *amounts = made or step.get_params(step.brightness, step.contrast, step.saturation, step.hue)
            return [*order.tolist(), *amounts]
        case v1.RandomAffine() | v2.RandomAffine():
            ranges = step.degrees, step.translate, step.scale, step.shear
            angle, moves, scale, shears = made or step.get_params(*ranges, image.shape[:0:-1])
            return [angle, *moves, scale, *shears]
        case v1.RandomErasing() | v2.RandomErasing():
            top, left, tall, wide, _ = made or step.get_params(image, step.scale, step.ratio, [0.0])
            return [top, left, tall, wide]
        case v1.GaussianBlur() | v2.GaussianBlur():
            return next(iter(made))[:1] if made else [step.get_params(*step.sigma)]
    return list(made or [step.get_params(step.degrees)])


def both(step: Any, size: tuple[int, int] = SIZE, count: int = THEIRS) -> tuple[Parameters, np.ndarray]:
    """Our parameters, and torchvision's in rows."""
    ours = drawn(step, size)
    torch.manual_seed(SEED)
    image = torch.empty(1, 1, 1).expand(3, *size)
    return ours, np.array([get_params(step, image) for _ in range(count)])


@MODULES
def test_colour_jitter(module: Any) -> None:
    ours, theirs = both(module.ColorJitter(**ARGUMENTS["ColorJitter"]))
    assert p_of_counts(ours["order"], theirs[:, :4]) > UNLIKELY
    check_numbers(ours["amounts"], theirs[:, 4:])


@MODULES
def test_widths_of_a_blur(module: Any) -> None:
    ours, theirs = both(module.GaussianBlur(**ARGUMENTS["GaussianBlur"]))
    check_numbers(ours["sigmas"][:, None], theirs)


@MODULES
def test_rotations(module: Any) -> None:
    ours, theirs = both(module.RandomRotation(**ARGUMENTS["RandomRotation"]))
    check_numbers(ours["angles"][:, None], theirs)


@MODULES
def test_affine_maps(module: Any) -> None:
    ours, theirs = both(module.RandomAffine(**ARGUMENTS["RandomAffine"]))
    for column in range(2):
        assert p_of_counts(ours["moves"][:, column], theirs[:, 1 + column]) > UNLIKELY
    check_numbers(np.column_stack([ours["angles"], ours["scales"], ours["shears"]]), theirs[:, [0, 3, 4, 5]])


@MODULES
def test_boxes_that_are_erased(module: Any) -> None:
    ours, theirs = both(module.RandomErasing(**ARGUMENTS["RandomErasing"]), LARGE, FEWER)
    left, top, right, bottom = ours["boxes"][:, 0].T
    check_numbers(shapes_and_places(top, left, bottom - top, right - left), shapes_and_places(*theirs.T))


def shapes_and_places(top: np.ndarray, left: np.ndarray, tall: np.ndarray, wide: np.ndarray) -> np.ndarray:
    """Of boxes: sizes, area, shape, and where in the room that is left for it each lies."""
    height, width = LARGE
    return np.column_stack([tall, wide, tall * wide, tall / wide, top / (height - tall), left / (width - wide)])


@MODULES
def test_boxes_in_small_images_that_often_do_not_fit(module: Any) -> None:
    ours, theirs = both(module.RandomErasing(p=1.0, scale=(0.3, 0.99), ratio=(0.02, 50)), SIZE, FEWER)
    left, top, right, bottom = ours["boxes"][:, 0].T
    gives_up = theirs[:, 2] == SIZE[0]  # and would erase the image with itself
    assert p_of_counts(right == 0, gives_up) > UNLIKELY
    own = np.column_stack([top, left, bottom - top, right - left])[right > 0]
    for column in range(4):
        assert p_of_counts(own[:, column], theirs[~gives_up, column]) > UNLIKELY


# ---- transforms that are done or not

SOMETIMES: dict[str, tuple[Any, ...]] = {
    "Grayscale": (3,),
    "RandomAdjustSharpness": (2, 0.05),
    "RandomAutocontrast": (0.05,),
    "RandomEqualize": (0.05,),
    "RandomErasing": (0.05,),
    "RandomGrayscale": (0.05,),
    "RandomInvert": (0.05,),
    "RandomPosterize": (4, 0.05),
    "RandomSolarize": (100, 0.05),
}


@MODULES
@pytest.mark.parametrize("name", SOMETIMES)
def test_how_often_something_is_done(module: Any, name: str) -> None:
    step = getattr(module, name)(*SOMETIMES[name])
    image = torch.zeros(3, 9, 9) if name == "RandomErasing" else Image.new("RGB", (9, 9))
    ours = drawn(step)
    torch.manual_seed(SEED)
    theirs = np.array([step(image) is not image for _ in range(FEWER if name != "Grayscale" else 100)])
    assert p_of_counts(ours["chosen"] if "chosen" in ours else ours["boxes"][:, 0, 2] > 0, theirs) > UNLIKELY


@MODULES
def test_apply_all_or_none(module: Any) -> None:
    step = module.RandomApply([module.RandomInvert(0.1), module.RandomPosterize(1, 0.9)], 0.9)
    ours = drawn(step)
    chosen = ours["turns"][:, 0] == 0
    inverted, posterized = chosen & ours["0 chosen"], chosen & ours["1 chosen"]
    levels = np.where(inverted, 255 - 200, 200)
    levels = np.where(posterized, levels & 0b1000_0000, levels)
    torch.manual_seed(SEED)
    image = torch.full((3, 1, 1), 200, dtype=torch.uint8)
    theirs = np.array([int(step(image)[0, 0, 0]) for _ in range(THEIRS)])
    assert set(theirs) == {200, 55, 128, 0}
    assert p_of_counts(levels, theirs) > UNLIKELY


# ---- transforms that choose operations

POLICIES = {
    "v1.RandAugment": (v1.RandAugment(), FEWER),
    "v1.TrivialAugmentWide": (v1.TrivialAugmentWide(), FEWER),
    "v1.AutoAugment": (v1.AutoAugment(), FEWER),
    "v2.RandAugment": (v2.RandAugment(), THEIRS),
    "v2.TrivialAugmentWide": (v2.TrivialAugmentWide(), THEIRS),
    "v2.AutoAugment": (v2.AutoAugment(), THEIRS),
    "v2.AutoAugment, CIFAR10": (v2.AutoAugment(v1.AutoAugmentPolicy.CIFAR10), FEWER),
    "v2.AutoAugment, SVHN": (v2.AutoAugment(v1.AutoAugmentPolicy.SVHN), FEWER),
}


@pytest.mark.parametrize("name", POLICIES)
def test_operations_and_their_amounts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, count = POLICIES[name]
    ours = drawn(step)
    own = one_after_the_other(ours["choices"], ours["amounts"])
    theirs = one_after_the_other(*operations_of(step, count, own.shape[1], monkeypatch))
    for turn in range(own.shape[1]):
        assert p_of_counts(own[:, turn, 0], theirs[:, turn, 0]) > UNLIKELY
        assert p_of_counts(own[:, turn], theirs[:, turn]) > UNLIKELY
    assert p_of_counts(*(each.reshape(len(each), -1) for each in (own, theirs))) > UNLIKELY
    assert p_of_counts(signs(own), signs(theirs)) > UNLIKELY


def signs(done: np.ndarray) -> np.ndarray:
    """Of the amounts that have one."""
    choices, amounts = done.reshape(-1, 2).T
    return np.sign(amounts[np.isin(choices, SIGNED) & (amounts != 0)])


def operations_of(step: Any, count: int, turns: int, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray]:
    """What torchvision chooses for many samples, as we write it down: its own code, but for the pixels."""
    done: list[tuple[str, float]] = []
    is_v2 = type(step).__module__.startswith(v2.__name__)

    def note(image: Any, name: str, amount: float, *_: Any, **__: Any) -> Any:
        done.append((name, amount * 255.0 if is_v2 and name == "Solarize" else amount))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)  # v1's
    monkeypatch.setattr(step, "_apply_image_or_video_transform", note, raising=False)  # v2's
    torch.manual_seed(SEED)
    image = torch.zeros(3, *SIZE, dtype=torch.uint8)
    choices, amounts = np.full((count, turns), NAMES.index("Identity")), np.zeros((count, turns))
    for row in range(count):
        step(image)
        for turn, (name, amount) in enumerate(done):
            choices[row, turn], amounts[row, turn] = NAMES.index(name), amount
        done.clear()
    return choices, amounts


def one_after_the_other(choices: np.ndarray, amounts: np.ndarray) -> np.ndarray:
    """(N, turns, 2): operations and amounts of what is really done; where less is done, nothing comes last."""
    nothing = choices == NAMES.index("Identity")
    order = np.argsort(nothing, axis=1, kind="stable")
    pairs = np.stack([choices, np.where(nothing, 0.0, amounts)], axis=2)
    return np.take_along_axis(pairs, order[:, :, None], axis=1)


def test_every_augmentation_is_compared() -> None:
    compared = {*ARGUMENTS, *SOMETIMES, *(type(step).__name__ for step, _ in POLICIES.values()), "RandomApply"}
    in_test_several = {"RandomChannelPermutation", "RandomChoice", "RandomOrder", "RandomPerspective"}
    in_test_several |= {"RandomPhotometricDistort"}
    assert compared | in_test_several == set(_AUGMENTATIONS)


# ---- numbers that have nothing to do with each other


def numbers_of(*, seed: int = SEED, epoch: int = 0, occurrence: int = 0) -> np.ndarray:
    """What is drawn for a transform in which one augmentation comes three times: a row for each sample."""
    jitter = v1.ColorJitter(0.4, 0.4, 0.4, 0.1)
    steps = [jitter, jitter, v1.RandomApply([jitter], 0.5), v1.ToTensor(), v1.RandomErasing(0.5)]
    plan = compile_transform(v1.Compose([v1.Resize(SIZE), *steps]), augment_on="device").plan
    assert plan is not None
    finish, samples = Finish(plan=plan, key=Key(seed=seed, epoch=epoch)), (range(OURS), [occurrence] * OURS, None)
    (first, second, inner), (erased,) = finish._augmenting(*samples), finish._erasing(*samples)
    jitters = [
        (each[f"{prefix}amounts"], each[f"{prefix}order"][:, :1])
        for each, prefix in ((first, ""), (second, ""), (inner, "0 "))
    ]
    chosen, is_erased = inner["turns"][:, 0] == 0, erased["boxes"][:, 0, 2] > 0
    return np.column_stack([*(part for each in jitters for part in each), chosen, is_erased])


OTHERS: dict[str, Any] = {
    "another seed": lambda: numbers_of(seed=SEED + 1),
    "another epoch": lambda: numbers_of(epoch=1),
    "another occurrence of the sample": lambda: numbers_of(occurrence=1),
    "the next sample": lambda: np.roll(numbers_of(), 1, axis=0),
}


@pytest.mark.parametrize("other", OTHERS)
def test_numbers_for_something_else_have_nothing_to_do_with_each_other(other: str) -> None:
    own = numbers_of()
    count = own.shape[1]
    between = np.corrcoef(own, OTHERS[other](), rowvar=False)[:count, count:]
    assert np.abs(between).max() < 4 / np.sqrt(OURS)


def test_the_numbers_of_a_sample_have_nothing_to_do_with_each_other() -> None:
    found = np.corrcoef(numbers_of(), rowvar=False)
    assert np.abs(found - np.eye(len(found))).max() < 4 / np.sqrt(OURS)
