"""Images whose decoding gains nothing are opened by the library that the dataset names, and values stay the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torch.utils.data
import torchvision.transforms.v2 as v2
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, read_image

from fastdata import DataLoader

SAMPLES = 32
BY_PILLOW = [number >= 4 and number != 8 for number in range(SAMPLES)]  # the second batch's first is tried again


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Images of 60 × 40 pixels, then as many of 260 × 240."""
    folder = tmp_path_factory.mktemp("files")
    for number in range(2 * SAMPLES):
        size = (60, 40) if number < SAMPLES else (260, 240)
        (folder / f"{number:02}.jpg").write_bytes(images.jpeg(*size, seed=number))
    return sorted(map(str, folder.iterdir()))


class Work(Dataset[Any]):
    """Says of each image if Pillow opened it, and gives what a function makes of it."""

    def __init__(self, files: list[str], work: Callable[[Image.Image], Any]) -> None:
        self.files, self.work = files, work

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        return type(image) is JpegImageFile, self.work(image.convert("RGB"))


class Pngs(Work):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        return type(image) is PngImageFile, self.work(image.convert("RGB"))


def as_array(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).float()


def rotated(image: Image.Image) -> torch.Tensor:
    return v2.functional.pil_to_tensor(image.resize((50, 30)).rotate(10))


def cropped(image: Image.Image) -> torch.Tensor:
    return v2.functional.to_dtype(v2.functional.pil_to_tensor(image.crop((0, 0, 20, 20))), torch.float32)


def opened_by_pillow(loader: Any, epochs: int = 1) -> list[bool]:
    """Who opened each image in the last epoch; all values are compared with torch's."""
    for _ in range(epochs):
        found = list(loader)
    expected = list(torch.utils.data.DataLoader(loader.dataset, loader.batch_size))
    for (_, mine), (_, theirs) in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    return [bool(each) for by_pillow, _ in found for each in by_pillow]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("work", [as_array, rotated])
def test_small_images_that_are_used_one_by_one_are_left_to_pillow(files: list[str], work: Any, workers: int) -> None:
    loader = DataLoader(Work(files[:SAMPLES], work), 8, num_workers=workers)
    assert opened_by_pillow(loader) == BY_PILLOW
    assert loader.verdict().kind == "little gain"
    assert loader.verdict().reason.startswith("Pillow decodes its images, since your code uses each by itself")
    assert loader.verdict().change is None
    assert opened_by_pillow(loader) == [number > 0 for number in range(SAMPLES)]  # the next epoch begins so


@pytest.mark.parametrize("side", [60, 70])
@pytest.mark.parametrize("work", [as_array, rotated])
def test_only_very_small_pngs_are_left_to_pillow(work: Any, side: int, tmp_path: Path) -> None:
    """The core reads PNGs much faster than Pillow; so it does if Pillow is given the pixels, but for somewhat more."""
    for number in range(SAMPLES):
        (tmp_path / f"{number:02}.png").write_bytes(images.saved(side, side, kind="PNG", seed=number))
    dataset = Pngs(sorted(map(str, tmp_path.iterdir())), work)
    gains = side == 70 and work is as_array
    assert opened_by_pillow(DataLoader(dataset, 8)) == ([False] * SAMPLES if gains else BY_PILLOW)


@pytest.mark.parametrize("kind", ["small", "large"])
def test_images_that_gain_stay_encoded(files: list[str], kind: str) -> None:
    some, work = (files[:SAMPLES], cropped) if kind == "small" else (files[SAMPLES:], as_array)
    assert opened_by_pillow(DataLoader(Work(some, work), 8), epochs=2) == [False] * SAMPLES


def test_they_stay_encoded_again_as_soon_as_one_gains(files: list[str]) -> None:
    both = torch.utils.data.ConcatDataset([Work(files[:SAMPLES], as_array), Work(files[:SAMPLES], cropped)])
    found = [bool(by_pillow) for batch in DataLoader(both, 8, collate_fn=list) for by_pillow, _ in batch]
    assert found == BY_PILLOW + [False] * SAMPLES


class WithMask(Work):
    """A cropped photograph, and its mask in another mode."""

    def __getitem__(self, index: int) -> Any:
        mask = np.array(Image.open(self.files[index]).convert("L"))[:20, :20]
        by_pillow, image = super().__getitem__(index)
        return by_pillow, image, mask


def test_masks_beside_images_do_not_count_for_them(files: list[str]) -> None:
    """A mask is converted and decoded by itself, which is one image, not two."""
    for some in (files[:SAMPLES], files[SAMPLES:]):
        found = list(DataLoader(WithMask(some, cropped), 8))
        assert not any(by_pillow.any() for by_pillow, _, _ in found)


