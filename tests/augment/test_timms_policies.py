"""timm's policies and its RandomErasing: its own functions on PIL images, for what was drawn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from same_distribution import p_of_gap
from taken_over import pipelines_plan
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, native
from fastdata.augment.base import Augmentation
from fastdata.augment.erasing import Eraser
from fastdata.augment.timm_auto_augment import Operation, TimmsAugMix, TimmsAutoAugment, TimmsRandAugment
from fastdata.errors import OptionError
from fastdata.tables import Format
from fastdata.transforms.augmentations import augmentation_of
from fastdata.transforms.compile import compile_transform
from fastdata.transforms.plan_builder import NotFusable
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

auto_augment = pytest.importorskip("timm.data.auto_augment")
timm_data = pytest.importorskip("timm.data")
timm_transforms = pytest.importorskip("timm.data.transforms")
random_erasing = pytest.importorskip("timm.data.random_erasing")

SIZE = (33, 41)
N = 60
HPARAMS = {"translate_const": 14, "img_mean": (124, 116, 104)}


def draws(count: int = N, seed: int = 3) -> Draws:
    zeros = np.zeros(count, np.int64)
    return Draws(key=Key(seed=seed, epoch=0), indices=np.arange(count), occurrences=zeros)


def images(size: tuple[int, int] = SIZE) -> np.ndarray:
    generator = torch.Generator().manual_seed(1)
    smooth = torch.nn.functional.interpolate(torch.rand((N, 3, 5, 5), generator=generator), size, mode="bicubic")
    return smooth.clamp(0, 1).mul(255).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()


def by_core(pixels: np.ndarray, table: Any) -> np.ndarray:
    result = np.empty_like(pixels)
    native.load().convert(np.ascontiguousarray(pixels), result.ctypes.data, Format(), table)
    return result


class Chance:
    """In place of `random` in timm: gives what was drawn."""

    def __init__(self, level: float, sign: float, filter_: int, radius: float) -> None:
        self.level, self.sign, self.filter, self.radius = level, sign, filter_, radius

    def random(self) -> float:
        return 0.9 if self.sign < 0 else 0.1

    def gauss(self, mean: float, std: float) -> float:
        return self.level

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.radius

    def choice(self, values: Any) -> Any:
        return values[self.filter]


def timms(image: Image.Image, step: Any, parameters: Any, row: int, turn: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One of timm's operations with what was drawn for a turn."""
    level, sign, filter_, radius = (
        float(parameters[name][row, turn]) for name in ("levels", "signs", "filters", "radii")
    )
    name = step.name
    if name.startswith("Posterize") and step.level_fn(level, step.hparams)[0] == 0:
        return Image.new("RGB", image.size)  # Pillow 13 refuses to keep no bit; before, the image became black
    monkeypatch.setattr(auto_augment, "random", Chance(level, sign, int(filter_ * 2), radius))
    monkeypatch.setattr(step, "magnitude", level)
    monkeypatch.setattr(step, "magnitude_std", 0)
    monkeypatch.setattr(step, "prob", 1.0)
    return step(image)


