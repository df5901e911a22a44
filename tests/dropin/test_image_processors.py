"""transformers' image processors: their tensors stay encoded, with the values that they give elsewhere."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import images
import pytest
import torch
import torch.utils.data
from PIL import Image
from torchvision.datasets import ImageFolder

from fastdata import DataLoader
from fastdata.lazy.opening import opening_encoded
from fastdata.lazy.pending_tensor import is_pending
from fastdata.loaders.resample import has_tensors_bits

transformers: Any = pytest.importorskip("transformers")

PROCESSORS = {
    "both sides": lambda: transformers.ViTImageProcessor(size={"height": 20, "width": 24}),
    "the shorter side and a crop": lambda: transformers.CLIPImageProcessor(
        size={"shortest_edge": 24}, crop_size={"height": 20, "width": 20}
    ),
    "a crop that reaches out": lambda: transformers.CLIPImageProcessor(
        size={"shortest_edge": 16}, crop_size={"height": 20, "width": 20}
    ),
    "no arithmetic": lambda: transformers.ViTImageProcessor(do_rescale=False, do_normalize=False),
    "only scaled": lambda: transformers.ViTImageProcessor(do_normalize=False),
    "as they are": lambda: transformers.ViTImageProcessor(do_resize=False),
}


class Processed(ImageFolder):
    """Processes each image by itself, as many datasets do."""

    def __init__(self, folder: Path, processor: Any) -> None:
        super().__init__(folder)
        self.processor = processor

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        made = self.processor(Image.open(path).convert("RGB"), return_tensors="pt")
        return made["pixel_values"].squeeze(0), label


class AtOnce(Processed):
    """Processes the images of a batch together, as datasets' with_transform does."""

    def __getitems__(self, indices: list[int]) -> Any:
        images = [Image.open(self.samples[index][0]).convert("RGB") for index in indices]
        made = self.processor(images, return_tensors="pt")["pixel_values"]
        return [(made[row], self.samples[index][1]) for row, index in enumerate(indices)]


@pytest.mark.parametrize("kind", [Processed, AtOnce])
@pytest.mark.parametrize("name", PROCESSORS)
def test_values_are_the_processors(folder: Path, name: str, kind: Any) -> None:
    dataset = kind(folder, PROCESSORS[name]())
    size = 1 if name == "as they are" else 8  # of which images differ in size
    ours, torchs = (cls(dataset, size, num_workers=1) for cls in (DataLoader, torch.utils.data.DataLoader))
    for (mine, _), (other, _) in zip(ours, torchs, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", ["both sides", "the shorter side and a crop", "only scaled"])
def test_nothing_is_decoded_for_them(name: str) -> None:
    if not has_tensors_bits():
        pytest.skip("the core does not resize tensors as the installed torch does")
    with opening_encoded():
        opened = [Image.open(io.BytesIO(images.jpeg(60, 40, seed=seed))).convert("RGB") for seed in (1, 2)]
        made = PROCESSORS[name]()(opened, return_tensors="pt")["pixel_values"]
    assert is_pending(made)


def test_images_on_another_device_are_the_processors_own() -> None:
    image = Image.new("RGB", (30, 20))
    with opening_encoded():
        made = PROCESSORS["both sides"]()(image, return_tensors="pt", device="meta")
    assert made["pixel_values"].device.type == "meta"
