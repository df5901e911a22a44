"""Augmentations that the native core does on the host: torchvision's pixels on PIL images, for what was drawn."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from folders import changed_copy
from host_effects import SIZE, N, augmentation_of, check, done, drawn, images
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from taken_over import from_memory, per_sample, pipelines_plan
from torchvision.datasets import CIFAR10, ImageFolder
from torchvision.transforms import autoaugment, functional, v2

from fastdata import DataLoader, native, transforms
from fastdata.augment.geometry import RandomRotation
from fastdata.loaders import pillow_effects
from fastdata.tables import EffectKind
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

NAMES = [name for name, *_ in v1.RandAugment()._augmentation_space(31, SIZE).items()] + ["Invert"]
BINS = v1.InterpolationMode


JITTERS = (
    functional.adjust_brightness,
    functional.adjust_contrast,
    functional.adjust_saturation,
    functional.adjust_hue,
)


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("amounts", [(0.4, 0.4, 0.4, 0.1), (0, 0.9, 0, 0.5), ((0.2, 3), 0, 0.5, 0)])
def test_colour_jitter(module: Any, amounts: Any) -> None:
    step = module.ColorJitter(*amounts)

    def expected(image: Any, own: Any) -> Any:
        for number in own["order"].tolist():
            if getattr(step, ("brightness", "contrast", "saturation", "hue")[number]) is not None:
                image = JITTERS[number](image, float(own["amounts"][number]))
        return image

    check(step, expected)


SOMETIMES = {
    "RandomGrayscale": ({"p": 0.4}, lambda image: functional.to_grayscale(image, 3)),
    "Grayscale": ({"num_output_channels": 3}, lambda image: functional.to_grayscale(image, 3)),
    "RandomInvert": ({}, functional.invert),
    "RandomPosterize": ({"bits": 3}, lambda image: functional.posterize(image, 3)),
    "RandomSolarize": ({"threshold": 99.5}, lambda image: functional.solarize(image, 99.5)),
    "RandomAdjustSharpness": ({"sharpness_factor": 2.5}, lambda image: functional.adjust_sharpness(image, 2.5)),
    "RandomAutocontrast": ({}, functional.autocontrast),
    "RandomEqualize": ({}, functional.equalize),
}


@pytest.mark.parametrize("module", [v1, v2])
@pytest.mark.parametrize("name", SOMETIMES)
def test_what_is_done_with_a_probability(module: Any, name: str) -> None:
    arguments, operation = SOMETIMES[name]
    check(getattr(module, name)(**arguments), lambda image, own: operation(image) if own["chosen"] else image)


@pytest.mark.parametrize("fill", [None, 128, [10, 20, 30]])
@pytest.mark.parametrize("mode", [BINS.NEAREST, BINS.BILINEAR])
@pytest.mark.parametrize("size", [SIZE, (32, 32)])
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide", "AutoAugment"])
@pytest.mark.parametrize("module", [v1, v2])
def test_policies(module: Any, name: str, size: tuple[int, int], mode: Any, fill: Any) -> None:
    step = getattr(module, name)(interpolation=mode, fill=fill)

    def expected(image: Any, own: Any) -> Any:
        for choice, amount in zip(own["choices"].tolist(), own["amounts"].tolist(), strict=True):
            if module is v1:
                image = autoaugment._apply_op(image, NAMES[choice], amount, mode, fill)
            else:
                share = amount / 255.0 if NAMES[choice] == "Solarize" else amount
                image = step._apply_image_or_video_transform(image, NAMES[choice], share, mode, step._fill)
        return image

    check(step, expected, size)


@pytest.mark.parametrize("policy", list(v1.AutoAugmentPolicy))
def test_autoaugment_draws_pairs_and_probabilities_as_torchvision(policy: Any) -> None:
    step = v1.AutoAugment(policy)
    ours = augmentation_of(step)
    zeros = np.zeros(20_000, np.int64)
    draws = Draws(key=Key(seed=1, epoch=0), indices=np.arange(20_000), occurrences=zeros)
    counts = np.zeros((2, len(NAMES)))
    for turn in range(2):
        counts[turn] = np.bincount(ours.draw(draws, SIZE)["choices"][:, turn], minlength=len(NAMES))
    wanted = np.zeros_like(counts)
    for pair in step.policies:
        for turn, (name, share, _) in enumerate(pair):
            wanted[turn, NAMES.index(name)] += share / len(step.policies)
            wanted[turn, NAMES.index("Identity")] += (1 - share) / len(step.policies)
    assert np.abs(counts / 20_000 - wanted).max() < 0.015


@pytest.mark.parametrize("angle", [0.0, -0.0, 90.0, 180.0, -90.0, 359.5, 12.25, -33.0])
@pytest.mark.parametrize("size", [SIZE, (32, 32)])
@pytest.mark.parametrize("mode", [BINS.NEAREST, BINS.BILINEAR])
def test_rotations_by_any_angle(angle: float, size: tuple[int, int], mode: Any) -> None:
    ours, pixels = augmentation_of(v1.RandAugment(interpolation=mode), size), images(size)
    choices, amounts = np.zeros((N, 2), np.int64), np.full((N, 2), angle)
    choices[:, 0] = NAMES.index("Rotate")
    for before, after in zip(pixels, done(ours, {"choices": choices, "amounts": amounts}, pixels), strict=True):
        assert np.array_equal(after, np.asarray(functional.rotate(Image.fromarray(before), angle, mode)))


@pytest.mark.parametrize("module", [v1, v2])
def test_apply_all_or_none(module: Any) -> None:
    step = module.RandomApply([module.ColorJitter(0.5), module.RandomGrayscale(0.5), module.RandomInvert(0.3)], p=0.6)
    ours, pixels = augmentation_of(step), images()
    parameters = drawn(ours)
    after = done(ours, parameters, pixels)
    chosen = parameters["turns"][:, 0] == 0
    assert 0 < chosen.sum() < N
    assert np.array_equal(after[~chosen], pixels[~chosen])
    expected = pixels
    for number, each in enumerate(ours.transforms):  # type: ignore[attr-defined]
        own = {name[2:]: values for name, values in parameters.items() if name.startswith(f"{number} ")}
        expected = done(each, own, expected)
    assert np.array_equal(after[chosen], expected[chosen])
    first, second = (parameters[f"{number} chosen"] for number in (1, 2))
    assert not np.array_equal(first, second)
    on_device = ours.apply(torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), parameters)
    assert torch.equal(on_device[~chosen], torch.from_numpy(pixels[~chosen]).permute(0, 3, 1, 2))


def test_a_blur_is_drawn_per_sample() -> None:
    ours, pixels = augmentation_of(v1.GaussianBlur(5, (0.1, 2.0))), images()
    parameters = drawn(ours)
    for before, after, sigma in zip(pixels, done(ours, parameters, pixels), parameters["sigmas"], strict=True):
        wanted = np.asarray(functional.gaussian_blur(Image.fromarray(before), [5, 5], [float(sigma)] * 2))
        assert np.abs(wanted.astype(int) - after).max() <= 1


WARPS = {
    "RandomRotation": [
        {"degrees": 30},
        {"degrees": (-200, 200), "interpolation": BINS.BILINEAR, "fill": (9, 8, 200)},
        {"degrees": 45, "center": (3, 30), "fill": 77, "interpolation": BINS.BICUBIC},
    ],
    "RandomAffine": [
        {"degrees": 20},
        {"degrees": 0, "translate": (0.3, 0.2)},
        {"degrees": 0, "translate": (0.1, 0.4), "scale": (0.5, 1.6), "interpolation": BINS.BILINEAR, "fill": 50},
        {"degrees": (-90, 10), "shear": 25, "fill": (1, 2, 3)},
        {"degrees": 9, "scale": (0.9, 1.1), "shear": (-9, 9, -30, 5), "center": (0, 5), "interpolation": BINS.BICUBIC},
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, each in WARPS.items() for n in range(len(each))])
@pytest.mark.parametrize("size", [SIZE, (32, 32)])
@pytest.mark.parametrize("module", [v1, v2])
def test_rotations_and_affine_maps(module: Any, size: tuple[int, int], name: str, number: int) -> None:
    step = getattr(module, name)(**WARPS[name][number])
    mode = BINS(getattr(step.interpolation, "value", step.interpolation))
    fill = WARPS[name][number].get("fill", 0)

    def expected(image: Any, own: Any) -> Any:
        angle = float(own["angles"])
        if name == "RandomRotation":
            return functional.rotate(image, angle, mode, False, step.center, fill)
        geometry = own["moves"].tolist(), float(own["scales"]), own["shears"].tolist()
        return functional.affine(image, angle, *geometry, mode, fill, step.center)

    check(step, expected, size)


def test_maps_are_drawn_as_torchvision_draws_them() -> None:
    given: dict[str, Any] = {"degrees": 20, "translate": (0.2, 0.1), "scale": (0.8, 1.3), "shear": (-5, 5, 0, 30)}
    theirs, ours = v1.RandomAffine(**given), augmentation_of(v1.RandomAffine(**given))
    count = 20_000
    draws = Draws(key=Key(seed=1, epoch=0), indices=np.arange(count), occurrences=np.zeros(count, np.int64))
    drawn = ours.draw(draws, SIZE)
    own = np.column_stack([drawn["angles"], drawn["moves"], drawn["scales"], drawn["shears"]])
    size = [SIZE[1], SIZE[0]]
    wanted = [
        theirs.get_params(theirs.degrees, theirs.translate, theirs.scale, theirs.shear, size) for _ in range(4000)
    ]
    flat = np.array([(angle, *moves, scale, *shear) for angle, moves, scale, shear in wanted])
    for column in range(flat.shape[1]):
        edges = np.sort(own[:, column])
        places = np.searchsorted(edges, np.sort(flat[:, column]), side="right") / count
        steps = np.searchsorted(np.sort(flat[:, column]), np.sort(flat[:, column]), side="right") / len(flat)
        assert np.abs(places - steps).max() < 0.035, column  # Kolmogorov and Smirnov's distance


RECIPES: dict[str, list[Any]] = {
    "rand": [v1.RandAugment()],
    "auto": [v1.AutoAugment()],
    "trivial": [v1.TrivialAugmentWide()],
    "simclr": [v1.RandomApply([v1.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8), v1.RandomGrayscale(0.2), v1.GaussianBlur(5)],
}
NORMALIZE = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def transform(name: str) -> Any:
    crop = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()]
    return v1.Compose([*crop, *RECIPES[name], v1.ToTensor(), NORMALIZE, v1.RandomErasing(0.5)])


def batches(folder: Path, name: str, **options: Any) -> list[Any]:
    options = {"batch_size": 6, "shuffle": True, "seed": 5, "backend": "native", **options}
    return list(DataLoader(ImageFolder(str(folder), transform(name)), **options))


def same(ours: list[Any], theirs: list[Any]) -> bool:
    return len(ours) == len(theirs) and all(
        torch.equal(one, other) for a, b in zip(ours, theirs, strict=True) for one, other in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("name", RECIPES)
def test_batches_do_not_depend_on_who_decodes_or_how(folder: Path, name: str) -> None:
    expected = batches(folder, name)
    for options in ({"num_workers": 2}, {"backend": "pil"}, {"backend": "turbojpeg", "num_workers": 1}):
        assert same(batches(folder, name, **options), expected), options
    listed = batches(folder, name, collate_fn=list)
    assert same([torch.utils.data.default_collate(batch) for batch in listed], expected)
    last = batches(folder, name, memory_format=torch.channels_last)
    assert same([[images.contiguous(), labels] for images, labels in last], expected)


def test_a_tail_sees_the_same_images(folder: Path) -> None:
    steps = [v1.RandomResizedCrop(32), v1.ColorJitter(0.4), v1.RandomInvert(), v1.ToTensor()]
    plain, tailed = (ImageFolder(str(folder), v1.Compose([*steps, *tail])) for tail in ([], [lambda image: image]))
    loaders = [DataLoader(dataset, 6, seed=2) for dataset in (plain, tailed)]
    assert per_sample(loaders[1]) == ["<lambda>"]
    assert same(*map(list, loaders))


def test_resume_in_the_middle(folder: Path) -> None:
    dataset = ImageFolder(str(folder), transform("rand"))
    loader = DataLoader(dataset, 6, shuffle=True, seed=5)
    whole, iterator = list(loader), iter(DataLoader(dataset, 6, shuffle=True, seed=5))
    begun = DataLoader(dataset, 6, shuffle=True, seed=5)
    iterator = iter(begun)
    first = [next(iterator) for _ in range(3)]
    state = begun.state_dict()
    again = DataLoader(dataset, 6, shuffle=True, seed=5)
    again.load_state_dict(state)
    assert same([*first, *again], whole)


def test_epochs_differ_and_repeat(folder: Path) -> None:
    loader = DataLoader(ImageFolder(str(folder), transform("rand")), 6, seed=5)
    first, second = list(loader), list(loader)
    assert not same(first, second)
    loader = DataLoader(ImageFolder(str(folder), transform("rand")), 6, seed=5)
    assert same(list(loader), first)
    assert same(list(loader), second)


def test_images_in_memory() -> None:
    dataset = object.__new__(CIFAR10)
    dataset.data, dataset.targets = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8), [0] * 20
    dataset.target_transform = None
    crop, policy = v1.RandomCrop(32, padding=4), v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10)
    dataset.transform = v1.Compose([crop, policy, v1.ToTensor()])
    loader = DataLoader(dataset, 20, seed=1, num_workers=1)
    assert loader.verdict().kind == "accelerated"
    assert from_memory(loader)
    images, _ = next(iter(loader))
    dataset.transform = v1.Compose([crop, v1.PILToTensor()])
    plain, _ = next(iter(DataLoader(dataset, 20, seed=1)))
    step = augmentation_of(policy, (32, 32))
    indices, zeros = np.arange(20), np.zeros(20, np.int64)
    parameters = step.draw(Draws(key=Key(seed=1, epoch=0), indices=indices, occurrences=zeros), (32, 32))
    expected = done(step, parameters, plain.permute(0, 2, 3, 1).contiguous().numpy())
    assert torch.equal(images, torch.from_numpy(expected).permute(0, 3, 1, 2).float().div(255))


LEFT = {
    "varying sizes": ([v1.Resize(40), v1.ToTensor(), v1.RandomErasing(1)], "images differ in size"),
    "a tensor": ([v1.Resize((40, 40)), v1.PILToTensor(), v1.ColorJitter(0.4)], "it works on a tensor"),
    "an expanding turn inside": (
        [v1.Resize((8, 8)), v1.RandomApply([v1.RandomRotation(9, expand=True)]), v1.ToTensor()],
        "changes the size of images",
    ),
    "no tensor": ([v1.Resize((40, 40)), v1.ColorJitter(0.4)], "does not end with a tensor"),
    "a wide blur": ([v1.Resize((8, 8)), v1.GaussianBlur(23), v1.ToTensor()], "reaches across images of 8"),
    "a function inside": (
        [v1.Resize((8, 8)), v1.RandomApply([lambda image: image]), v1.ToTensor()],
        "inside of it is not known",
    ),
}


INSIDES: dict[str, Any] = {
    "space": (v2.RandAugment(), "_AUGMENTATION_SPACE", {"Identity": (lambda bins, height, width: None, False)}),
    "parameters": (v1.ColorJitter(0.5), "get_params", lambda *given: (torch.arange(4), 1.0, 1.0, 1.0, None)),
    "transform": (v2.RandomInvert(1.0), "transform", lambda image, params: image),
}


@pytest.mark.parametrize("name", INSIDES)
def test_functions_that_somebody_replaced_are_called(folder: Path, name: str) -> None:
    step, attribute, value = INSIDES[name]
    setattr(step, attribute, value)
    steps = v1.Compose([v1.Resize((20, 20)), step, v1.PILToTensor()])
    plain = v1.Compose([v1.Resize((20, 20)), v1.PILToTensor()])
    ours, expected = (list(DataLoader(ImageFolder(str(folder), each), 6)) for each in (steps, plain))
    assert same(ours, expected)


REFUSED: dict[str, Any] = {
    "fill": v1.RandAugment(fill=[300]),
    "no operation": v1.RandAugment(num_ops=0),
    "infinite": v1.RandomSolarize(float("inf"), 1.0),
    "huge": v1.ColorJitter(brightness=(1e7, 1e8)),
    "fill of a turn": v1.RandomRotation(9, fill=300),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_the_core_refuses_are_left_to_torchvision(folder: Path, name: str) -> None:
    steps = v1.Compose([v1.Resize((20, 20)), REFUSED[name], v1.PILToTensor()])
    loader = DataLoader(ImageFolder(str(folder), steps), 6)
    assert per_sample(loader)[0] == type(REFUSED[name]).__name__
    assert len(list(loader)) > 0


@pytest.mark.parametrize("augment_on", ["host", "device"])
def test_what_comes_after_erasing_stays_after_it(folder: Path, augment_on: Any) -> None:
    steps = [v1.Resize((20, 20)), v1.ToTensor(), v1.RandomErasing(1.0), v1.Normalize([0.5] * 3, [0.25] * 3)]
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "augment_on='device' has no effect")  # it is told, too
        images, _ = next(iter(DataLoader(dataset, 6, seed=1, augment_on=augment_on)))
    assert ((images == -2.0).all(dim=1).flatten(1).sum(dim=1) > 5).all()  # black, normalised
    assert (images != 0.0).all()


def test_a_substitute_has_the_draws_of_its_own(folder: Path, tmp_path: Path) -> None:
    damaged = changed_copy(folder, tmp_path / "copy", {"apple/03.jpg": b"none", "bear/07.jpg": b"none"})
    dataset = ImageFolder(str(damaged), transform("rand"))
    options: dict[str, Any] = {"seed": 5, "on_error": "replace", "backend": "native"}
    whole = list(DataLoader(dataset, 6, **options))
    listed = DataLoader(dataset, 6, collate_fn=list, **options)
    assert same([torch.utils.data.default_collate(batch) for batch in listed], whole)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_torchvision_says_why(folder: Path, name: str) -> None:
    steps, why = LEFT[name]
    assert why in DataLoader(ImageFolder(str(folder), v1.Compose(steps)))._route().reason


def test_another_pillow_does_it_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow_effects, "core_agrees", lambda: False)
    loader = DataLoader(ImageFolder(str(folder), transform("rand")))
    assert per_sample(loader) == ["RandAugment", "ToTensor", "Normalize", "RandomErasing"]


OWN = {
    "ColorJitter": (0.4, 0.4, 0.4, 0.1),
    "GaussianBlur": (5,),
    "Grayscale": (3,),
    "RandAugment": (),
    "RandomAdjustSharpness": (2.0,),
    "RandomAutocontrast": (),
    "RandomEqualize": (),
    "RandomGrayscale": (),
    "RandomInvert": (),
    "RandomPosterize": (4,),
    "RandomSolarize": (128,),
    "TrivialAugmentWide": (),
}


@pytest.mark.parametrize("augment_on", ["host", "device"])
@pytest.mark.parametrize("name", OWN)
def test_our_own_transforms_do_the_same(folder: Path, name: str, augment_on: Any) -> None:
    def loader(package: Any) -> DataLoader[Any]:
        steps = [package.RandomResizedCrop(24), getattr(package, name)(*OWN[name]), package.PILToTensor()]
        dataset = ImageFolder(str(folder), package.Compose(steps))
        return DataLoader(dataset, 13, seed=4, augment_on=augment_on)

    plan = pipelines_plan(loader(transforms))
    assert (len(plan.fused), plan.unfused) == (3, ())
    if name not in ("RandAugment", "TrivialAugmentWide"):  # whose thresholds are rounded as in v2
        assert same(list(loader(transforms)), list(loader(v1)))
    assert same(list(loader(transforms)), list(loader(v2)))


def test_without_a_batch_augmentations_stay_on_the_host(folder: Path) -> None:
    """Where a collate function of the user's gets single samples, there is nothing to augment on the device."""
    on_device, on_host = (batches(folder, "rand", collate_fn=list, augment_on=where) for where in ("device", "host"))
    single = [[torch.utils.data.default_collate(batch) for batch in each] for each in (on_device, on_host)]
    assert same(*single)
    assert same(single[0], batches(folder, "rand"))


