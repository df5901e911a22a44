"""Random augmentations of batches equal torchvision's v2 for the same parameters, and are drawn per sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from folders import changed_copy
from taken_over import on_batches, per_sample, pipelines_plan
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastdata import DataLoader
from fastdata.augment import auto_augment, color, erasing, mix
from fastdata.augment.base import Augmentation
from fastdata.errors import OptionError
from fastdata.views.philox import Key
from fastdata.views.streams import Draws

N = 40
AUGMENTATIONS: dict[str, Augmentation] = {
    "jitter": color.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "grey": color.RandomGrayscale(0.5),
    "blur": color.GaussianBlur(5, (0.1, 2.0)),
    "erasing": erasing.RandomErasing(0.7, value=3),
    "rand": auto_augment.RandAugment(),
    "trivial": auto_augment.TrivialAugmentWide(),
}


def batch(count: int = N, size: tuple[int, int] = (33, 41)) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    smooth = torch.rand((count, 3, 5, 5), generator=generator)
    grown = torch.nn.functional.interpolate(smooth, size, mode="bicubic")
    return grown.clamp(0, 1).mul(255).to(torch.uint8)


def draws(indices: Any, *, seed: int = 3, epoch: int = 0, step: int = 0) -> Draws:
    indices = np.asarray(indices, np.int64)
    return Draws(key=Key(seed=seed, epoch=epoch), indices=indices, occurrences=np.zeros_like(indices), step=step)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_a_sample_is_augmented_alike_wherever_it_stands(name: str) -> None:
    augmentation, images = AUGMENTATIONS[name], batch()
    whole = augmentation.apply(images, augmentation.draw(draws(range(N)), (33, 41)))
    order = torch.randperm(N, generator=torch.Generator().manual_seed(2))
    for part in order.split(7):
        got = augmentation.apply(images[part], augmentation.draw(draws(part.numpy()), (33, 41)))
        assert torch.equal(got, whole[part])
    assert not torch.equal(whole, images)
    for other in (draws(range(N), seed=4), draws(range(N), epoch=1), draws(range(N), step=1)):
        assert not torch.equal(augmentation.apply(images, augmentation.draw(other, (33, 41))), whole)


@pytest.mark.parametrize("size", [(33, 41), (32, 32)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 128, [10, 20, 30]])
@pytest.mark.parametrize("name", ["RandAugment", "TrivialAugmentWide"])
def test_every_operation_and_magnitude_of_the_policies(
    name: str, fill: Any, interpolation: str, size: tuple[int, int]
) -> None:
    mode = v2.InterpolationMode(interpolation)
    theirs = getattr(v2, name)(interpolation=mode, fill=fill)
    ours = getattr(auto_augment, name)(interpolation=mode, fill=fill)
    table = ours.magnitudes(size)
    images = batch(31, size)
    for row, (operation, (magnitudes_of, signed)) in enumerate(theirs._AUGMENTATION_SPACE.items()):
        magnitudes = magnitudes_of(31, *size)
        levels = 255.0 if operation == "Solarize" else 1.0
        if magnitudes is not None:
            assert table[row].tolist() == [levels * magnitude for magnitude in magnitudes.tolist()]
        for sign in (1, -1) if signed else (1,):
            parameters = {"choices": np.full((31, 2), row), "amounts": np.stack([sign * table[row], table[0]], axis=1)}
            parameters["choices"][:, 1] = 0
            got = ours.apply(images, parameters)
            for image, amount, result in zip(images, parameters["amounts"][:, 0], got, strict=True):
                magnitude = float(amount) / levels
                expected = theirs._apply_image_or_video_transform(image, operation, magnitude, mode, theirs._fill)
                assert torch.equal(result, expected), (operation, amount)


def test_colour_jitter_in_the_drawn_order() -> None:
    ours, images = color.ColorJitter(0.4, (0.5, 1.5), 0.7, 0.2), batch()
    parameters = ours.draw(draws(range(N)), (33, 41))
    steps = (functional.adjust_brightness, functional.adjust_contrast)
    steps += (functional.adjust_saturation, functional.adjust_hue)
    for image, amounts, order, got in zip(
        images, parameters["amounts"], parameters["order"], ours.apply(images, parameters), strict=True
    ):
        for step in order:
            image = steps[step](image, float(amounts[step]))
        assert torch.equal(got, image)
    assert len({tuple(order) for order in parameters["order"].tolist()}) > 10


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue"])
def test_jitter_ranges_are_torchvisions(name: str) -> None:
    for value in (0, 0.3, (0.1, 0.4), None):
        assert getattr(color.ColorJitter(**{name: value}), name) == getattr(v2.ColorJitter(**{name: value}), name)
    with pytest.raises(OptionError, match=f"{name}=-1"):
        color.ColorJitter(**{name: -1})


def test_erased_boxes_are_distributed_as_torchvisions() -> None:
    ours = erasing.RandomErasing(p=0.6)
    count, size = 4000, (64, 48)
    boxes = ours.draw(draws(range(count)), size)["boxes"][:, 0]
    theirs = v2.RandomErasing(p=1.0)
    torch.manual_seed(0)
    params = [theirs.make_params([torch.zeros(3, *size)]) for _ in range(2000)]
    wide, tall = (boxes[:, 2] - boxes[:, 0]), (boxes[:, 3] - boxes[:, 1])
    erased = wide > 0
    assert abs(erased.mean() - 0.6) < 0.03
    for ours_, key in ((wide[erased], "w"), (tall[erased], "h"), (boxes[erased, 0], "j"), (boxes[erased, 1], "i")):
        reference = np.array([p[key] for p in params])
        assert abs(ours_.mean() - reference.mean()) < 4 * reference.std() / 40
    assert boxes.min() >= 0
    assert (boxes[:, 2] < 48 + 1).all()
    assert (boxes[:, 3] < 64 + 1).all()


def test_a_single_image_by_hand() -> None:
    from PIL import Image

    image = Image.fromarray(batch(1)[0].permute(1, 2, 0).numpy())
    for augmentation in AUGMENTATIONS.values():
        torch.manual_seed(5)
        assert augmentation(image).size == image.size
        torch.manual_seed(5)
        assert augmentation(batch(1)[0]).dtype is torch.uint8


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(OptionError, match="magnitude=31"):
        auto_augment.RandAugment(magnitude=31)
    with pytest.raises(OptionError, match="kernel_size=4"):
        color.GaussianBlur(4)
    with pytest.raises(OptionError, match="sigma=0"):
        color.GaussianBlur(3, 0)
    with pytest.raises(OptionError, match="value='grey'"):
        erasing.RandomErasing(value="grey")
    with pytest.raises(OptionError, match="interpolation='cubic'"):
        auto_augment.TrivialAugmentWide(interpolation="cubic")
    with pytest.raises(OptionError, match=r"p=1\.5"):
        color.RandomGrayscale(1.5)


# ---- in a loader


STEPS: dict[str, list[Any]] = {
    "before float": [v2.RandAugment(), v2.ColorJitter(0.3, 0.3, 0.3, 0.1), v2.RandomGrayscale(0.3)],
    "trivial": [v1.TrivialAugmentWide(), v1.GaussianBlur(3)],
    "own names": [auto_augment.RandAugment(), color.GaussianBlur(3)],
}


def transform(name: str) -> Any:
    crop = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip()]
    normalise = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return v1.Compose([*crop, *STEPS[name], v1.ToTensor(), normalise, v1.RandomErasing(0.5)])


def augmented(folder: Path, name: str, backend: str = "pil", **options: Any) -> list[Any]:
    options = {"batch_size": 6, "shuffle": True, "seed": 5, "augment_on": "device", **options}
    return list(DataLoader(ImageFolder(folder, transform(name)), backend=backend, **options))


@pytest.mark.parametrize("name", STEPS)
def test_augmented_batches_do_not_depend_on_backend_or_threads(folder: Path, name: str) -> None:
    expected = augmented(folder, name)
    assert expected[0][0].dtype is torch.float32
    for backend, workers in (("native", 0), ("native", 2), ("turbojpeg", 3), ("pil", 1)):
        for ours, others in zip(augmented(folder, name, backend, num_workers=workers), expected, strict=True):
            assert torch.equal(ours[0], others[0])


def test_a_samples_augmentation_follows_it_into_other_batches(folder: Path) -> None:
    images: dict[int, torch.Tensor] = {}
    dataset = ImageFolder(folder, transform("before float"))
    for size, memory_format in ((39, torch.contiguous_format), (4, torch.channels_last)):
        batches = [list(range(39))[at : at + size] for at in range(0, 39, size)]
        options: dict[str, Any] = {"seed": 5, "augment_on": "device", "memory_format": memory_format}
        loader = DataLoader(dataset, batch_sampler=batches, **options)
        for indices, (pixels, _) in zip(batches, loader, strict=True):
            assert pixels.is_contiguous(memory_format=memory_format)
            for index, image in zip(indices, pixels, strict=True):
                assert torch.equal(images.setdefault(index, image), image)


def test_dali_augments_as_the_others_do(folder: Path) -> None:
    for ours, pils in zip(augmented(folder, "own names", "dali"), augmented(folder, "own names"), strict=True):
        assert torch.equal(ours[1], pils[1])
        assert (ours[0] - pils[0]).abs().mean() < 0.2  # equalising magnifies DALI's differences


def test_a_loader_knows_what_is_done_on_batches(folder: Path) -> None:
    dataset = ImageFolder(folder, transform("before float"))
    loader = DataLoader(dataset, augment_on="device")
    assert on_batches(loader) == ["RandAugment", "ColorJitter", "RandomGrayscale", "RandomErasing"]
    assert per_sample(loader) == []
    loader = DataLoader(dataset)
    views = ("RandomResizedCrop", "RandomHorizontalFlip")
    assert pipelines_plan(loader).fused[:5] == (*views, "RandAugment", "ColorJitter", "RandomGrayscale")
    assert on_batches(loader) == ["RandomErasing"]
    assert per_sample(loader) == []


@pytest.mark.parametrize(
    ("steps", "left", "why"),
    [
        ([v1.RandAugment(), v1.Resize(20), v1.ToTensor()], False, "everything is fused"),
        ([v1.RandAugment()], True, "the transform does not end with a tensor"),
        ([v1.ToTensor(), v1.ColorJitter(0.4)], True, "the image is already float"),
        ([v1.RandAugment(interpolation=v1.InterpolationMode.BICUBIC), v1.ToTensor()], True, "nearest, bilinear"),
    ],
)
@pytest.mark.filterwarnings("ignore:augment_on='device' has no effect")
def test_what_cannot_be_done_on_batches_is_done_image_by_image(
    folder: Path, steps: list[Any], left: bool, why: str
) -> None:
    """That is by the dataset's own code where a step is `left` to be called."""
    dataset = ImageFolder(folder, v1.Compose([v1.RandomResizedCrop(32), *steps]))
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": list, "seed": 2}
    loader = DataLoader(dataset, augment_on="device", **options)
    assert left or (on_batches(loader), per_sample(loader)) == ([], [])
    assert loader._route().is_image_pipeline is not left
    assert why in loader._route().reason
    made = []
    for each in (loader, DataLoader(dataset, **options)):
        torch.manual_seed(1)
        made.append(list(each))
    for ours, expected in zip(*made, strict=True):
        for (image, label), (image_, label_) in zip(ours, expected, strict=True):
            assert np.array_equal(np.asarray(image), np.asarray(image_))
            assert label == label_


