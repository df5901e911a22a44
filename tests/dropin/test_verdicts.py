"""What a loader says of itself follows from what its first batches did."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
import torchvision
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from taken_over import decodes_natively
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset
from torchvision import io, tv_tensors

import fastdata
from fastdata import DataLoader
from fastdata.dataloader import verdict
from fastdata.dataloader.verdict import Verdict
from fastdata.lazy import fill
from fastdata.lazy.batch_messages import kind_of

cv2 = pytest.importorskip("cv2")

STEPS = v1.Compose([v1.Resize((32, 32)), v1.ToTensor()])


@pytest.fixture(autouse=True)
def not_warned() -> Iterator[None]:
    verdict._warned.cache_clear()
    yield
    verdict._warned.cache_clear()


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "root" / "all").mkdir(parents=True)
    paths = [tmp_path / "root" / "all" / f"{number}.jpg" for number in range(8)]
    for number, path in enumerate(paths):
        path.write_bytes(images.jpeg(200 + number, 150, seed=number))
    return list(map(str, paths))


class Files(Dataset[Any]):
    def __init__(self, files: list[str], transform: Any = STEPS) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB"))


class ByOpenCV(Files):
    def __getitem__(self, index: int) -> Any:
        pixels = cv2.cvtColor(cv2.imread(self.files[index]), cv2.COLOR_BGR2RGB)
        return torch.from_numpy(cv2.resize(pixels, (32, 32))).permute(2, 0, 1)


class ByTorchvision(Files):
    def __getitem__(self, index: int) -> Any:
        return self.transform(io.read_image(self.files[index], apply_exif_orientation=True))


class Greys(Files):
    """Opens 16-bit images, which Pillow decodes."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.files[index]).convert("RGB"))


class Luma(Files):
    """Converts images to another mode than RGB, all or some."""

    others = 1

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        return self.transform(image.convert("YCbCr" if index % self.others == 0 else "RGB").split()[0]), type(
            image
        ) is JpegImageFile


class AlsoGrey(Files):
    """Looks at the grey image, too."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        return self.transform(image.convert("RGB")), float(np.asarray(image.convert("L")).mean())


class SomeLuma(Luma):
    others = 3


class Joint(Files):
    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index]).convert("RGB")
        return self.transform(image, tv_tensors.Mask(torch.zeros(1, image.height, image.width)))


class Opened(Dataset[Any]):
    """Opens images, and works on them by a function."""

    def __init__(self, files: list[str], work: Callable[[Any], Any], mode: str | None = "RGB") -> None:
        self.files, self.work, self.mode = files, work, mode

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        return self.work(image if self.mode is None else image.convert(self.mode))


class Stream(IterableDataset[Any]):
    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        return (STEPS(Image.open(file).convert("RGB")) for file in self.files)


class ByTorchvisionStream(Stream):
    def __iter__(self) -> Iterator[Any]:
        return (torchvision.io.decode_image(file)[:, :32, :32] for file in self.files)


class Named(Dataset[Any]):
    """Has an attribute called like one of a transform's methods, and no hooks."""

    def __init__(self) -> None:
        self.transform = self.forward = lambda value: value

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.transform(torch.zeros(2))