def test_what_torch_does_otherwise_stays_on_the_host(folder: Path) -> None:
    steps = v1.Compose([v1.Resize((8, 8)), v1.RandomRotation(9, v1.InterpolationMode.BICUBIC), v1.ToTensor()])
    loader = DataLoader(ImageFolder(str(folder), steps), augment_on="device")
    assert "it has no form for whole batches; augment_on='host' does it" in loader._route().reason


def test_images_by_hand_have_pillows_pixels() -> None:
    image = Image.fromarray(images()[0])
    assert np.array_equal(np.asarray(transforms.RandomEqualize(1.0)(image)), np.asarray(functional.equalize(image)))
    assert np.array_equal(np.asarray(transforms.RandomInvert(1.0)(image)), np.asarray(functional.invert(image)))


@settings(max_examples=200, deadline=None)
@given(
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    angle=st.one_of(st.floats(-400, 400), st.integers(-5, 5).map(lambda turns: 90.0 * turns)),
    filter_=st.sampled_from([Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]),
    center=st.one_of(st.none(), st.tuples(st.integers(-9, 50), st.floats(-9, 50))),
)
def test_turns_that_show_all_of_an_image_are_pillows(size: Any, angle: float, filter_: Any, center: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    expected = Image.fromarray(pixels).rotate(angle, filter_, expand=True, center=center, fillcolor=(7, 80, 200))
    step = RandomRotation((angle, angle), int(filter_), True, center, (7, 80, 200))
    parameters = {"angles": np.array([angle])}
    effect, new_size = step.effects(parameters, size), step.new_size(parameters, size)
    if effect["kind"][0, 0] != EffectKind.NONE:
        pixels = native.load().warp(pixels, effect, new_size)
    assert new_size == pixels.shape[:2]
    assert np.array_equal(pixels, np.asarray(expected))
