"""Random views: known answers of the generator, torchvision's distribution, independence of the batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from places import GOLDEN
from same_distribution import largest_gap
from same_views import check_that_both_draw_alike

from fastdata import OptionError, transforms
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key, philox4x32, portable_exp
from fastdata.views.plan import RandomCrop
from fastdata.views.view import view_of, views_of


def draw(transform: Any, sizes: Any, indices: Any = None, *, seed: int = 0, epoch: int = 0) -> Any:
    plan = compile_transform(transform).plan
    sizes = np.array(sizes, np.int64).reshape(-1, 2)
    indices = np.arange(len(sizes)) if indices is None else np.array(indices, np.int64)
    return draw_views(plan.ops, sizes, indices, key=Key(seed=seed, epoch=epoch))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: Any, key: Any, answer: Any) -> None:
    assert tuple(int(word) for word in philox4x32(counter, key)) == answer


def test_views_have_not_changed_since_they_were_frozen() -> None:
    golden = json.loads((GOLDEN / "views.json").read_text())
    transform = v1.Compose([v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor()])
    views = draw(transform, golden["sizes"], golden["indices"], seed=golden["seed"], epoch=golden["epoch"])
    assert views.window_px.tolist() == golden["windows"]
    assert (views.flips[:, 0] != 0).tolist() == golden["flips"]


DRAWN = {
    "crop, flip": [v1.RandomResizedCrop((200, 224)), v1.RandomHorizontalFlip()],
    "rarely fits": [v1.RandomResizedCrop(32, scale=(0.5, 3), ratio=(0.01, 9)), v1.RandomVerticalFlip(0.3)],
    "validation": [v1.Resize(256), v1.CenterCrop(224)],
    "longest": [v1.Resize(256, max_size=300), v1.CenterCrop((225, 301))],
    "padded, cropped": [v1.CenterCrop((300, 301)), v1.RandomCrop((100, 300)), v1.RandomHorizontalFlip(1.0)],
    "crop, resize, crop": [v1.CenterCrop((51, 90)), v1.Resize((20, 30)), v1.RandomCrop((7, 9))],
    "padded by RandomCrop": [v1.RandomCrop((100, 130), padding=[3, 40, 0, 99]), v1.RandomHorizontalFlip()],
    "padded as needed": [v1.Resize(64, max_size=300), v1.RandomCrop((90, 70), padding=(5, 2), pad_if_needed=True)],
    "flips first": [
        v1.RandomHorizontalFlip(),
        v1.RandomVerticalFlip(),
        v1.RandomResizedCrop(64),
        v1.CenterCrop((50, 70)),
    ],
    "flips between": [v1.RandomHorizontalFlip(), v1.RandomCrop((9, 30), padding=4), v1.RandomHorizontalFlip(0.3)],
    "reflected": [v1.RandomHorizontalFlip(), v1.RandomCrop((300, 20), padding=7, padding_mode="reflect")],
    "coloured": [v1.Pad((3, 4, 5, 6), fill=(1, 2, 3)), v1.RandomCrop((100, 130), pad_if_needed=True, fill=(1, 2, 3))],
    "tensors": [v2.ToImage(), v2.RandomResizedCrop(64), v2.CenterCrop(80)],
    "nothing": [],
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_core_draws_what_numpy_draws(name: str) -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([rng.integers(1, 1500, (3000, 2)), rng.integers(1, 5, (100, 2)), [[5000, 3], [3, 5000]]])
    columns = rng.integers(0, 1 << 40, len(sizes)), rng.integers(0, 4, len(sizes))
    ops = compile_transform(v1.Compose(DRAWN[name] if name == "tensors" else [*DRAWN[name], v1.ToTensor()])).plan.ops
    if name in ("padded by RandomCrop", "flips between", "reflected"):
        sizes = np.maximum(sizes, 300)  # smaller images have no view
    check_that_both_draw_alike(ops, sizes, *columns)


def test_exp_is_the_libraries_but_for_the_last_bit() -> None:
    x = np.random.default_rng(0).uniform(-20, 20, 100_000)
    np.testing.assert_allclose(portable_exp(x), np.exp(x), rtol=4e-16)


def test_a_view_depends_on_nothing_but_its_key() -> None:
    transform = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.RandomVerticalFlip()])
    sizes = np.random.default_rng(0).integers(20, 500, (50, 2))
    whole = views_of(draw(transform, sizes, seed=3, epoch=2))
    for index in (0, 17, 49):
        assert views_of(draw(transform, sizes[index], [index], seed=3, epoch=2)) == [whole[index]]
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        assert views_of(draw(transform, sizes, **other)) != whole


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (640, 90), (60, 700)])
def test_random_resized_crop_has_torchvisions_distribution(size: tuple[int, int]) -> None:
    """Kolmogorov-Smirnov on left, top, width and height of 4000 windows each."""
    count = 4000
    transform = v1.RandomResizedCrop(224)
    ours = draw(transform, [size] * count).window_px
    image = Image.new("RGB", size)
    rows = [transform.get_params(image, transform.scale, transform.ratio) for _ in range(count)]
    theirs = np.array([(left, top, left + width, top + height) for top, left, height, width in rows])
    for ours_column, theirs_column in zip(_features(ours), _features(theirs), strict=True):
        limit = 1.95 * np.sqrt(2 / count)  # 0.1 % chance for one feature
        assert largest_gap(ours_column, theirs_column) < limit


def _features(windows: np.ndarray) -> list[np.ndarray]:
    width, height = windows[:, 2] - windows[:, 0], windows[:, 3] - windows[:, 1]
    return [windows[:, 0], windows[:, 1], width, height, width * height, width / height]


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_flips_happen_as_often_as_asked(p: float) -> None:
    views = draw(v1.Compose([v1.RandomHorizontalFlip(p), v1.RandomVerticalFlip(p)]), [(10, 10)] * 20000)
    horizontal, vertical, *_ = views.flips.T
    assert abs(horizontal.mean() - p) < 0.015
    both = (horizontal & vertical).mean()
    assert abs(both - p * p) < 0.015


def test_random_crop_reaches_every_place_equally() -> None:
    views = draw(v1.RandomCrop((5, 7)), [(10, 8)] * 16000)
    places, counts = np.unique(views.window_px[:, :2], axis=0, return_counts=True)
    assert len(places) == 4 * 4
    assert abs(counts - 1000).max() < 160


PADDED = {
    "one number": (32, {"padding": 4}),
    "two": (40, {"padding": [5, 7]}),
    "four": ((30, 44), {"padding": [1, 2, 9, 0]}),
    "as needed": ((50, 90), {"pad_if_needed": True}),
    "both": ((41, 60), {"padding": 3, "pad_if_needed": True}),
}


@pytest.mark.parametrize("module", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", PADDED)
def test_a_padded_crop_is_one_of_the_padded_image_and_every_one_equally_often(name: str, module: Any) -> None:
    from fastdata.loaders import pillow

    size, options = PADDED[name]
    image = Image.fromarray(np.random.default_rng(0).integers(1, 256, (36, 40, 3), dtype=np.uint8))
    padded = np.asarray(_padded_by_torchvision(image, size, **options))
    views = views_of(draw(module.RandomCrop(size, **options), [image.size] * 4000))
    height, width = (size, size) if isinstance(size, int) else size
    rows, columns = padded.shape[0] - height + 1, padded.shape[1] - width + 1
    found = np.zeros((rows, columns), np.int64)
    places = {padded[y : y + height, x : x + width].tobytes(): (y, x) for y in range(rows) for x in range(columns)}
    for view in views:
        seen = np.asarray(pillow.apply_view(image, view))
        assert seen.shape == (height, width, 3)
        found[places[seen.tobytes()]] += 1
    expected = len(views) / found.size
    assert ((found - expected) ** 2 / expected).sum() < found.size + 5 * np.sqrt(2 * found.size)  # chi-squared


def _padded_by_torchvision(image: Image.Image, size: Any, padding: Any = None, pad_if_needed: bool = False) -> Any:
    """What RandomCrop crops from.  Source: torchvision.transforms.RandomCrop.forward."""
    if padding is not None:
        image = v1.functional.pad(image, padding)
    if pad_if_needed:
        missing = max(0, size[1] - image.width), max(0, size[0] - image.height)
        image = v1.functional.pad(image, list(missing))
    return image


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (v1.RandomCrop(32, padding=4, fill=-7), "not one colour"),
        (v1.RandomCrop(50, padding=4, pad_if_needed=True, padding_mode="reflect"), "it pads twice"),
        (v2.RandomCrop(32, padding=4, fill={"others": 1, Image.Image: 2}), "not one colour"),
        (v1.RandomCrop(32, padding=32), "outside of the image"),
        (v1.RandomCrop((32, 10), padding=[0, 0, 10, 0]), "outside of the image"),
    ],
)
def test_crops_that_pad_otherwise_are_torchvisions(step: Any, reason: str) -> None:
    result = compile_transform(v1.Compose([v1.Resize((40, 40)), step, v1.ToTensor()]))
    assert result.plan.ops == compile_transform(v1.Resize((40, 40))).plan.ops
    assert reason in result.reason


def test_crops_that_pad_with_black_are_fused() -> None:
    steps = [v1.RandomCrop(32, padding=4, fill=(0, 0, 0)), v2.RandomCrop(32, padding=4, fill={"others": 0})]
    for step in (*steps, v2.RandomCrop(32, 4, fill=0), transforms.RandomCrop(32, padding=4)):
        assert compile_transform(step).plan.ops == (RandomCrop(size=(32, 32), padding=(4, 4, 4, 4)),)
    with pytest.raises(OptionError, match="outside of the image"):
        transforms.RandomCrop(32, padding=40)


@pytest.mark.parametrize(
    "steps",
    [
        [v1.RandomCrop(32, padding=4), v1.Resize((20, 20))],
        [v1.CenterCrop(20), v1.RandomCrop(20, padding=2)],
        [v1.RandomCrop(20), v1.RandomCrop(30, pad_if_needed=True)],
        [v1.CenterCrop(20), v1.CenterCrop(30)],
        [v1.RandomCrop(20), v1.Pad(3)],
        [v1.Pad(3), v1.Resize((20, 20))],
        [v1.Pad(3, fill=1), v1.Pad(3)],
        [v1.Pad(20), v1.RandomCrop(20)],
        [v1.Pad(2, padding_mode="edge"), v1.CenterCrop(900)],
    ],
    ids=str,
)
def test_what_would_show_pixels_beyond_a_crop_is_not_fused(steps: list[Any]) -> None:
    assert len(compile_transform(v1.Compose([*steps, v1.ToTensor()])).plan.ops) == 1


@settings(max_examples=200, deadline=None)
@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    index=st.integers(0, 2**32 - 1),
    seed=st.integers(-(2**63), 2**64 - 1),
    epoch=st.integers(0, 10**6),
)
def test_windows_lie_inside_the_image(width: int, height: int, index: int, seed: int, epoch: int) -> None:
    views = draw(v1.RandomResizedCrop(16), (width, height), [index], seed=seed, epoch=epoch)
    left, top, right, bottom = views.window_px[0].tolist()
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


GEOMETRIES = {
    "resize shorter": v1.Compose([v1.Resize(40), v1.CenterCrop(33)]),
    "resize longest": v1.Compose([v1.Resize(40, max_size=60), v1.CenterCrop((20, 31))]),
    "center only": v1.CenterCrop((51, 40)),
    "center padded": v1.CenterCrop(200),
    "center of center": v1.Compose([v1.CenterCrop(90), v1.CenterCrop((31, 64))]),
    "resize only": v1.Resize((17, 29)),
}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(GEOMETRIES)), width=st.integers(3, 160), height=st.integers(3, 160))
def test_fixed_geometry_equals_torchvision_for_any_size(name: str, width: int, height: int) -> None:
    from fastdata.loaders import pillow

    noise = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    view = view_of(draw(GEOMETRIES[name], image.size), 0)
    expected = GEOMETRIES[name](image)
    assert np.array_equal(np.asarray(pillow.apply_view(image, view)), np.asarray(expected))


def test_tail_draws_are_the_same_for_any_number_of_threads(folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    from fastdata import DataLoader

    jitter = v1.Compose([v1.RandomResizedCrop(24), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandAugment(), v1.ToTensor()])
    erasing = v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), v1.RandomErasing(0.9, value="random")])
    for transform in (jitter, erasing):
        runs = []
        for workers in (0, 1, 4):
            loader = DataLoader(ImageFolder(folder, transform), 5, num_workers=workers, seed=6, backend="pil")
            runs.append(torch.cat([images for images, _ in loader]))
        assert torch.equal(runs[0], runs[1])
        assert torch.equal(runs[0], runs[2])
        loader.set_epoch(1)
        assert not torch.equal(runs[0], torch.cat([images for images, _ in loader]))