def heard(loader: Any) -> tuple[Verdict, list[str]]:
    """The verdict after an epoch, and the warnings that came with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
    told = [str(each.message) for each in caught if each.category is fastdata.NotAccelerated]
    return loader.verdict(), told


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [Luma, SomeLuma])
def test_images_that_pillow_converts_are_left_to_it(files: list[str], kind: Any, workers: int) -> None:
    loader = DataLoader(kind(files * 2), 8, num_workers=workers, collate_fn=list)
    found = [sample for batch in loader for sample in batch]
    expected = [kind(files * 2)[index] for index in range(16)]
    assert all(torch.equal(image, other) for (image, _), (other, _) in zip(found, expected, strict=True))
    assert [by_pillow for _, by_pillow in found] == [
        kind is Luma and number in {4, 5, 6, 7, *range(9, 16)} for number in range(16)
    ]
    said = loader.verdict()
    if kind is Luma:
        assert said.kind == "not accelerated"
        assert said.reason.startswith("Luma converts its images to another mode than RGB at once")
    else:
        assert said.kind == "partly accelerated"
        assert said.reason.startswith("images are decoded by the native core")


def test_images_of_another_kind_are_noticed_later(files: list[str]) -> None:
    dataset = ConcatDataset([Luma(files), Files(files * 3)])
    loader = DataLoader(dataset, 4, collate_fn=list)
    seen = [type(sample) is tuple for batch in loader for sample in batch]
    assert seen == [True] * 8 + [False] * 24
    assert loader.stats()["batches"] == 8
    both = DataLoader(AlsoGrey(files * 2), 4)
    list(both)
    assert decodes_natively(both)


def test_before_the_first_batches_nothing_is_promised(files: list[str]) -> None:
    assert DataLoader(Files(files), 2).verdict().kind == "not known before the first batches"


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_decoded_and_fused_is_accelerated(files: list[str], workers: int) -> None:
    said, warned = heard(DataLoader(Files(files), 2, num_workers=workers))
    assert said.kind == "accelerated"
    assert said.reason.startswith("images are decoded by the native core (")
    assert "transform: 2 of 2 steps fused" in said.reason
    assert warned == []


@pytest.mark.parametrize(
    ("kind", "library"), [(ByOpenCV, "OpenCV"), (ByTorchvision, "torchvision.io")], ids=lambda each: str(each)[-20:]
)
@pytest.mark.parametrize("workers", [0, 1])
def test_the_decoder_that_is_the_cause_is_named(files: list[str], kind: Any, library: str, workers: int) -> None:
    """Not a worker_init_fn, which is beside the point."""
    transform = v2.Compose([v2.Resize((32, 32)), v2.ToDtype(torch.float32, scale=True)])
    loader = DataLoader(kind(files, transform), 2, num_workers=workers, worker_init_fn=print)
    said, warned = heard(loader)
    if library == "OpenCV":
        assert said.kind == "not accelerated"
        assert said.reason == f"{kind.__name__} decodes its images itself: it uses {library}"
        assert said.change is not None
        assert said.change.startswith("in __getitem__, open image files with PIL.Image.open")
        assert len(warned) == 1
        assert "PIL.Image.open" in warned[0]
    else:  # its transform is fused, not its decoding
        assert "by the native core" not in said.reason
        assert said.kind in ("partly accelerated", "not accelerated")
        assert said.kind == "not accelerated" or said.reason.startswith("the dataset decodes its images itself")
    assert "worker_init_fn" not in str(said)


def test_files_that_are_no_ordinary_images_are_counted(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.webp" for number in range(8)]
    for path in paths:
        path.write_bytes(images.saved(kind="WEBP"))
    said, _ = heard(DataLoader(Greys(list(map(str, paths)), v1.PILToTensor()), 2))
    assert said.kind == "little gain"
    assert said.reason.startswith("Pillow decodes its images: 6 in the first 3 batches, WEBPs; of its transforms, ")


@pytest.mark.parametrize("workers", [0, 1])
def test_joint_transforms_are_not_said_to_be_fused(files: list[str], workers: int) -> None:
    steps = [v2.Resize((32, 32)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    said, _ = heard(DataLoader(Joint(files, v2.Compose(steps)), 2, num_workers=workers))
    assert said.kind == "accelerated"
    assert re.match(r"images are decoded by the native core \([26] in the first .*\), together", said.reason)
    said, _ = heard(DataLoader(Joint(files, v2.Compose([*steps, v2.GaussianBlur(3)])), 2, num_workers=workers))
    assert said.kind == "partly accelerated"
    assert said.reason.startswith("images are decoded by the native core")
    assert "work on pixels" in said.reason
    assert "steps fused" not in said.reason


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_of_images_say_what_they_are(files: list[str], workers: int) -> None:
    said, warned = heard(DataLoader(Stream(files), 2, num_workers=workers))
    assert said.kind == "accelerated"
    assert said.reason.startswith("images are decoded by the native core")
    assert warned == []
    said, warned = heard(DataLoader(ByTorchvisionStream(files), 2, num_workers=workers))
    assert said.kind == "not accelerated"
    assert said.reason.startswith("ByTorchvisionStream decodes its images itself")
    assert len(warned) == 1
    assert "PIL.Image.open" in warned[0]


def test_an_attribute_called_transform_is_no_hook() -> None:
    said, warned = heard(DataLoader(Named(), 2))
    assert "hooks" not in str(said)
    assert warned == []


def as_array(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image))[:30, :30].clone()


def rotated(image: Any) -> torch.Tensor:
    return v1.functional.to_tensor(image.rotate(10).resize((8, 8)))


def as_tensor(image: Any) -> torch.Tensor:
    return torch.from_numpy(v1.functional.to_tensor(image).numpy()[:, :30, :30])


GAINS = {
    "array": (as_array, "partly accelerated", "1.3 to 1.5 times as fast as by Pillow"),
    "tensor": (as_tensor, "partly accelerated", "1.3 to 1.5 times as fast as by Pillow"),
    "Pillow": (rotated, "little gain", "which does the rest (rotate (test_verdicts.py:"),
    "resized": (lambda image: v1.functional.to_tensor(image.resize((8, 8))), "accelerated", "conversions to tensors"),
}


@pytest.mark.parametrize("name", GAINS)
def test_the_verdict_is_about_the_gain(files: list[str], name: str) -> None:
    """Where only decoding is native, it says so; where Pillow does the rest, little is gained."""
    work, kind, reason = GAINS[name]
    said, warned = heard(DataLoader(Opened(files, work), 4))
    assert said.kind == kind
    assert reason in said.reason
    assert (said.change or "").startswith("crop and resize the image right after" if kind == "little gain" else "")
    assert warned == []


def test_images_that_collate_fn_decodes_are_counted(files: list[str]) -> None:
    resized = Opened(files, lambda image: torch.stack([STEPS(image), STEPS(image)]))
    for collate_fn in (None, torch.cat):
        said, _ = heard(DataLoader(resized, 4, collate_fn=collate_fn))
        assert said.kind == "accelerated"
        assert said.reason.startswith("images are decoded by the native core (")
        assert said.reason.endswith("(STEPS: 2 of 2 steps fused)")


def test_what_pillow_opens_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(8)]
    for path in paths:
        path.write_bytes(images.saved(40, 40, mode="L", kind="PNG"))
    for work in (as_array, STEPS):
        said, _ = heard(DataLoader(Opened(list(map(str, paths)), work, None), 4))
        assert said.kind == "not accelerated"
        assert said.reason == "Opened opened 8 images in the first 2 batches: grey PNGs, which Pillow decodes"
        assert said.change is not None
        assert said.change.startswith("only 8-bit JPEGs and PNGs that are used in RGB are decoded natively")


def test_what_opens_no_images_is_not_said_to_decode_them() -> None:
    said, warned = heard(DataLoader(TensorDataset(torch.zeros(8, 2)), 4))
    assert str(said) == "not accelerated: TensorDataset opens no images with PIL.Image.open"
    assert warned == []


@pytest.mark.parametrize(("kind", "mode", "told"), [("JPEG", "L", "grey JPEGs"), ("PNG", "RGBA", "transparent PNGs")])
def test_images_of_other_modes_are_decoded_once_by_pillow(
    kind: str, mode: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.{kind.lower()}" for number in range(8)]
    for path in paths:
        path.write_bytes(images.saved(40, 40, mode=mode, kind=kind))
    decoded: list[Any] = []
    monkeypatch.setattr(fill, "_decoded", lambda *given: decoded.append(given))
    said, _ = heard(DataLoader(Opened(list(map(str, paths)), as_array, None), 4))
    assert said.reason == f"Opened opened 8 images in the first 2 batches: {told}, which Pillow decodes"
    assert decoded == []


def test_images_with_masks_are_not_left_to_pillow(tmp_path: Path) -> None:
    """A mask that Pillow converts counts once, so the image beside it stays encoded."""
    for number in range(16):
        (tmp_path / f"{number}.jpg").write_bytes(images.saved(300, 280))
        (tmp_path / f"{number}.png").write_bytes(images.saved(60, 50, kind="PNG"))
    opened: list[Any] = []

    def work(image: Any) -> Any:
        opened.append(type(image))
        with Image.open(image.filename.replace("jpg", "png")) as mask:
            grey = np.array(mask.convert("L"))
        return STEPS(image), torch.from_numpy(grey)

    said, _ = heard(DataLoader(Opened([str(tmp_path / f"{n}.jpg") for n in range(16)], work, None), 4))
    assert said.kind in ("accelerated", "partly accelerated")
    assert not any(each is JpegImageFile for each in opened)


def test_a_crop_is_not_the_whole_image(files: list[str]) -> None:
    said, _ = heard(DataLoader(Opened(files, lambda image: as_array(image.crop((0, 0, 20, 20)).rotate(5))), 4))
    assert "all of their pixels" not in said.reason


def test_images_above_pillows_limit_are_named(files: list[str]) -> None:
    with Image.open(files[0]) as image:
        assert kind_of(image, image.width * image.height - 1) == "JPEGs above PIL.Image.MAX_IMAGE_PIXELS"


def test_images_count_once_where_a_program_puts_back_what_it_found(tmp_path: Path) -> None:
    path = tmp_path / "0.png"
    path.write_bytes(images.saved(40, 40, mode="L", kind="PNG"))
    real = Image.open

    def work(image: Any) -> torch.Tensor:
        found.append(Image.open)
        return as_array(image)

    found: list[Any] = []
    dataset = Opened([str(path)] * 4, work, None)
    list(DataLoader(dataset, 4))
    try:
        Image.open = found[0]
        said, _ = heard(DataLoader(dataset, 4))
    finally:
        Image.open = real
    assert said.reason.startswith("Opened opened 4 images")
