"""What stands behind a first step of the user's is fused as a run, with the values that torch's loader gives."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from own_tables import Table
from PIL import Image, ImageFilter, ImageOps

from fastdata import DataLoader
from fastdata.dataloader import routes
from fastdata.lazy import encoded_image
from fastdata.lazy import find as search
from fastdata.lazy.find import find_transforms

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class Blur:
    """A step that draws, and gives back a Pillow image."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2))) if random.random() < 0.5 else image


class Jitters:
    """A step of the user's that holds a known one."""

    def __init__(self) -> None:
        self.jitter = v1.Resize((40, 50))

    def __call__(self, image: Image.Image) -> Image.Image:
        return self.jitter(image).rotate(5)


FIRST = {
    "a class": Blur(),
    "a function": lambda image: image.rotate(10),
    "one that holds a known step": Jitters(),
    "one that is applied at times": v1.RandomApply([Blur()], 0.5),
    "one of another library's": v1.ElasticTransform(),
}
BEHIND = {
    "resized": [v1.Resize((30, 30)), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "numbers for all channels": [v1.Resize((30, 30)), v1.ToTensor(), v1.Normalize(0.5, 0.5)],
    "another step behind": [v1.CenterCrop(30), Blur(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("first", FIRST)
def test_values_are_torchs(table: Path, first: str, behind: str, workers: int) -> None:
    dataset = Table(table, v1.Compose([FIRST[first], *BEHIND[behind]]))
    made = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        random.seed(1)
        torch.manual_seed(1)
        loader = cls(dataset, 4, num_workers=workers)
        made.append([*loader, *loader])
    for (theirs, labels), (ours, own_labels) in zip(*made, strict=True):
        assert torch.equal(theirs, ours)
        assert torch.equal(labels, own_labels)
    known = [step for step in BEHIND[behind] if not isinstance(step, Blur)]
    if isinstance(FIRST[first], Jitters):
        assert len(loader._route().fused) > 1
        return
    (plan,) = loader._route().fused.values()
    assert list(plan.behind) == known
    assert f"transform: {len(known)} of {len(BEHIND[behind]) + 1} steps fused, per sample: " in str(loader.verdict())


@pytest.mark.parametrize("draws", ["fast", "torch"])
def test_random_steps_behind_are_drawn_as_asked(table: Path, draws: Any) -> None:
    steps = [v1.Lambda(lambda image: image.rotate(10)), v1.RandomCrop(30), v1.ColorJitter(0.4), v1.ToTensor()]
    dataset = Table(table, v1.Compose(steps))
    options: dict[str, Any] = {"draws": draws} if draws == "torch" else {"seed": 3}
    made = []
    for size in (4, 4, 3):
        torch.manual_seed(1)
        made.append(torch.cat([images for images, _ in DataLoader(dataset, size, **options)]))
    assert torch.equal(made[0], made[1])
    torch.manual_seed(1)
    theirs = torch.cat([images for images, _ in torch.utils.data.DataLoader(dataset, 4)])
    assert torch.equal(theirs, made[0]) == (draws == "torch")
    assert torch.equal(made[0], made[2])  # by (seed, epoch, sample), or the same numbers one after the other


def test_known_steps_inside_of_the_users_are_fused_one_by_one(table: Path) -> None:
    loader = DataLoader(Table(table, v1.Compose([Jitters(), v1.ToTensor()])), 4)
    assert {place: plan.fused for place, plan in loader._route().fused.items()} == {
        "transform.transforms[0].jitter": ("Resize",),
        "transform.transforms[1]": ("ToTensor",),
    }


class Crops:
    """A first step of the user's, which no other object may stand for, and which holds a known one that draws."""

    def __init__(self) -> None:
        self.lock, self.calls = threading.Lock(), 0
        self.crop = v1.RandomCrop(30)

    def __call__(self, image: Image.Image) -> Image.Image:
        with self.lock:
            self.calls += 1
        return self.crop(image.rotate(5))


class Counts(Crops):
    """The same, with nothing inside."""

    def __init__(self) -> None:
        super().__init__()
        del self.crop

    def __call__(self, image: Image.Image) -> Image.Image:
        with self.lock:
            self.calls += 1
        return image.rotate(5)


@pytest.mark.parametrize("first", [Crops, Counts])
def test_the_users_step_stays_itself(table: Path, first: Any) -> None:
    step = first()
    dataset = Table(table, v1.Compose([step, v1.RandomCrop(20), v1.ToTensor()]))
    made = [torch.cat([images for images, _ in DataLoader(dataset, 4, seed=3, num_workers=count)]) for count in (0, 2)]
    assert first is Crops or step.calls == len(dataset)
    assert torch.equal(*made)


def two_views(blur: Any) -> v1.Compose:
    """As in MoCo."""
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    first = [v1.RandomResizedCrop(72, (0.2, 1.0)), jitter, v1.RandomGrayscale(p=0.2), blur]
    return v1.Compose([*first, v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_blur_of_the_users_keeps_images_encoded(table: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Table(table, two_views(v1.RandomApply([Blur()], 0.7)))

    def made(cls: Any, **options: Any) -> torch.Tensor:
        random.seed(1)
        torch.manual_seed(1)
        return torch.cat([images for images, _ in cls(dataset, 4, num_workers=workers, **options)])

    theirs = made(torch.utils.data.DataLoader)
    monkeypatch.setattr(encoded_image, "decode_source", None)  # of a single image, which nobody needs
    assert torch.equal(theirs, made(DataLoader, draws="torch"))
    assert not torch.equal(theirs, made(DataLoader, seed=1))


def test_augmentations_on_both_sides_of_an_own_step_do_not_depend_on_the_batch(table: Path) -> None:
    steps = two_views(lambda image: image.filter(ImageFilter.GaussianBlur(1.5))).transforms
    dataset = Table(table, v1.Compose([*steps[:-2], v1.ColorJitter(0.4), v1.RandomSolarize(99, 0.5), *steps[-2:]]))
    made = [torch.cat([images for images, _ in DataLoader(dataset, size, seed=3)]) for size in (1, 3, 8)]
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_conversions_alone_behind_an_own_step_are_no_gain(table: Path) -> None:
    loader = DataLoader(Table(table, v1.Compose([FIRST["a function"], v1.ToTensor()])), 4, collate_fn=list)
    list(loader)
    assert loader.verdict().kind == "little gain"


def test_a_step_that_is_exchanged_later_is_obeyed(table: Path) -> None:
    dataset = Table(table, v1.Compose([lambda image: image.rotate(10), v1.Resize((20, 20)), v1.ToTensor()]))
    loader = DataLoader(dataset, 4)
    list(loader)
    dataset.transform.transforms[1] = v1.CenterCrop(24)  # type: ignore[attr-defined]
    for (ours, _), (theirs, _) in zip(loader, torch.utils.data.DataLoader(dataset, 4), strict=True):
        assert torch.equal(ours, theirs)


def test_transforms_are_searched_for_once_in_an_epoch(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker process has what its parent has found; one that is spawned searches by itself."""
    searched = []
    for module in (routes, search):
        monkeypatch.setattr(
            module, "find_transforms", lambda *a, **n: searched.append(a[0]) or find_transforms(*a, **n)
        )
    dataset = Table(table, v1.Compose(BEHIND["resized"]))
    loader = DataLoader(dataset, 4)
    assert searched == []
    list(loader)
    assert searched == [dataset]
    find = loader._samples(loader._route()).find_transforms
    searched.clear()
    assert find(dataset).plans.keys() == {"transform"}
    assert searched == []
    assert pickle.loads(pickle.dumps(find))(dataset).plans.keys() == {"transform"}
    assert searched == [dataset]


KEPT = {
    "saturation": v1.ColorJitter(saturation=0.5),
    "brightness": v1.ColorJitter(brightness=0.5),
    "hue": v1.ColorJitter(hue=0.2),
    "sharpness": v1.RandomAdjustSharpness(2, 1.0),
    "posterize": v1.RandomPosterize(3, 1.0),
    "autocontrast, never": v1.RandomAutocontrast(0.0),
    "equalize": v1.RandomEqualize(1.0),
    "grey at times": v1.RandomGrayscale(0.5),
    "turned": v1.RandomRotation(20),
    "blurred": v1.GaussianBlur(3),
    "at times": v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.5),
    "policy": v1.RandAugment(),
    "padded": v1.Compose([v1.Pad(3), v1.RandomSolarize(99, 1.0)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_metadata_is_kept_where_torchvision_keeps_it(tmp_path: Path, name: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned
    rng = np.random.default_rng(0)
    for number in range(8):
        image = Image.fromarray(rng.integers(0, 256, (90, 120, 3), dtype=np.uint8))
        image.save(tmp_path / f"{number}.jpg", exif=exif, comment=b"a dog")
    (tmp_path / "labels.csv").write_text("\n".join(f"{number}.jpg,{number}" for number in range(8)))

    def seen(image: Image.Image) -> Any:
        return sorted(map(str, image.info)), v1.ToTensor()(image)

    dataset = Table(tmp_path, v1.Compose([v1.CenterCrop(80), KEPT[name], ImageOps.exif_transpose, seen]))
    made = []
    options: dict[Any, Any] = {torch.utils.data.DataLoader: {}, DataLoader: {"draws": "torch"}}
    for cls, own in options.items():
        torch.manual_seed(1)
        random.seed(1)
        made.append([sample[0] for batch in cls(dataset, 4, collate_fn=list, **own) for sample in batch])
    for (theirs, pixels), (ours, own_pixels) in zip(*made, strict=True):
        assert ours == theirs
        assert torch.equal(own_pixels, pixels)
