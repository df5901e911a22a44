"""Augmentations inside DALI's pipeline: within each kind's tolerance; draws, order and resume of all backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision.transforms as v1
from folders import changed_copy
from places import ROOT
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, native
from fastdata.augment.effects import FILTERS, nothing, put, rotation
from fastdata.loaders.dali_effects import MEAN_TOLERANCE, DaliEffects
from fastdata.tables import EffectKind, EffectTable, Format

pytestmark = pytest.mark.backend("dali")

SIZE = 90, 120
NUMBERS: dict[EffectKind, list[tuple[float, ...]]] = {
    EffectKind.BRIGHTNESS: [(0.4,), (1.0,), (1.7,)],
    EffectKind.CONTRAST: [(0.4,), (1.0,), (1.7,)],
    EffectKind.SATURATION: [(0.0,), (0.4,), (1.7,)],
    EffectKind.HUE: [(12, 0.05), (230, -0.1), (102, 0.4)],
    EffectKind.SHARPNESS: [(0.2,), (1.0,), (1.8,)],
    EffectKind.GREY: [()],
    EffectKind.INVERT: [()],
    EffectKind.POSTERIZE: [(8,), (4,), (1,)],
    EffectKind.SOLARIZE: [(0,), (99.5,), (256,)],
    EffectKind.AUTOCONTRAST: [()],
    EffectKind.EQUALIZE: [()],
    EffectKind.BLUR: [(5, 5, 0.3, 0.3), (9, 9, 1.8, 1.8)],
    EffectKind.AFFINE: [rotation(20.0, SIZE)[0] or (), (1, 0, 7.5, 0, 1, -3)],
}


def effects_of(kind: EffectKind, numbers: tuple[float, ...], interpolation: str, count: int) -> EffectTable:
    table = nothing(count, 1)
    put(table, np.arange(count), 0, kind, *numbers)
    table["filter"] = FILTERS[interpolation]
    return table


def by_dali(pixels: list[np.ndarray], table: EffectTable) -> list[np.ndarray]:
    from nvidia.dali import pipeline_def, types
    from nvidia.dali.fn import external_source

    asked = DaliEffects.like(table)
    assert asked is not None
    assert asked.does(table).all()
    columns = asked.columns(table, len(pixels))

    @pipeline_def(batch_size=len(pixels), num_threads=2, device_id=None, enable_conditionals=True)
    def define() -> Any:
        dtypes = [types.UINT8, *(types.FLOAT if numbers else types.INT32 for _, numbers in asked.inputs)]
        ndim = [3, *(int(numbers) for _, numbers in asked.inputs)]
        node, *inputs = external_source(
            source=lambda: (pixels, *columns),
            num_outputs=len(ndim),
            dtype=dtypes,
            ndim=ndim,
            layout=["HWC"] + [""] * len(columns),
        )
        return asked.define(node, inputs)

    pipeline = define()
    pipeline.build()
    (out,) = pipeline.run()
    return [np.asarray(out.at(row)).copy() for row in range(len(pixels))]


def test_every_kind_has_numbers_here() -> None:
    assert NUMBERS.keys() == MEAN_TOLERANCE.keys()


def test_the_guide_has_the_tolerances() -> None:
    names, _, values, *_ = (ROOT / "docs" / "guide.md").read_text().split("<!-- dali effects -->\n")[1].splitlines()
    told = zip(names.strip("| ").split(" | "), map(float, values.strip("| ").split(" | ")), strict=True)
    assert dict(told) == {kind.name.lower(): tolerance for kind, tolerance in MEAN_TOLERANCE.items()}


@pytest.mark.parametrize("kind", list(MEAN_TOLERANCE))
def test_each_kind_is_pillows_within_its_tolerance(kind: EffectKind) -> None:
    pixels = [images.picture(SIZE[1], SIZE[0], seed=seed) for seed in range(6)]
    pixels.append(np.full((*SIZE, 3), 77, np.uint8))  # nothing to stretch, no hue
    for interpolation in ("nearest", "bilinear") if kind == EffectKind.AFFINE else ("nearest",):
        for numbers in NUMBERS[kind]:
            table = effects_of(kind, numbers, interpolation, len(pixels))
            differences = []
            for row, found in enumerate(by_dali(pixels, table)):
                expected = pixels[row].copy()
                native.load().convert(expected, expected.ctypes.data, Format(), table[row : row + 1])
                differences.append(np.abs(expected.astype(int) - found.astype(int)).mean())
            assert np.mean(differences) <= MEAN_TOLERANCE[kind], (numbers, interpolation)


def test_what_dali_lacks_is_not_done() -> None:
    known = effects_of(EffectKind.AFFINE, (1, 0, 3, 0, 1, 0), "nearest", 4)
    asked = DaliEffects.like(known)
    assert asked is not None
    bicubic = effects_of(EffectKind.AFFINE, (1, 0, 3, 0, 1, 0), "bicubic", 1)
    filled = effects_of(EffectKind.AFFINE, (1, 0, 3, 0, 1, 0, 0, 0, 9, 9, 9), "nearest", 1)
    unseen = effects_of(EffectKind.GREY, (), "nearest", 1)
    oblong = effects_of(EffectKind.BLUR, (3, 5, 1.0, 1.0), "nearest", 1)
    lacking = [effects_of(kind, (1,), "nearest", 1) for kind in (EffectKind.BOX_BLUR, EffectKind.PERSPECTIVE)]
    others = np.concatenate([bicubic, filled, unseen, oblong, *lacking])
    assert asked.does(np.concatenate([known, others])).tolist() == [True] * 4 + [False] * 6
    assert DaliEffects.like(others) is None


STEPS = {
    "RandAugment": v1.RandAugment(),
    "TrivialAugment": v1.TrivialAugmentWide(),
    "ColorJitter": v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "all or none": v1.RandomApply([v1.ColorJitter(0.4, 0.4), v1.GaussianBlur(5), v1.RandomGrayscale(1.0)], 0.5),
    "bilinear": v1.RandAugment(3, 12, interpolation=v1.InterpolationMode.BILINEAR),
    "partly beside": v1.TrivialAugmentWide(fill=128),  # what is moved
}


def batches(folder: Path, step: Any, backend: str, where: str = "device", **more: Any) -> list[Any]:
    transform = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), step, v1.PILToTensor()])
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, **more}
    return list(DataLoader(ImageFolder(folder, transform), backend=backend, augment_on=where, **options))


@pytest.mark.parametrize("name", list(STEPS))
def test_batches_are_those_of_the_host(folder: Path, name: str) -> None:
    ours = batches(folder, STEPS[name], "dali")
    pairs = list(zip(ours, batches(folder, STEPS[name], "native", "host"), strict=True))
    assert all(torch.equal(own[1], others[1]) for own, others in pairs)
    differences = torch.cat([(own[0].float() - others[0].float()).abs().mean(dim=(1, 2, 3)) for own, others in pairs])
    assert differences.median() < 2
    assert (differences > 12).float().mean() < 0.1  # those that were equalised, or turned by the nearest pixel


def test_batches_do_not_depend_on_threads_and_go_on_after_a_resume(folder: Path) -> None:
    whole = batches(folder, STEPS["RandAugment"], "dali")
    for threads in (0, 3):
        for own, others in zip(batches(folder, STEPS["RandAugment"], "dali", num_workers=threads), whole, strict=True):
            assert torch.equal(own[0], others[0])
    transform = v1.Compose([v1.RandomResizedCrop(48), v1.RandomHorizontalFlip(), v1.RandAugment(), v1.PILToTensor()])
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2, "backend": "dali"}
    first = DataLoader(ImageFolder(folder, transform), augment_on="device", **options)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    second = DataLoader(ImageFolder(folder, transform), augment_on="device", **options)
    second.load_state_dict(first.state_dict())
    rest = list(second)
    assert len(rest) == len(whole) - 3
    assert all(torch.equal(own[0], others[0]) for own, others in zip(rest, whole[3:], strict=True))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_images_decoded_beside_the_pipeline_are_augmented_too(folder: Path, tmp_path: Path, on_error: str) -> None:
    """Damaged ones, their batch that DALI gives up on, substitutes, and a PNG."""
    noise = bytearray(images.saved(300, 200, quality=95))
    noise[500:900] = b"\xff\xc4\x00\x10" * 100
    changes = {"apple/05.jpg": noise, "cup/04.jpg": b"no image", "bear/03.jpg": images.saved(90, 80, kind="PNG")}
    spoiled = changed_copy(folder, tmp_path / "copy", changes)
    step = v1.RandomInvert(1.0)  # a difference that nothing else makes
    ours = batches(spoiled, step, "dali", on_error=on_error, shuffle=False)
    others = batches(spoiled, step, "native", "host", on_error=on_error, shuffle=False)
    for (own, labels), (expected, expected_labels) in zip(ours, others, strict=True):
        assert torch.equal(labels, expected_labels)
        assert (own.float() - expected.float()).abs().mean(dim=(1, 2, 3)).max() < 1


def test_floats_erased_rectangles_and_labels_come_behind(folder: Path) -> None:
    steps = [v1.RandomResizedCrop(48), v1.ColorJitter(0.3), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)]
    transform = v1.Compose([*steps, v1.RandomErasing(1.0)])
    options: dict[str, Any] = {"batch_size": 5, "seed": 3, "augment_on": "device"}
    loaders = (DataLoader(ImageFolder(folder, transform), backend=name, **options) for name in ("dali", "native"))
    for (own, labels), (expected, expected_labels) in zip(*loaders, strict=True):
        assert torch.equal(labels, expected_labels)
        assert torch.equal(own == 0, expected == 0) or ((own == 0) != (expected == 0)).float().mean() < 0.02
        assert (own - expected).abs().mean() < 2 / 255 / 0.25


def test_explain_says_who_does_it(folder: Path) -> None:
    def told(step: Any, **more: Any) -> str:
        transform = v1.Compose([v1.RandomResizedCrop(48), step, v1.PILToTensor()])
        return DataLoader(ImageFolder(folder, transform), 4, augment_on="device", **more).explain()

    assert "RandAugment (by dali's operators)" in told(v1.RandAugment(), backend="dali")
    assert "by dali's operators" not in told(v1.RandAugment(), backend="native")
    assert "by dali's operators" not in told(v1.RandomPerspective(p=1.0), backend="dali")  # which DALI lacks


def test_a_step_without_effects_has_no_input() -> None:
    """DALI warns of an input that is not used."""
    table = nothing(3, 2)
    put(table, np.arange(3), 1, EffectKind.GREY)
    asked = DaliEffects.like(table)
    assert asked is not None
    assert asked.inputs == [(1, False)]
