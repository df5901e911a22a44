"""timm's transforms, as its `create_transform` puts them together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image
from same_views import check_that_both_draw_alike
from taken_over import decodes_natively, pipelines_plan
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.loaders import pillow
from fastdata.pipeline.collate import stacks_images
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_view, draw_views
from fastdata.views.philox import Key
from fastdata.views.resampling import Interpolation

timm_data = pytest.importorskip("timm.data")
timm_transforms = pytest.importorskip("timm.data.transforms")

SEEDED = {"batch_size": 6, "seed": 5}


@pytest.mark.parametrize("options", [{}, {"use_prefetcher": True}, {"crop_pct": 1.0, "interpolation": "bicubic"}])
def test_evaluation_is_decoded_whole(folder: Path, options: dict[str, Any]) -> None:
    dataset = ImageFolder(str(folder), timm_data.create_transform(48, **options))
    ours, theirs = DataLoader(dataset, 6), torch.utils.data.DataLoader(dataset, 6)
    assert ours._route().is_image_pipeline
    assert ours.verdict().kind == "accelerated"
    for batch, wanted in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, batch, wanted))
        assert batch[0].dtype is wanted[0].dtype


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_random_crops_are_torchvisions(folder: Path, interpolation: str) -> None:
    """The same distribution in timm, so the same views for a seed."""
    theirs = timm_data.create_transform(40, is_training=True, color_jitter=None, interpolation=interpolation)
    kind = transforms.InterpolationMode(interpolation)
    crop = [transforms.RandomResizedCrop(40, interpolation=kind), transforms.RandomHorizontalFlip()]
    normalise = transforms.Normalize(timm_data.IMAGENET_DEFAULT_MEAN, timm_data.IMAGENET_DEFAULT_STD)
    known = transforms.Compose([*crop, transforms.ToTensor(), normalise])
    loaders = [DataLoader(ImageFolder(str(folder), each), **SEEDED) for each in (theirs, known)]
    assert all(loader._route().is_image_pipeline for loader in loaders)
    assert all(loader.verdict().kind == "accelerated" for loader in loaders)
    for one, other in zip(*loaders, strict=True):
        assert torch.equal(one[0], other[0])


def test_names_that_mean_something_else_in_timm(folder: Path) -> None:
    steps = [transforms.Resize((20, 20)), timm_transforms.ToTensor()]
    dataset = ImageFolder(str(folder), transforms.Compose(steps))
    ours, theirs = next(iter(DataLoader(dataset, 6))), next(iter(torch.utils.data.DataLoader(dataset, 6)))
    assert torch.equal(ours[0], theirs[0])
    assert ours[0].max() > 1
    plan = compile_transform(dataset.transform).plan
    assert plan is not None
    assert not plan.unfused


DRAWN = {
    "filters": [timm_transforms.RandomResizedCropAndInterpolation(64, interpolation="random")],
    "crop or pad": [
        transforms.RandomHorizontalFlip(),
        timm_transforms.ResizeKeepRatio((64, 80), 0.3, "random", 0.5, (0.8, 1.1), True, 0.5),
        timm_transforms.RandomCropOrPad((70, 80), padding_mode="reflect"),
    ],
    "centre": [
        timm_transforms.ResizeKeepRatio(64, 1.0, random_scale_prob=0.3),
        timm_transforms.CenterCropOrPad((70, 20), fill=(9, 9, 200)),
    ],
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_core_draws_what_numpy_draws(name: str) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(8, 1500, (3000, 2))
    result = compile_transform(transforms.Compose([*DRAWN[name], transforms.ToTensor()]))
    assert result.plan is not None
    assert result.reason == "everything is fused"
    check_that_both_draw_alike(result.plan.ops, sizes, rng.integers(0, 1 << 40, 3000), rng.integers(0, 4, 3000))


def test_a_filter_is_drawn_for_each_sample() -> None:
    step = timm_transforms.RandomResizedCropAndInterpolation(32, interpolation="random")
    plan = compile_transform(step).plan
    assert plan is not None
    views = draw_views(plan.ops, np.full((4000, 2), 90), np.arange(4000), key=Key(seed=2, epoch=0))
    filters, counts = np.unique(views.filters, return_counts=True)
    assert filters.tolist() == [Interpolation.BILINEAR.value, Interpolation.BICUBIC.value]
    assert abs(counts[0] - 2000) < 130  # four standard deviations


@pytest.mark.parametrize("mode", ["rkrc", "rkrr"])
def test_resizes_that_keep_the_ratio_are_timms(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's own functions, with what was drawn."""
    step = timm_data.create_transform(48, is_training=True, train_crop_mode=mode, hflip=0, color_jitter=None)
    plan = compile_transform(step).plan
    assert plan is not None
    assert not plan.unfused
    resize, crop = step.transforms[:2]
    for index in range(40):
        image = Image.fromarray(np.random.default_rng(index).integers(0, 256, (40 + index, 75, 3), dtype=np.uint8))
        view = draw_view(plan.ops, image.size, index, 0, key=Key(seed=1, epoch=0))
        monkeypatch.setattr(resize, "get_params", lambda *_, seen=view: seen.resize_px[::-1])
        monkeypatch.setattr(resize, "interpolation", _torchvisions(view.interpolation))
        left, top = (at if side > 48 else min(at, 0) for at, side in zip(view.crop_px, view.resize_px, strict=False))
        monkeypatch.setattr(crop, "get_params", lambda *_, place=(top, left): place, raising=False)
        expected = np.asarray(crop(resize(image)))
        assert np.array_equal(np.asarray(pillow.apply_view(image, view)), expected)