def test_skipped_samples_take_their_draws_with_them(folder: Path, tmp_path: Path) -> None:
    spoiled = changed_copy(folder, tmp_path / "copy", {"apple/02.jpg": b"no image"})
    whole = augmented(folder, "own names", shuffle=False)[0][0]
    rest = augmented(spoiled, "own names", shuffle=False, on_error="skip")[0][0]
    assert torch.equal(rest, whole[[0, 1, 3, 4, 5]])


# ---- mixing


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_mixing_equals_torchvisions_with_each_samples_share(name: str) -> None:
    images = batch().to(torch.float32) / 255
    labels = torch.arange(N) % 7
    ours = getattr(mix, name)(num_classes=7, alpha=0.4, seed=3)
    mixed, soft = ours(images, labels, step=11)
    assert soft.shape == (N, 7)
    assert torch.allclose(soft.sum(1), torch.ones(N))
    for n in range(N):
        if labels[n] == labels[n - 1]:
            continue
        own = soft[n, labels[n]].item()
        changed = (mixed[n] != images[n]).any(0)
        if name == "MixUp":
            expected = functional_mixup(images[n], images[n - 1], own)
            assert torch.allclose(mixed[n], expected, atol=1e-5)
        else:
            assert torch.equal(mixed[n][:, changed], images[n - 1][:, changed])
            assert abs(changed.float().mean().item() - (1 - own)) < 0.02
    again, _ = ours(images, labels, step=11)
    assert torch.equal(again, mixed)
    assert not torch.equal(ours(images, labels, step=12)[0], mixed)


