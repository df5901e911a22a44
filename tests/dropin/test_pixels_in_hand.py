"""Images that an own step has decoded: their tensors are made in the batch, and are torch's wherever else they go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
import torchvision.transforms as v1
from PIL import Image, ImageDraw, ImageOps
from torchvision.datasets import ImageFolder

from fastdata import DataLoader, check, open_image
from fastdata.lazy import fill
from fastdata.lazy.pending_tensor import is_pending
from fastdata.lazy.sample_context import context

NORMALISE = v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def inverted(image: Image.Image) -> Image.Image:
    """A step of one's own."""
    return ImageOps.invert(image)


def step_then(*tail: Callable[..., Any]) -> v1.Compose:
    return v1.Compose([v1.Resize((102, 98)), inverted, *tail])


TAILS = {
    "ToTensor": [v1.ToTensor()],
    "flip, ToTensor, Normalize": [v1.RandomHorizontalFlip(1.0), v1.ToTensor(), NORMALISE],
    "crop, PILToTensor": [v1.CenterCrop(97), v1.PILToTensor()],
    "an own step on the tensor": [v1.ToTensor(), torch.Tensor.square],
}


def same(ours: Any, torchs: Any) -> bool:
    for mine, other in zip(ours, torchs, strict=True):
        flat = [torch.utils._pytree.tree_leaves(each) for each in (mine, other)]
        if [type(each) for each in flat[0]] != [type(each) for each in flat[1]]:
            return False
        tensors = [[each for each in leaves if isinstance(each, torch.Tensor)] for leaves in flat]
        if not all(one.stride() == two.stride() and torch.equal(one, two) for one, two in zip(*tensors, strict=True)):
            return False
    return True


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("tail", TAILS)
def test_batches_are_torchs(folder: Path, tail: str, workers: int) -> None:
    dataset = ImageFolder(folder, step_then(*TAILS[tail]))
    ours = DataLoader(dataset, 8, num_workers=workers)
    assert same(ours, torch.utils.data.DataLoader(dataset, 8))


class Changed(ImageFolder):
    """Draws on the image when its tensor has been made."""

    def __getitem__(self, index: int) -> Any:
        image = inverted(self.loader(self.samples[index][0]).resize((24, 20)))
        assert self.transform is not None
        tensor = self.transform(image)
        ImageDraw.Draw(image).rectangle((0, 0, 20, 20), fill=(255, 0, 0))
        return tensor, index


class Pairs(ImageFolder):
    """Stacks two views."""

    def __getitem__(self, index: int) -> Any:
        image = self.loader(self.samples[index][0])
        assert self.transform is not None
        return torch.stack([self.transform(image), self.transform(image)]), index


class Used(ImageFolder):
    """Calculates with the tensor, and keeps a part of it."""

    def __getitem__(self, index: int) -> Any:
        tensor, label = super().__getitem__(index)
        return tensor[:, 2:10, 2:10] * 2 + tensor.mean(), label


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "transform"),
    [
        (Changed, v1.Compose([v1.RandomHorizontalFlip(1.0), v1.ToTensor()])),
        (Pairs, step_then(v1.ToTensor())),
        (Used, step_then(v1.ToTensor(), NORMALISE)),
    ],
)
def test_whatever_the_program_does_with_them(folder: Path, kind: Any, transform: Any, workers: int) -> None:
    dataset = kind(folder, transform)
    assert same(DataLoader(dataset, 8, num_workers=workers), torch.utils.data.DataLoader(dataset, 8))


def as_lists(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_those_that_are_not_stacked_are_plain_tensors(folder: Path, workers: int) -> None:
    dataset = ImageFolder(folder, step_then(v1.ToTensor()))
    ours = DataLoader(dataset, 8, num_workers=workers, collate_fn=as_lists)
    assert same(ours, torch.utils.data.DataLoader(dataset, 8, collate_fn=as_lists))


def note_pending(samples: list[Any]) -> Any:
    return torch.tensor([is_pending(image) for image, _ in samples])


@pytest.mark.parametrize(
    ("tail", "waits"), [("ToTensor", True), ("flip, ToTensor, Normalize", True), ("an own step on the tensor", False)]
)
def test_no_sample_has_a_tensor_before_its_batch(folder: Path, tail: str, waits: bool) -> None:
    dataset = ImageFolder(folder, step_then(*TAILS[tail]))
    for waiting in DataLoader(dataset, 8, num_workers=1, collate_fn=note_pending):
        assert bool((waiting == waits).all())


class Kept(ImageFolder):
    """Gives what it has kept from the epoch before."""

    kept: dict[int, Any]

    def __getitem__(self, index: int) -> Any:
        self.kept = getattr(self, "kept", {})
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)
        return self.kept[index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", [step_then(v1.ToTensor()), v1.Compose([v1.Resize((24, 20)), v1.ToTensor()])])
def test_what_a_dataset_has_kept_is_plain_in_later_epochs(folder: Path, transform: Any, workers: int) -> None:
    more: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0, "collate_fn": as_lists}
    loaders = [cls(Kept(folder, transform), 8, **more) for cls in (DataLoader, torch.utils.data.DataLoader)]
    for _ in range(3):
        assert same(*loaders)


