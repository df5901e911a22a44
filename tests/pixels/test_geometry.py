"""Flips before crops and resizes, padding, and resizes of tensors: torchvision's pixels."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from core_alone import decode, reference, view_of, windows
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg
from PIL import Image
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fastdata import DataLoader
from fastdata.loaders import pillow
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_view
from fastdata.views.philox import Key
from fastdata.views.resampling import Interpolation, Outside, Padding

BICUBIC, NEAREST = v1.InterpolationMode.BICUBIC, v1.InterpolationMode.NEAREST
ALWAYS = {
    "flip, resize, crop": [v1.RandomHorizontalFlip(1), v1.Resize(40, BICUBIC), v1.CenterCrop(33)],
    "flips, resize": [v1.RandomVerticalFlip(1), v1.RandomHorizontalFlip(1), v1.Resize((40, 31))],
    "flips around": [v1.RandomHorizontalFlip(1), v1.CenterCrop((37, 50)), v1.RandomHorizontalFlip(1)],
    "flip, crop, resize": [v1.RandomHorizontalFlip(1), v1.RandomResizedCrop((20, 30), (1, 1), (9, 9))],
    "pad": [v1.Resize((30, 40)), v1.Pad((1, 2, 3, 40), fill=(7, 80, 200))],
    "pad of v2": [v2.Resize((30, 40)), v2.Pad([1, 2, 3, 40], fill={Image.Image: 9, "others": 9})],
    "pad, flip, crop": [v1.Resize((30, 40)), v1.Pad(9), v1.RandomVerticalFlip(1), v1.CenterCrop((41, 12))],
    "edge": [v1.Resize((30, 40)), v1.Pad((5, 9), padding_mode="edge")],
    "reflect": [v1.Resize((30, 40)), v1.Pad(9, padding_mode="reflect"), v1.RandomHorizontalFlip(1)],
    "reflect more than once": [v1.Resize((3, 4)), v1.Pad(20, padding_mode="reflect")],
    "symmetric more than once": [v1.Resize((3, 1)), v1.Pad(20, padding_mode="symmetric")],
    "symmetric": [v1.Resize((30, 40)), v1.Pad(9, padding_mode="symmetric"), v1.RandomCrop((48, 58))],
    "nearest-exact": [v1.Resize((30, 40), v1.InterpolationMode.NEAREST_EXACT)],
    "a module": [torch.nn.Sequential(v1.Resize((30, 40)), v1.RandomHorizontalFlip(1))],
    "RGB": [v2.RGB(), v2.Resize((30, 40))],
}
TENSORS = {
    "resize": [v2.Resize(37), v2.CenterCrop(33)],
    "bicubic": [v2.Resize((61, 20), BICUBIC), v2.RandomHorizontalFlip(1)],
    "flip first": [v2.RandomVerticalFlip(1), v2.Resize((200, 220)), v2.ToDtype(torch.uint8, scale=True)],
    "larger": [v2.Resize((300, 20)), v2.Pad(3, fill=7)],
    "the same size": [v2.Resize((300, 300)), v2.RandomCrop(300)],
}


def check(folder: Path, steps: Any, options: Any = None) -> None:
    """Every image as torch's DataLoader has it."""
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    ours, theirs = DataLoader(dataset, 1, **(options or {})), torch.utils.data.DataLoader(dataset, 1)
    assert compile_transform(dataset.transform).reason == "everything is fused"
    for batch, wanted in zip(ours, theirs, strict=True):
        assert torch.equal(batch[0], wanted[0])
        assert type(batch[0]) is type(wanted[0])


@pytest.mark.parametrize("backend", ["native", "pil", "opencv"])
@pytest.mark.parametrize("name", ALWAYS)
def test_steps_without_chance(folder: Path, name: str, backend: str) -> None:
    check(folder, [*ALWAYS[name], v1.PILToTensor()], {"backend": backend})


@pytest.mark.parametrize("backend", ["native", "pil"])
@pytest.mark.parametrize("first", [v2.ToImage(), v2.PILToTensor()], ids=["ToImage", "PILToTensor"])
@pytest.mark.parametrize("name", TENSORS)
def test_tensors_without_chance(folder: Path, name: str, first: Any, backend: str) -> None:
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.25))]
    check(folder, [first, *TENSORS[name], *last], {"backend": backend})