@pytest.mark.parametrize("size", [SIZE, (32, 32)])
@pytest.mark.parametrize("name", auto_augment.NAME_TO_OP)
def test_each_operation(name: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    hparams = {**HPARAMS, "magnitude_std": 4.0}
    step = auto_augment.AugmentOp(name, 1.0, 7, hparams)
    ours = augmentation_of(auto_augment.RandAugment([step], 1))
    parameters = ours.draw(draws(), size)
    table, changed = ours.effects(parameters, size), 0
    for row, before in enumerate(images(size)):
        expected = np.asarray(timms(Image.fromarray(before), step, parameters, row, 0, monkeypatch))
        after = by_core(before, table[row : row + 1])
        assert np.array_equal(after, expected), (row, {key: values[row] for key, values in parameters.items()})
        changed += not np.array_equal(after, before)
    assert changed


POLICIES = ["rand-m9-mstd0.5-inc1", "rand-m7-n3", "rand-m15-mmax20-mstd101-tweights", "rand-m6-n2-p1.0-t3aw"]


def policy(config: str) -> Any:
    if config.startswith("rand"):
        return auto_augment.rand_augment_transform(config, dict(HPARAMS))
    if config.startswith("augmix"):
        return auto_augment.augment_and_mix_transform(config, {**HPARAMS, "translate_pct": 0.3})
    return auto_augment.auto_augment_transform(config, dict(HPARAMS))


@pytest.mark.parametrize("config", [*POLICIES, "original-mstd0.5", "v0", "v0r", "originalr", "3a"])
def test_policies(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = policy(config)
    ours = augmentation_of(step)
    assert isinstance(ours, TimmsRandAugment | TimmsAutoAugment)
    known = step.ops if config.startswith("rand") else [each for part in step.policy for each in part]
    parameters = ours.draw(draws(), SIZE)
    table = ours.effects(parameters, SIZE)
    for row, before in enumerate(images()):
        image = Image.fromarray(before)
        for turn, choice in enumerate(parameters["choices"][row].tolist()):
            if choice >= 0:
                image = timms(image, known[choice], parameters, row, turn, monkeypatch)
        assert np.array_equal(by_core(before, table[row : row + 1]), np.asarray(image))


@pytest.mark.parametrize("config", ["augmix-m5-w4-d2", "augmix-mstd1", "augmix-m7-w2-d4"])
def test_mixed_chains(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = policy(config)
    ours = augmentation_of(step)
    assert isinstance(ours, TimmsAugMix)
    parameters = ours.draw(draws(), SIZE)
    table, longest = ours.effects(parameters, SIZE), parameters["choices"].shape[1] // step.width
    for row, before in enumerate(images()):
        mixed = np.zeros(before.shape, np.float32)
        for chain in range(step.width):
            image = Image.fromarray(before)
            for turn in range(chain * longest, (chain + 1) * longest):
                if (choice := parameters["choices"][row, turn]) >= 0:
                    image = timms(image, step.ops[choice], parameters, row, turn, monkeypatch)
            mixed += parameters["weights"][row, chain] * np.asarray(image, np.float32)
        other = Image.fromarray(np.clip(mixed, 0, 255).astype(np.uint8))
        expected = Image.blend(Image.fromarray(before), other, parameters["share"][row])
        assert np.array_equal(by_core(before, table[row : row + 1]), np.asarray(expected))


@pytest.mark.parametrize("alpha", [0.3, 2.5])
def test_chains_are_weighted_as_timm_weights_them(alpha: float) -> None:
    step = policy(f"augmix-w3-a{alpha}")
    assert step.alpha == alpha
    ours = augmentation_of(step)
    count = 5000
    key, zeros = Key(seed=1, epoch=0), np.zeros(count, np.int64)
    own = ours.draw(Draws(key=key, indices=np.arange(count), occurrences=zeros), SIZE)
    rng = np.random.default_rng(0)
    assert np.allclose(own["weights"].sum(axis=1), 1, atol=1e-5)
    assert p_of_gap(own["share"], rng.beta(alpha, alpha, count)) > 1e-4
    for chain in range(3):
        assert p_of_gap(own["weights"][:, chain], rng.dirichlet([alpha] * 3, count)[:, chain]) > 1e-4
    some = Draws(key=key, indices=np.arange(count)[::7], occurrences=zeros[::7])
    assert np.array_equal(ours.draw(some, SIZE)["weights"], own["weights"][::7])


@pytest.mark.parametrize("config", ["augmix-m5-w4-d2-b1", "augmix-mstd1-b1"])
def test_blended_chains(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = policy(config)
    assert step.blended
    ours = augmentation_of(step)
    parameters = ours.draw(draws(), SIZE)
    plain = TimmsAugMix(ours.operations, step.width, step.depth).draw(draws(), SIZE)
    shares = zip(plain["weights"], plain["share"], strict=True)
    assert np.array_equal(parameters["weights"], [step._calc_blended_weights(*own) for own in shares])
    table, longest = ours.effects(parameters, SIZE), parameters["choices"].shape[1] // step.width
    for row, before in enumerate(images()):
        mixed = Image.fromarray(before)
        for chain in range(step.width):
            image = Image.fromarray(before)
            for turn in range(chain * longest, (chain + 1) * longest):
                if (choice := parameters["choices"][row, turn]) >= 0:
                    image = timms(image, step.ops[choice], parameters, row, turn, monkeypatch)
            mixed = Image.blend(mixed, image, parameters["weights"][row, chain])
        assert np.array_equal(by_core(before, table[row : row + 1]), np.asarray(mixed))


def counted(name: str, ours: Any, theirs: Any) -> None:
    """Chi-square of two samples of small integers."""
    length = 1 + max(max(ours), max(theirs))
    a, b = np.bincount(ours, minlength=length), np.bincount(theirs, minlength=length)
    seen = a + b > 0
    expected = (a + b) / (len(ours) + len(theirs))
    statistic = sum(
        ((counts - len(values) * expected)[seen] ** 2 / (len(values) * expected[seen])).sum()
        for counts, values in ((a, ours), (b, theirs))
    )
    degrees = max(1, seen.sum() - 1)
    assert statistic < degrees + 4 * np.sqrt(2 * degrees) + 8, (name, statistic, degrees)


@pytest.mark.parametrize("config", [*POLICIES, "original-mstd0.5"])
def test_operations_and_levels_are_distributed_as_timms(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What timm calls, and with which level, for as many images."""
    count = 4000
    step = policy(config)
    ours = augmentation_of(step)
    assert isinstance(ours, TimmsRandAugment | TimmsAutoAugment)
    parameters = ours.draw(draws(count), SIZE)
    names = [each.name for each in ours.operations]
    known = sorted(set(names))
    seen: list[tuple[int, float]] = []
    levels: list[float] = []  # of the operation that is about to be called
    for number, name in enumerate(known):
        level_fn = auto_augment.LEVEL_TO_ARG[name]

        def call(image: Any, *args: Any, at: int = number, **kwargs: Any) -> Any:
            seen.append((at, levels.pop() if levels else 0.0))
            return image

        def level(value: float, hparams: Any) -> tuple[float]:
            levels.append(value)
            return (value,)

        operations = step.ops if hasattr(step, "ops") else [each for part in step.policy for each in part]
        for each in operations:
            if each.name == name:
                monkeypatch.setattr(each, "aug_fn", call)
                monkeypatch.setattr(each, "level_fn", level if level_fn is not None else None)
    random.seed(4)
    np.random.seed(4)
    for _ in range(count):
        step(None)
    rows, turns = np.nonzero(parameters["choices"] >= 0)
    chosen = [known.index(names[choice]) for choice in parameters["choices"][rows, turns]]
    with_level = [auto_augment.LEVEL_TO_ARG[known[at]] is not None for at in chosen]
    counted("operations", chosen, [at for at, _ in seen])
    own = np.sort(parameters["levels"][rows, turns][with_level])
    theirs = np.sort([level for at, level in seen if auto_augment.LEVEL_TO_ARG[known[at]] is not None])
    points = np.unique(np.concatenate([own, theirs]))
    gap = np.abs(
        np.searchsorted(own, points, "right") / len(own) - np.searchsorted(theirs, points, "right") / len(theirs)
    ).max()
    assert gap < 2.3 * np.sqrt(1 / len(own) + 1 / len(theirs))  # p = 5e-5
    assert abs(np.mean(parameters["signs"] < 0) - 0.5) < 4 * 0.5 / np.sqrt(parameters["signs"].size)


ERASING = [
    {"probability": 0.6, "mode": "const"},
    {"probability": 0.6, "mode": "rand", "max_count": 3},
    {"probability": 0.9, "mode": "pixel", "min_count": 2, "max_count": 4},
]


@pytest.mark.parametrize("options", ERASING, ids=str)
def test_erased_rectangles_are_distributed_as_timms(options: Any) -> None:
    count, (height, width) = 4000, SIZE
    step = random_erasing.RandomErasing(device="cpu", **options)
    ours = augmentation_of(step)
    assert isinstance(ours, Eraser)
    erased = ours.erased(ours.draw(draws(count), SIZE))
    random.seed(4)
    torch.manual_seed(4)
    marked = torch.full((3, height, width), 77.0)
    areas = []
    theirs = []
    for _ in range(count):
        changed = step(marked.clone()) != 77.0
        theirs.append(int(changed.any()))
        areas.append(float(changed[0].float().mean()))
    own_areas = []
    for boxes in erased:
        image = marked.clone()
        for each in boxes:
            each.apply(image)
        own_areas.append(float((image[0] != 77.0).float().mean()))
    counted("erased", [int(bool(boxes)) for boxes in erased], theirs)
    points = np.unique(own_areas + areas)
    below = [np.searchsorted(np.sort(values), points, "right") / count for values in (own_areas, areas)]
    assert np.abs(below[0] - below[1]).max() < 2.3 * np.sqrt(2 / count)
    values = [value for boxes in erased for each in boxes for value in each.value]
    if options["mode"] == "rand":
        assert abs(np.mean(values)) < 4 / np.sqrt(len(values))
        assert abs(np.std(values) - 1) < 4 / np.sqrt(2 * len(values))
    else:
        assert set(values) == {0.0}
    assert all((each.noise is not None) == (options["mode"] == "pixel") for boxes in erased for each in boxes)


@pytest.mark.parametrize("aa", ["rand-m9-mstd0.5-inc1", "augmix-m5-w4-d2", "original-mstd0.5", "3a"])
@pytest.mark.parametrize("mode", ["const", "pixel"])
def test_a_whole_recipe_of_timm_is_fused(folder: Path, aa: str, mode: str) -> None:
    transform = timm_data.create_transform(48, is_training=True, auto_augment=aa, re_prob=0.5, re_mode=mode)
    loader = DataLoader(ImageFolder(str(folder), transform), 6, shuffle=True, seed=5)
    assert pipelines_plan(loader).unfused == ()
    batches = [batch.clone() for batch, _ in loader]
    again = DataLoader(ImageFolder(str(folder), transform), 6, shuffle=True, seed=5, num_workers=3, backend="pil")
    for batch, (other, _) in zip(batches, again, strict=True):
        assert torch.equal(batch, other)


def test_operations_that_somebody_has_changed_are_left_to_timm() -> None:
    step = policy("rand-m9")
    step.ops[3].aug_fn = lambda image, *_, **__: image
    result = compile_transform(transforms.Compose([transforms.Resize((20, 20)), step, transforms.ToTensor()]))
    assert "AugmentOp inside of it is not timm's" in result.reason


def test_tables_that_somebody_has_changed_are_left_to_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(auto_augment.NAME_TO_OP, "Invert", lambda image, **_: image)
    with pytest.raises(NotFusable, match="is not timm's"):
        augmentation_of(auto_augment.RandAugment([auto_augment.AugmentOp("Invert")], 1))


def test_methods_that_somebody_has_changed_are_left_to_timm() -> None:
    crop = timm_transforms.RandomResizedCropAndInterpolation(20, interpolation="nearest")
    assert compile_transform(crop).plan is not None
    crop.get_params = lambda *_: (0, 0, 4, 4)
    assert compile_transform(crop).plan is None
    step = timm_transforms.ResizeKeepRatio(20, random_scale_range=None, random_aspect_range=(0, 1))
    assert compile_transform(step).plan is not None  # the ranges do not count
    step.random_aspect_prob = 0.5
    assert "not all above 0" in compile_transform(step).reason
    step.random_aspect_prob, step.size = 0, None
    assert "its arguments are not understood" in compile_transform(step).reason


def test_long_chains_are_fused() -> None:
    steps = [transforms.Resize((40, 40)), policy("augmix-m5-w8-d3"), transforms.ToTensor()]
    assert compile_transform(transforms.Compose(steps)).reason == "everything is fused"


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="operation 'Twist'"):
        Operation(name="Twist")
    with pytest.raises(ValueError, match="filters"):
        Operation(name="Rotate", filters=("lanczos",))
    with pytest.raises(ValueError, match="one for each operation"):
        TimmsRandAugment([Operation(name="Rotate")], 1, [1.0, 2.0])
    made: Augmentation = TimmsAutoAugment([[Operation(name="GaussianBlur", prob=1.0)]])
    with pytest.raises(OptionError, match="BOX_BLUR is done by the native core to PIL images, not to tensors"):
        made(torch.zeros(3, 4, 4, dtype=torch.uint8))
    made = TimmsAutoAugment([[Operation(name="Rotate", prob=1.0, filters=("bicubic",))]])
    with pytest.raises(OptionError, match="filters are nearest and bilinear"):
        made(torch.zeros(3, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("filters", "name", "possible"),
    [
        (("bilinear",), "Rotate", True),
        (("bilinear", "bicubic"), "Rotate", False),
        (("nearest",), "GaussianBlur", False),
    ],
)
def test_which_operations_whole_batches_can_have(filters: tuple[str, ...], name: str, possible: bool) -> None:
    operations = [Operation(name=name, filters=filters), Operation(name="Color", filters=filters)]
    assert TimmsRandAugment(operations).on_batches is possible
    assert not TimmsAugMix(operations).on_batches