@pytest.mark.parametrize("tail", [[], [v1.Resize((8, 8))], [v1.Pad(2)], [v1.RandomCrop(7, pad_if_needed=True)]])
def test_an_image_without_pixels_is_torchs_affair(folder: Path, tail: list[Any]) -> None:
    numbers = iter(range(1000))

    def own(image: Any) -> Any:  # the third box is empty
        return image.crop((5, 5, 5, 10) if next(numbers) % 5 == 2 else (3, 3, 10, 10))

    outcomes = []
    for cls in (DataLoader, torch.utils.data.DataLoader):
        numbers, shapes = iter(range(1000)), list[Any]()
        try:
            shapes += [
                (image.shape, image.sum())
                for image, _ in cls(ImageFolder(folder, v1.Compose([own, *tail, v1.ToTensor()])))
            ]
        except Exception as error:  # noqa: BLE001 - Pillow's, torchvision's or torch's
            shapes.append(type(error))
        outcomes.append(shapes)
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0]) > 2


def test_tensors_that_are_received_are_not_listed(folder: Path) -> None:
    before = len(context.notes.pending)
    for workers in (0, 1):
        for _ in DataLoader(ImageFolder(folder, v1.ToTensor()), 8, num_workers=workers, collate_fn=as_lists):
            pass
    assert len(context.notes.pending) == before


def test_an_image_that_is_kept_forgets_what_was_made_of_it(folder: Path) -> None:
    image = open_image(next(folder.rglob("*.jpg")))
    crops = [image.crop((0, 0, 9, 9)) for _ in range(40)]
    for _ in range(500):
        image.crop((0, 0, 9, 9))
    assert 40 <= len(image._source.images) <= 100
    del crops, image


def note_sizes(samples: list[Any]) -> Any:
    return torch.tensor([image.undecoded.source.pixels.shape for image, _ in samples])


def test_no_more_pixels_wait_than_the_tensor_has(folder: Path) -> None:
    tail = [v1.RandomHorizontalFlip(), v1.RandomCrop(97), v1.ToTensor()]
    for sizes in DataLoader(ImageFolder(folder, step_then(*tail)), 8, collate_fn=note_sizes):
        assert sizes.tolist() == [[97, 97, 3]] * len(sizes)


class Mixed(ImageFolder):
    """Several operations on copies of one crop, with their tensors mixed: AugMix."""

    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        to_tensor = v1.Compose([v1.ToTensor(), NORMALISE])
        clean, mix = to_tensor(image), torch.zeros_like(to_tensor(image))
        for operation in (ImageOps.autocontrast, ImageOps.invert, ImageOps.posterize):
            mix += to_tensor(operation(image.copy(), 2) if operation is ImageOps.posterize else operation(image.copy()))
        return clean, mix + to_tensor(image), image.copy().rotate(9).getpixel((3, 4)), image.info.get("dpi"), label


@pytest.mark.parametrize("workers", [0, 2])
def test_a_view_that_is_wanted_several_times_is_decoded_once(
    folder: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[Any] = []
    original = fill.decode_one
    monkeypatch.setattr(fill, "decode_one", lambda *given: (decoded.append(given), original(*given))[1])
    monkeypatch.setattr(context, "repeats_views", False)  # as in a new process
    dataset = Mixed(folder, v1.Compose([v1.CenterCrop(30), v1.Resize((24, 20))]))
    ours = list(DataLoader(dataset, 4, num_workers=workers, collate_fn=as_lists))
    torchs = list(torch.utils.data.DataLoader(dataset, 4, collate_fn=as_lists))
    assert same(ours, torchs)
    if not workers:
        assert 0 < len(decoded) <= len(dataset) + 4  # until it is known
    plain = DataLoader(dataset, 4, num_workers=workers, collate_fn=lambda samples: samples[0][0] * 1)
    assert same(list(plain), [samples[0][0] for samples in torchs])


class Touched(ImageFolder):
    def __getitem__(self, index: int) -> Any:
        image, label = super().__getitem__(index)
        return v1.functional.to_tensor(image), ImageOps.invert(image).getpixel((0, 0)), label


def test_a_dataset_that_works_on_pixels_is_accelerated_in_part(folder: Path) -> None:
    resize = v1.Compose([v1.Resize((24, 20))])
    for kind, expected in ((Touched, "partly accelerated"), (ImageFolder, "accelerated")):
        dataset = kind(folder, resize if kind is Touched else v1.Compose([*resize.transforms, v1.ToTensor()]))
        loader = DataLoader(dataset, 4, collate_fn=as_lists)
        list(loader)
        assert loader.verdict().kind == expected
        assert ("your code works on pixels itself" in loader.verdict().reason) == (kind is Touched)


class InMemory(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.images = [Image.new("RGB", (30, 20), (10 * number, 5, 7)) for number in range(12)]
        self.transform = v1.Compose([v1.RandomHorizontalFlip(1.0), v1.ToTensor()])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index])


def test_pixels_in_hand_are_not_told_to_be_decoded() -> None:
    loader = DataLoader(InMemory(), 4, num_workers=1)
    assert same(loader, torch.utils.data.DataLoader(InMemory(), 4))
    assert loader.verdict().kind == "partly accelerated"
    assert "the dataset decodes its images itself" in str(loader.verdict())
    assert check(loader, batches=2).equal