def test_random_windows_of_tensors_are_resized_as_torchvision_does() -> None:
    step = v2.Compose([v2.PILToTensor(), v2.RandomResizedCrop(32, interpolation=BICUBIC), v2.RandomHorizontalFlip()])
    plan = compile_transform(step).plan
    assert plan is not None
    data = jpeg(133, 97, seed=4)
    tensor = v2.functional.pil_to_tensor(pillow.open_rgb(data))
    for index in range(60):
        view = draw_view(plan.ops, (133, 97), index, 0, key=Key(seed=1, epoch=0))
        left, top, right, bottom = view.window_px
        wanted = v2.functional.resized_crop(tensor, top, left, bottom - top, right - left, [32, 32], BICUBIC)
        wanted = v2.functional.horizontal_flip(wanted) if view.flip_horizontal else wanted
        assert np.array_equal(decode(data, view), wanted.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("step", [v1.Resize((40, 40)), v2.Resize(40, antialias=False), v2.Resize(40, NEAREST)])
def test_resizes_of_tensors_that_torch_does_otherwise(step: Any) -> None:
    result = compile_transform(v1.Compose([v1.PILToTensor(), step]))
    assert "it resizes a tensor" in result.reason


TOLD = """
from torchvision.transforms import v2
from fastdata.transforms.compile import compile_transform
print(compile_transform(v2.Compose([v2.PILToTensor(), v2.Resize((9, 9))])).reason)
"""


def test_where_torch_resizes_tensors_otherwise_it_does_so_itself() -> None:
    """Without AVX2 torchvision resizes floats and rounds them."""
    known = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, env=known, check=True)
    capability = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"],
        capture_output=True,
        text=True,
        env=known,
        check=True,
    ).stdout.strip()
    if capability == "DEFAULT" and platform.machine() == "x86_64":
        assert "differs from the installed torch" in done.stdout
    else:  # a processor or build in which the variable changes nothing
        assert done.stdout == "everything is fused\n"


OUTSIDES = st.one_of(
    st.sampled_from([Outside(padding) for padding in Padding]),
    st.builds(Outside, st.just(Padding.CONSTANT), *[st.integers(0, 255)] * 3),
)


@settings(max_examples=300, deadline=None)
@given(
    data=st.data(),
    interpolation=st.sampled_from(list(Interpolation)),
    outside=OUTSIDES,
    flips=st.tuples(*[st.booleans()] * 4),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_any_view_is_that_of_pillow(data: Any, interpolation: Any, outside: Any, flips: Any, size: Any) -> None:
    left, top = data.draw(st.integers(-50, size[0] - 1)), data.draw(st.integers(-50, size[1] - 1))
    view = view_of(
        data.draw(windows(90, 70)),
        size,
        crop_px=(left, top, left + data.draw(st.integers(1, 150)), top + data.draw(st.integers(1, 150))),
        flip_horizontal=flips[0],
        flip_vertical=flips[1],
        window_flips=flips[2:],
        interpolation=interpolation,
        outside=outside,
    )
    encoded = jpeg(90, 70, seed=2)
    assert np.array_equal(decode(encoded, view), reference(encoded, view))


@pytest.mark.parametrize("step", ["reflect", "symmetric", "edge", (3, 200, 90)])
def test_padded_crops_are_crops_of_what_torchvision_pads(step: Any) -> None:
    options = {"fill": step} if isinstance(step, tuple) else {"padding_mode": step}
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (13, 11, 3), dtype=np.uint8))
    padded = np.asarray(v1.functional.pad(image, 4, **options))
    known = {padded[y : y + 9, x : x + 10].tobytes(): (y, x) for y in range(13) for x in range(10)}
    transform = v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop((9, 10), padding=4, **options)])
    plan = compile_transform(transform).plan
    assert plan is not None
    found = set()
    for index in range(900):
        view = draw_view(plan.ops, image.size, index, 0, key=Key(seed=3, epoch=0))
        seen = np.asarray(pillow.apply_view(image, view))
        found.add(known[seen[:, ::-1].tobytes() if view.flip_horizontal else seen.tobytes()])
    assert len(found) == len(known)


@pytest.mark.parametrize("step", [v1.CenterCrop(900), v1.Pad(3), v1.RandomCrop(30, padding=3)])
def test_padding_of_normalised_images_is_torchvisions(folder: Path, step: Any) -> None:
    steps = [v1.Resize((40, 40)), v1.ToTensor(), v1.Normalize((0.4,) * 3, (0.2,) * 3), step]
    assert "it pads a float image" in compile_transform(v1.Compose(steps)).reason


@pytest.mark.parametrize("backend", ["native", "pil", "opencv", "turbojpeg", "dali"])
def test_where_nothing_of_the_image_is_seen(tmp_path: Path, backend: str) -> None:
    """A random crop behind a padding one may show black alone."""
    (tmp_path / "a").mkdir()
    for number in range(40):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(jpeg(20, 24, seed=number))
    dataset = ImageFolder(str(tmp_path), v1.Compose([v1.CenterCrop(64), v1.RandomCrop(8), v1.PILToTensor()]))
    (images, _) = next(iter(DataLoader(dataset, 40, backend=backend, seed=1)))
    is_black = ~images.flatten(1).bool().any(1)
    assert is_black.any()
    assert not is_black.all()


def test_negative_padding_is_torchvisions(folder: Path) -> None:
    dataset = ImageFolder(str(folder), v1.Compose([v1.Resize((40, 40)), v1.Pad(-2), v1.PILToTensor()]))
    assert "cuts off instead of adding" in compile_transform(dataset.transform).reason
    ours, theirs = (next(iter(cls(dataset, 4))) for cls in (DataLoader, torch.utils.data.DataLoader))
    assert torch.equal(ours[0], theirs[0])