def _torchvisions(interpolation: Interpolation) -> Any:
    return transforms.InterpolationMode[interpolation.name]


class Own(torch.utils.data.Dataset[Any]):
    """As timm's ImageDataset opens images."""

    def __init__(self, folder: Path, transform: Any, target: Any) -> None:
        self.files, self.transform, self.target = sorted(folder.glob("*/*")), transform, target

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB")), self.target(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "target", [int, float, bool, lambda index: np.full(4, index)], ids=["int", "float", "bool", "4"]
)
def test_timms_collate_function_stacks_images_that_are_still_encoded(folder: Path, workers: int, target: Any) -> None:
    transform = timm_data.create_transform(48, use_prefetcher=True)
    dataset = Own(folder, transform, target)
    options = {"batch_size": 7, "collate_fn": timm_data.loader.fast_collate}
    loader, theirs = (
        DataLoader(dataset, num_workers=workers, **options),
        torch.utils.data.DataLoader(dataset, **options),
    )
    for batch, wanted in zip(loader, theirs, strict=True):
        assert type(batch) is type(wanted) is tuple
        assert all(torch.equal(*pair) and pair[0].dtype is pair[1].dtype for pair in zip(batch, wanted, strict=True))
    assert loader.verdict().kind == "accelerated"
    assert decodes_natively(loader)


@pytest.mark.parametrize("steps", [{"use_prefetcher": True}, {}], ids=["uint8", "float"])
def test_timms_collate_function_in_the_image_pipeline(folder: Path, steps: dict[str, Any]) -> None:
    dataset = ImageFolder(str(folder), timm_data.create_transform(48, **steps))
    options = {"batch_size": 7, "collate_fn": timm_data.loader.fast_collate}
    loader, theirs = DataLoader(dataset, num_workers=2, **options), torch.utils.data.DataLoader(dataset, **options)
    plan = pipelines_plan(loader)
    assert plan.batchable
    assert plan.in_one_pass
    assert stacks_images(loader.collate_fn, plan.output_dtype) == bool(steps)  # floats are truncated one by one
    for batch, wanted in zip(loader, theirs, strict=True):
        assert type(batch) is type(wanted) is tuple
        assert all(torch.equal(*pair) for pair in zip(batch, wanted, strict=True))


@pytest.mark.parametrize("own", [False, True])
def test_arrays_behind_augmentations(folder: Path, own: bool) -> None:
    steps = [transforms.Resize((40, 50)), transforms.RandomInvert(1), timm_transforms.ToNumpy()]
    transform = transforms.Compose(steps)
    assert compile_transform(transform).reason == "everything is fused"
    dataset = Own(folder, transform, int) if own else ImageFolder(str(folder), transform)
    options = {"batch_size": 7, "collate_fn": list}
    for batch, wanted in zip(
        DataLoader(dataset, **options), torch.utils.data.DataLoader(dataset, **options), strict=True
    ):
        for (image, target), (expected, label) in zip(batch, wanted, strict=True):
            assert np.array_equal(image, expected)
            assert (image.strides, image.dtype, target) == (expected.strides, expected.dtype, label)


def test_nothing_is_fused_behind_an_array() -> None:
    plan = compile_transform(transforms.Compose([timm_transforms.ToNumpy(), transforms.CenterCrop(3)])).plan
    assert plan is not None
    assert len(plan.unfused) == 1
