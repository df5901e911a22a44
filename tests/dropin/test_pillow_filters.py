"""Blurs and hues of Pillow's images are done by the native core while samples are made, and are Pillow's."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it

from fastdata import DataLoader, ImageFolder
from fastdata.augment.color import ColorJitter
from fastdata.lazy.opening import opening_encoded

PILLOWS = Image.Image.filter, ImageFilter.BuiltinFilter.filter


class TwiceAsWide(ImageFilter.GaussianBlur):
    """A filter of one's own."""

    def filter(self, image: Any) -> Any:
        return image.gaussian_blur((2 * self.radius, 2 * self.radius))


def blurred(image: Image.Image, radius: float = 2.0) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))


FILTERS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "by default": lambda image: image.filter(ImageFilter.GaussianBlur()),
    "a little": lambda image: image.filter(ImageFilter.GaussianBlur(0.1)),
    "by a fraction": lambda image: image.filter(ImageFilter.GaussianBlur(1.37)),
    "wider than the image": lambda image: image.filter(ImageFilter.GaussianBlur(99.5)),
    "not at all": lambda image: image.filter(ImageFilter.GaussianBlur(0)),
    "across": lambda image: image.filter(ImageFilter.GaussianBlur((3, 0.5))),
    "by a class": lambda image: image.filter(ImageFilter.GaussianBlur),  # type: ignore[arg-type]
    "own filter": lambda image: image.filter(TwiceAsWide(1.5)),
    "boxes": lambda image: image.filter(ImageFilter.BoxBlur(2)),
    "smoothed": lambda image: image.filter(ImageFilter.SMOOTH),
    "smoothed by an object": lambda image: image.filter(ImageFilter.SMOOTH()),
    "smoothed more": lambda image: image.filter(ImageFilter.SMOOTH_MORE),
    "sharpened": lambda image: ImageEnhance.Sharpness(image).enhance(1.7),
    "by torchvision": lambda image: F.adjust_sharpness(image, 0.3),
    "hue": lambda image: F.adjust_hue(image, 0.21),
    "hue backwards": lambda image: F.adjust_hue(image, -0.5),
    "no hue": lambda image: F.adjust_hue(image, 0.0),
    "grey": lambda image: image.convert("L").filter(ImageFilter.GaussianBlur(2)),
    "with transparency": lambda image: image.convert("RGBA").filter(ImageFilter.GaussianBlur(2)),
    "a small part": lambda image: image.crop((3, 3, 20, 30)).filter(ImageFilter.GaussianBlur(2)),
    "twice": lambda image: blurred(blurred(image), 0.7),
    "of a part, smaller": lambda image: blurred(image.crop((9, 5, 120, 90)).resize((80, 70))),
    "then a hue": lambda image: F.adjust_hue(blurred(image), 0.21),
    "then mirrored": lambda image: blurred(image).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "then upside down, again": lambda image: blurred(blurred(image).transpose(Image.Transpose.FLIP_TOP_BOTTOM), 3),
    "then turned": lambda image: blurred(image).transpose(Image.Transpose.ROTATE_90),
    "then cropped": lambda image: blurred(image).crop((3, 4, 99, 80)),
    "then resized": lambda image: blurred(image).resize((70, 70), Image.Resampling.BILINEAR),
    "then resized to its size": lambda image: blurred(image).resize(image.size),
    "then with a border": lambda image: ImageOps.expand(blurred(image), 7),
    "then grey": lambda image: blurred(image).convert("L"),
    "then copied": lambda image: blurred(image).copy(),
    "then converted": lambda image: blurred(image).convert("RGB"),
    "then pickled": lambda image: pickle.loads(pickle.dumps(blurred(image))),
    "one row": lambda image: image.resize((5000, 1)).filter(ImageFilter.GaussianBlur(2)),
}


@pytest.mark.parametrize("name", FILTERS)
def test_they_are_pillows(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(images.saved(131, 97, comment=b"a dog"))
    theirs = FILTERS[name](Image.open(tmp_path / "a.jpg"))
    with opening_encoded():
        opened = Image.open(tmp_path / "a.jpg")
        ours = FILTERS[name](opened)
        plain = FILTERS[name](Image.open(tmp_path / "a.jpg").copy().rotate(0))
    for image in (ours, plain):
        assert (image.mode, image.size, image.info) == (theirs.mode, theirs.size, theirs.info)
        assert np.array_equal(np.asarray(image), np.asarray(theirs))
    assert ours.__class__ is Image.Image
    assert np.array_equal(np.asarray(opened), np.asarray(Image.open(tmp_path / "a.jpg")))  # is not changed itself


@pytest.mark.parametrize("step", [lambda image: F.adjust_hue(image, 0.6), lambda image: image.filter(3)])
def test_what_pillow_and_torchvision_refuse_is_refused(step: Callable[[Any], Any]) -> None:
    image = Image.new("RGB", (90, 90))
    with pytest.raises((ValueError, TypeError)) as theirs:
        step(image)
    with opening_encoded(), pytest.raises(theirs.type) as ours:
        step(image)
    assert str(ours.value) == str(theirs.value)


def test_other_threads_have_pillows_and_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(ImageFilter.GaussianBlur, "filter", lambda self, image: called.append(image) or image)
    with opening_encoded():
        Image.new("RGB", (90, 90)).filter(ImageFilter.GaussianBlur(2))
        assert not called
        other = threading.Thread(target=lambda: Image.new("RGB", (90, 90)).filter(ImageFilter.GaussianBlur(2)))
        other.start()
        other.join()
        assert len(called) == 1
    ImageFilter.GaussianBlur(2).filter(Image.new("RGB", (90, 90)).im)
    assert len(called) == 2
    assert (Image.Image.filter, ImageFilter.BuiltinFilter.filter) == PILLOWS


class Own:
    """A step in the middle."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(1))


def jittered() -> v1.Compose:
    steps = [v1.Resize((40, 50)), Own(), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(0.3), v1.ToTensor()]
    return v1.Compose(steps)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_follows_an_own_step_does_not_depend_on_the_batch(folder: Path, workers: int) -> None:
    order = [5, 2, 9, 2, 2, 30, 11, 5]
    batches = {
        size: list(DataLoader(ImageFolder(folder, jittered()), size, sampler=order, num_workers=workers, seed=3))
        for size in (1, 3, 8)
    }
    pixels = {size: torch.cat([batch[0] for batch in made]) for size, made in batches.items()}
    assert torch.equal(pixels[1], pixels[3])
    assert torch.equal(pixels[1], pixels[8])
    assert not torch.equal(pixels[1][1], pixels[1][3])  # a sample that comes again is drawn again


def test_effects_behind_an_own_step_are_drawn_once_for_a_batch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first image, since the next may have another size."""
    drawn = []
    original = ColorJitter.draw
    monkeypatch.setattr(
        ColorJitter,
        "draw",
        lambda self, draws, size: drawn.append(len(draws.indices)) or original(self, draws, size),
    )
    list(DataLoader(ImageFolder(folder, jittered()), 8, num_workers=0, drop_last=True))
    assert [count for count in drawn if count < 100] == [1, 8, 8, 8, 8]  # others are trials
