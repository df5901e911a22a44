"""Real photographs and difficult files of other projects, where they are at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from photographs import PHOTOS, photographs
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.loaders import create_backend, mean_tolerance, pillow
from fastdata.loaders.fallback import inspect
from fastdata.loaders.rows import decode_each
from fastdata.transforms.compile import compile_transform
from fastdata.views.draw import draw_views
from fastdata.views.philox import Key
from fastdata.views.view import views_of

BACKENDS = ["native", "turbojpeg", "opencv"]


def check_file(path: Path, backend: Any, reference: Any) -> None:
    """Same pixels as Pillow's in five random windows, or refused as Pillow refuses."""
    data = path.read_bytes()
    try:
        image = inspect(data)
    except OSError:
        with pytest.raises(OSError, match=r".+"):
            pillow.open_rgb(data)
        return
    plan = compile_transform(v1.Compose([v1.RandomResizedCrop(96), v1.RandomHorizontalFlip()])).plan
    assert plan is not None
    sizes = np.array([(image.width, image.height)] * 5)
    for view in views_of(draw_views(plan.ops, sizes, np.arange(5), key=Key(seed=1, epoch=0))):
        out = np.zeros((2, *view.size, 3), np.uint8)
        ours, theirs = (
            decode_each(*each) for each in ((backend, [image], [view], out[:1]), (reference, [image], [view], out[1:]))
        )
        assert (ours is None) == (theirs is None), f"{path.name}: {ours!r} but Pillow: {theirs!r}"
        difference = np.abs(out[0].astype(int) - out[1]).mean()
        assert difference <= mean_tolerance(backend.name), path.name


@pytest.mark.photos("imagenet-sample")
@pytest.mark.parametrize("name", BACKENDS)
def test_photographs_equal_pillow(name: str) -> None:
    backend, reference = create_backend(name), create_backend("pil")
    for path in photographs("imagenet-sample")[::4]:
        check_file(path, backend, reference)


@pytest.mark.photos("odd")
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("path", photographs("odd") or [PHOTOS / "odd"], ids=lambda path: path.name)
def test_difficult_files_of_other_projects_equal_pillow(path: Path, name: str) -> None:
    check_file(path, create_backend(name), create_backend("pil"))


@pytest.mark.parametrize("name", ["pil", *BACKENDS])
def test_odd_files_through_the_loader_equal_torchs(odd_folder: Path, name: str) -> None:
    transform = v1.Compose([v1.Resize((60, 50)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)])
    dataset = ImageFolder(odd_folder, transform)
    assert len(dataset) == 20
    pairs = zip(DataLoader(dataset, 6, backend=name), torch.utils.data.DataLoader(dataset, 6), strict=True)
    assert all(torch.equal(ours[0], theirs[0]) for ours, theirs in pairs)
