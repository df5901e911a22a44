"""One of several augmentations, several in random order, flips behind them, perspectives, distorted colours, noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from host_effects import SIZE, N, augmentation_of, check, done, drawn, images
from PIL import Image
from same_distribution import largest_gap
from taken_over import pipelines_plan
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional, v2

from fastdata import DataLoader
from fastdata.augment.base import Augmentation
from fastdata.augment.container import RandomChoice
from fastdata.augment.erasing import Eraser, RandomErasing
from fastdata.transforms.compile import compile_transform
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

MODES = [v1.InterpolationMode[name] for name in ("NEAREST", "BILINEAR", "BICUBIC")]
INSIDE = (v1.RandomInvert(1.0), v1.GaussianBlur(5), v1.ColorJitter(0.4, hue=0.2), v1.RandomHorizontalFlip(1.0))


def draws(count: int) -> Draws:
    return Draws(key=Key(seed=1, epoch=0), indices=np.arange(count), occurrences=np.zeros(count, np.int64))


def in_turns(ours: Any, parameters: Any, pixels: np.ndarray) -> np.ndarray:
    """The same with each augmentation alone, as often as it has a turn."""
    for turn in parameters["turns"].T:
        for number, each in enumerate(ours.transforms):
            prefix, rows = f"{number} ", turn == number
            own = {name.removeprefix(prefix): v for name, v in parameters.items() if name.startswith(prefix)}
            pixels = np.where(rows[:, None, None, None], done(each, own, pixels), pixels)
    return pixels


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("p", [None, [1.0, 0.0, 3.0, 1.0]])
def test_one_of_several(module: Any, p: Any) -> None:
    ours, pixels = augmentation_of(module.RandomChoice(list(INSIDE), p)), images()
    parameters = drawn(ours)
    assert np.array_equal(done(ours, parameters, pixels), in_turns(ours, parameters, pixels))
    counts = np.bincount(ours.draw(draws(20_000), SIZE)["turns"][:, 0], minlength=4)
    wanted = 20_000 * (np.full(4, 0.25) if p is None else np.array(p) / 5)
    assert (np.abs(counts - wanted) <= 4 * np.sqrt(wanted)).all()


@pytest.mark.parametrize("module", [v1, v2])
def test_several_in_random_order(module: Any) -> None:
    ours, pixels = augmentation_of(module.RandomOrder(list(INSIDE[:3]))), images()
    parameters = drawn(ours)
    assert np.array_equal(done(ours, parameters, pixels), in_turns(ours, parameters, pixels))
    orders, counts = np.unique(ours.draw(draws(24_000), SIZE)["turns"], axis=0, return_counts=True)
    assert len(orders) == 6
    assert (np.abs(counts - 4000) <= 4 * np.sqrt(4000)).all()


@pytest.mark.parametrize("step", [v1.RandomHorizontalFlip(0.4), v2.RandomVerticalFlip(0.4)])
@pytest.mark.parametrize("where", ["host", "device"])
def test_flips_behind_augmentations(step: Any, where: str) -> None:
    plan = compile_transform(
        v1.Compose([v1.Resize(SIZE), v1.RandomInvert(), step, v1.PILToTensor()]), augment_on=where
    ).plan
    assert plan is not None
    assert not plan.unfused
    _, ours = plan.effects or plan.augmentations
    assert isinstance(ours, Augmentation)
    parameters, pixels = drawn(ours), images()
    chosen = parameters["chosen"]
    assert 0 < chosen.sum() < N
    axis = 2 if "Horizontal" in type(step).__name__ else 1
    wanted = np.where(chosen[:, None, None, None], np.flip(pixels, axis), pixels)
    assert np.array_equal(done(ours, parameters, pixels), wanted)
    tensors = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    assert torch.equal(ours.apply(tensors, parameters), torch.from_numpy(wanted).permute(0, 3, 1, 2))


@pytest.mark.parametrize("size", [SIZE, (3, 2), (1, 1)])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("module", [v1, v2])
def test_perspectives(module: Any, mode: Any, size: tuple[int, int]) -> None:
    step = module.RandomPerspective(0.6, 0.7, mode, fill=[9, 80, 200])
    height, width = size
    corners = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]

    def expected(image: Any, own: Any) -> Any:
        ends = own["corners"].tolist()
        return functional.perspective(image, corners, ends, mode, [9, 80, 200]) if own["chosen"] else image

    if size == SIZE:
        check(step, expected, size)
    ours = augmentation_of(step, SIZE)
    count = 6000
    own = ours.draw(draws(count), SIZE)["corners"].reshape(count, -1)
    theirs = np.array([v1.RandomPerspective.get_params(SIZE[1], SIZE[0], 0.6)[1] for _ in range(count)])
    for ours_column, theirs_column in zip(own.T, theirs.reshape(count, -1).T, strict=True):
        points = np.arange(-1, 50)
        below = [np.searchsorted(np.sort(column), points, "right") for column in (ours_column, theirs_column)]
        assert np.abs(below[0] - below[1]).max() / count < 2.3 * np.sqrt(2 / count)


def test_distorted_colours() -> None:
    def expected(image: Any, own: Any) -> Any:
        names = [0, 1, 2, 3] if own["contrast_first"] else [0, 2, 3, 1]
        jitters = (
            functional.adjust_brightness,
            functional.adjust_contrast,
            functional.adjust_saturation,
            functional.adjust_hue,
        )
        for number in names:
            if own["chosen"][number]:
                image = jitters[number](image, float(own["amounts"][number]))
        return permuted(image, own) if own["permuted"] else image

    check(v2.RandomPhotometricDistort(p=0.5), expected)


def test_distorted_colours_are_distributed_as_torchvisions() -> None:
    count, step = 6000, v2.RandomPhotometricDistort(p=0.4)
    own = augmentation_of(step).draw(draws(count), SIZE)
    torch.manual_seed(5)
    theirs = [step.make_params([torch.zeros(3, 2, 2)]) for _ in range(count)]
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    for number, name in enumerate(names):
        wanted = np.array([params[name] for params in theirs if params[name] is not None])
        amounts = own["amounts"][own["chosen"][:, number], number]
        assert abs(len(wanted) - len(amounts)) < 4 * np.sqrt(2 * count * 0.4 * 0.6)
        assert largest_gap(amounts, wanted) < 2.3 * np.sqrt(1 / len(wanted) + 1 / len(amounts))
    for shares, wanted in (
        (own["contrast_first"], [params["contrast_before"] for params in theirs]),
        (own["permuted"], [params["channel_permutation"] is not None for params in theirs]),
    ):
        assert abs(shares.mean() - np.mean(wanted)) < 4 * np.sqrt(0.5 / count)


def permuted(image: Any, own: Any) -> Any:
    return v2.functional.permute_channels(image, own["permutations"].tolist())


def test_channels_in_random_order() -> None:
    check(v2.RandomChannelPermutation(), permuted)
    orders, counts = np.unique(
        augmentation_of(v2.RandomChannelPermutation()).draw(draws(24_000), SIZE)["permutations"],
        axis=0,
        return_counts=True,
    )
    assert len(orders) == 6
    assert (np.abs(counts - 4000) <= 4 * np.sqrt(4000)).all()


@pytest.mark.parametrize("step", [v1.RandomErasing(0.9, value="random"), v2.RandomErasing(0.9, value="random")])
def test_noise_depends_on_the_sample_alone(folder: Path, step: Any) -> None:
    transform = v1.Compose([v1.Resize((40, 40)), v1.ToTensor(), v1.Normalize((0.4,) * 3, (0.2,) * 3), step])
    dataset = ImageFolder(str(folder), transform)
    plain = ImageFolder(str(folder), v1.Compose(transform.transforms[:3]))
    loader = DataLoader(dataset, 8, seed=4)
    assert pipelines_plan(loader).unfused == ()
    erased = torch.cat([batch for batch, _ in loader])
    others = torch.cat([batch for batch, _ in DataLoader(dataset, 5, seed=4, num_workers=2, backend="pil")])
    assert torch.equal(erased, others)
    whole = torch.cat([batch for batch, _ in DataLoader(plain, 8)])
    numbers = erased[erased != whole]
    assert len(numbers) > 5000
    assert abs(numbers.mean()) < 4 / np.sqrt(len(numbers))
    assert abs(numbers.std() - 1) < 4 / np.sqrt(2 * len(numbers))
    images_changed = (erased != whole).flatten(1).any(1)
    assert 0.6 < images_changed.float().mean() < 1
    first, second = (erased[row][erased[row] != whole[row]][:50] for row in np.flatnonzero(images_changed)[:2])
    assert not torch.equal(first, second)


def test_what_is_only_done_on_the_host_keeps_all_there() -> None:
    steps = [v1.Resize((20, 20)), v1.RandomInvert(), v1.ToTensor(), v1.RandomErasing(value="random")]
    for some in (steps, steps[:1] + steps[2:]):
        result = compile_transform(v1.Compose(some), augment_on="device")
        assert result.plan is not None
        assert not result.plan.unfused
        assert not result.plan.augmentations
        assert "augmentations stay on the host, since RandomErasing is" in result.reason


def test_noise_is_erased_where_constants_are() -> None:
    parameters = [RandomErasing(0.8, value=value).draw(draws(200), SIZE) for value in ("random", 0)]
    assert np.array_equal(parameters[0]["boxes"], parameters[1]["boxes"])
    steps: list[Eraser] = [RandomErasing(0.8, value="random"), RandomErasing(0.8)]
    with_noise, without = (step.erased(own) for step, own in zip(steps, parameters, strict=True))
    assert [len(each) for each in with_noise] == [len(each) for each in without]


def test_nonsense_is_refused() -> None:
    invert = augmentation_of(v1.RandomInvert())
    for p in ([1.0], [-1.0, 2.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="expected a share"):
            RandomChoice([invert, invert], p)
    result = compile_transform(
        v1.Compose([v1.Resize((9, 9)), v1.RandomChoice([v1.RandomInvert(), Image.Image]), v1.ToTensor()])
    )
    assert "inside of it is not known" in result.reason


def test_perspectives_without_a_solution_are_torchvisions() -> None:
    steps = [v1.CenterCrop(4), v1.RandomPerspective(1.0, 1.0), v1.ToTensor()]
    assert "the native core does not do it with these arguments" in compile_transform(v1.Compose(steps)).reason


def test_a_replaced_space_of_policies_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    space = {"Identity": (lambda *_: None, False)}
    monkeypatch.setattr(v2.RandAugment, "_AUGMENTATION_SPACE", space)
    steps = [v2.Resize((20, 20)), v2.RandAugment(), v1.ToTensor()]
    assert "RandAugment is called per sample" in compile_transform(v1.Compose(steps)).reason