class ByTorchvision(Dataset[Any]):
    def __init__(self, files: list[str], work: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.files, self.work, self.encoded = files, work, []

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = read_image(self.files[index], ImageReadMode.RGB)
        self.encoded.append("undecoded" in vars(image))
        return self.work(image)


@pytest.mark.filterwarnings("ignore:The image decoding")
def test_whole_tensors_are_left_to_torchvision(files: list[str]) -> None:
    dataset = ByTorchvision(files[SAMPLES:], lambda image: image.sum())
    loader = DataLoader(dataset, 8)
    found = torch.cat(list(loader))
    assert dataset.encoded == [not later for later in BY_PILLOW]
    assert torch.equal(found, torch.stack([dataset[index] for index in range(SAMPLES)]))
    assert loader.verdict().reason.startswith("torchvision.io decodes its images, since your code uses each by itself")
    dataset = ByTorchvision(files[SAMPLES:], lambda image: v2.functional.resize(image, [20, 20]))
    list(DataLoader(dataset, 8))
    assert dataset.encoded == [True] * SAMPLES


class Segmentation(Dataset[Any]):
    """Photographs, cropped, and masks in their own mode; says which of the two Pillow opened."""

    def __init__(self, photographs: list[str], masks: list[Path]) -> None:
        self.photographs, self.masks = photographs, masks

    def __len__(self) -> int:
        return len(self.photographs)

    def __getitem__(self, index: int) -> Any:
        image, mask = Image.open(self.photographs[index]), Image.open(self.masks[index])
        opened = type(image) is JpegImageFile, type(mask) is PngImageFile
        return cropped(image.convert("RGB")), torch.from_numpy(np.array(mask)), *opened


def test_masks_in_their_own_mode_are_left_to_pillow_and_photographs_are_not(files: list[str], tmp_path: Path) -> None:
    for number in range(SAMPLES):
        (tmp_path / f"{number:02}.png").write_bytes(images.saved(60, 40, mode="L", kind="PNG", seed=number))
    dataset = Segmentation(files[SAMPLES:], sorted(tmp_path.iterdir()))
    found = [torch.cat(column) for column in zip(*DataLoader(dataset, 4), strict=True)]
    theirs = [torch.cat(column) for column in zip(*torch.utils.data.DataLoader(dataset, 4), strict=True)]
    assert torch.equal(found[0], theirs[0])
    assert torch.equal(found[1], theirs[1])
    assert not found[2].any()
    assert found[3].tolist() == [number > 4 and number != 16 for number in range(SAMPLES)]  # the batches 0, 1 and 4


def test_grey_pngs_in_rgb_are_decoded_with_their_batch(tmp_path: Path) -> None:
    """As radiographs are."""
    for number in range(8):
        (tmp_path / f"{number:02}.png").write_bytes(images.saved(230, 210, mode="L", kind="PNG", seed=number))
    loader = DataLoader(Work(sorted(map(str, tmp_path.iterdir())), cropped), 4)
    assert opened_by_pillow(loader) == [False] * 8
    assert loader.verdict().kind == "accelerated"


def test_one_image_that_gains_does_not_make_the_others_unusual(files: list[str]) -> None:
    dataset = Work([*files[: SAMPLES // 2], files[SAMPLES], *files[SAMPLES // 2 : SAMPLES]], as_array)
    loader = DataLoader(dataset, 8, collate_fn=list)
    list(loader)
    assert "unusual" not in str(loader.verdict())


class Together(Work):
    """Makes the samples of a batch by one call, in which every image stays encoded."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class InGrey(Together):
    """The same of images in another mode; notes how often samples were made by one call."""

    def __init__(self, files: list[str]) -> None:
        super().__init__(files, lambda image: as_array(image.convert("L")))
        self.calls = 0

    def __getitem__(self, index: int) -> Any:
        return False, as_array(Image.open(self.files[index]).convert("L"))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self.calls += 1
        return super().__getitems__(indices)


def test_samples_that_are_made_together_stay_so_in_later_epochs(files: list[str]) -> None:
    dataset = InGrey(files[:SAMPLES])
    loader = DataLoader(dataset, 4)
    for epoch in range(1, 4):
        assert len(list(loader)) == SAMPLES // 4
        assert dataset.calls == epoch * SAMPLES // 4


def kept(samples: list[Any]) -> Any:
    return torch.stack([as_array(image) for _, image in samples])


@pytest.mark.parametrize("how", ["samples are made together", "the collate function uses them"])
def test_what_stays_encoded_is_not_said_to_be_decoded_by_pillow(files: list[str], how: str) -> None:
    if how == "samples are made together":
        loader = DataLoader(Together(files[:SAMPLES], as_array), 8)
        assert opened_by_pillow(loader, epochs=2) == [False] * SAMPLES
    else:
        loader = DataLoader(Work(files[:SAMPLES], lambda image: image), 8, collate_fn=kept)
        list(loader)
    assert loader.verdict().reason.startswith("images are decoded by the native core")