def functional_mixup(image: torch.Tensor, other: torch.Tensor, share: float) -> torch.Tensor:
    """torchvision's MixUp of a pair, with its share fixed."""
    theirs = v2.MixUp(num_classes=2)
    pair = torch.stack((other, image))
    result = theirs.transform(pair, {"lam": share, "labels": torch.tensor([0, 1]), "batch_size": 2})
    return result[1]


def test_shares_have_the_beta_distribution() -> None:
    labels = torch.arange(2000) % 2
    for alpha, spread in ((0.2, 0.423), (1.0, 0.289)):
        _, soft = mix.MixUp(num_classes=2, alpha=alpha, seed=1)(torch.zeros(2000, 1, 1, 1), labels, step=0)
        assert abs(soft[:, 0].mean().item() - 0.5) < 0.03
        assert abs(soft[:, 0].std().item() - spread) < 0.02


def test_wrong_mixes_are_named() -> None:
    with pytest.raises(OptionError, match="alpha=0"):
        mix.MixUp(num_classes=3, alpha=0)
    with pytest.raises(OptionError, match="num_classes=0"):
        mix.CutMix(num_classes=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("step", [v1.GaussianBlur(5), v1.RandomEqualize(1.0), v1.RandomAutocontrast(1.0)], ids=str)
def test_augmented_batches_keep_their_memory_format(folder: Path, layout: torch.memory_format, step: Any) -> None:
    transform = v1.Compose([v1.RandomResizedCrop(24), step, v1.ToTensor()])
    loader = DataLoader(ImageFolder(folder, transform), 6, augment_on="device", memory_format=layout)
    images, _ = next(iter(loader))
    assert images.is_contiguous(memory_format=layout)
