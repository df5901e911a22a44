"""Datasets that decode with torchvision.io or torchcodec: images stay encoded, and batches are torch's."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import pytest
import torch
import torch.utils.data
from photographs import photographs
from PIL import Image
from taken_over import decodes_natively
from torch.utils.data import Dataset
from torchvision.io import ImageReadMode, decode_image, decode_jpeg, read_file, read_image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812 - as everybody calls it

from fastdata import DataLoader
from fastdata.lazy.opening import opening_encoded
from fastdata.lazy.pending_tensor import is_pending

pytestmark = pytest.mark.filterwarnings("ignore:.*torchvision:DeprecationWarning", "ignore:.*torchvision:FutureWarning")

try:
    from torchcodec import decoders as torchcodec
except (ImportError, OSError, RuntimeError):  # which also needs libraries of the system
    torchcodec = None

HOW: dict[str, Callable[[Path], torch.Tensor]] = {
    "decode_image": lambda path: decode_image(str(path)),
    "of a path": lambda path: decode_image(path, mode="RGB"),
    "read_image": lambda path: read_image(str(path), ImageReadMode.RGB),
    "of bytes": lambda path: decode_jpeg(read_file(str(path)), ImageReadMode.RGB),
    "of a buffer": lambda path: decode_image(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)),
}
if torchcodec is not None:
    HOW["torchcodec"] = lambda path: torchcodec.decode_image(path)
    HOW["torchcodec, of bytes"] = lambda path: torchcodec.decode_jpeg(path.read_bytes(), mode="RGB")
STEPS = v2.Compose(
    [v2.Resize((32, 32), antialias=True), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.2])]
)
DRAWN = v2.Compose(
    [v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoded")
    for number in range(9):
        (folder / f"{number}.jpg").write_bytes(images.jpeg(50 + number, 60 - number, seed=number))
    (folder / "9.png").write_bytes(images.saved(kind="PNG"))
    return folder


class Own(Dataset[Any]):
    """The documented dataset of one's own."""

    def __init__(self, folder: Path, how: str, transform: Any) -> None:
        self.paths, self.how, self.transform = sorted(folder.iterdir()), how, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        path = self.paths[index]
        try:
            image = HOW[self.how if path.suffix == ".jpg" else "decode_image"](path)
        except RuntimeError as error:
            return self.transform(torch.zeros(3, 40, 40, dtype=torch.uint8)), str(error)[:8]
        return (self.transform(image) if self.transform else image[:, :30, :30]), index


def epoch(cls: Any, dataset: Any, **more: Any) -> list[Any]:
    torch.manual_seed(2)
    random.seed(2)
    return list(cls(dataset, 3, shuffle=True, **more))


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for (image, label), (expected, other) in zip(ours, theirs, strict=True):
        assert (image.dtype, image.shape, image.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert torch.equal(image, expected)
        assert torch.equal(label, other) if isinstance(label, torch.Tensor) else label == other


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("transform", [STEPS, None])
def test_batches_are_torchs(folder: Path, how: str, transform: Any, workers: int) -> None:
    dataset = Own(folder, how, transform)
    loader = DataLoader(dataset, 3, num_workers=workers)
    ours = epoch(lambda *_, **more: DataLoader(dataset, 3, **more), dataset, num_workers=workers)
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, num_workers=workers))
    list(loader)
    assert decodes_natively(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_draw_torchs_numbers_if_asked(folder: Path, workers: int) -> None:
    dataset = Own(folder, "decode_image", DRAWN)
    ours = epoch(DataLoader, dataset, num_workers=workers, draws="torch")
    assert_same(ours, epoch(torch.utils.data.DataLoader, dataset, num_workers=workers))
    by_sample = [epoch(DataLoader, dataset, num_workers=each, seed=4) for each in (0, 2)]
    assert_same(*by_sample)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_torchvision_refuses_reaches_the_datasets_code(folder: Path, tmp_path: Path, workers: int) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = (tmp_path / "4.jpg").read_bytes()
    at = data.index(b"\xff\xc4") + 5
    (tmp_path / "4.jpg").write_bytes(data[:at] + bytes([255]) * 16 + data[at + 16 :])
    (tmp_path / "5.jpg").write_bytes(data[: len(data) // 2])
    dataset = Own(tmp_path, "decode_image", STEPS)
    ours, theirs = (
        epoch(cls, dataset, num_workers=workers, collate_fn=list) for cls in (DataLoader, torch.utils.data.DataLoader)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert [label for _, label in one] == [label for _, label in other]
        assert all(torch.equal(image, expected) for (image, _), (expected, _) in zip(one, other, strict=True))
    assert sum(isinstance(label, str) for batch in ours for _, label in batch) == 2


OTHERS: dict[str, Callable[[Path], Any]] = {
    "grey": lambda path: decode_image(str(path), ImageReadMode.GRAY),
    "turned": lambda path: decode_image(str(path), apply_exif_orientation=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_requests_are_torchvisions(folder: Path, name: str) -> None:
    with opening_encoded():
        ours = OTHERS[name](folder / "3.jpg")
    assert not is_pending(ours)
    assert torch.equal(ours, OTHERS[name](folder / "3.jpg"))


def turned(path: Path, orientation: int) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    with Image.open(path) as image:
        made = path.parent / "turned" / f"{orientation}{path.suffix}"
        made.parent.mkdir(exist_ok=True)
        image.save(made, exif=exif)
    return made


@pytest.mark.skipif(torchcodec is None, reason="torchcodec is not installed")
def test_torchcodec_turns_what_its_metadata_turn(folder: Path, tmp_path: Path) -> None:
    for name in ("3.jpg", "9.png"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
        for orientation in (1, 6):
            path = turned(tmp_path / name, orientation)
            with opening_encoded():
                ours = torchcodec.decode_image(path)
            assert is_pending(ours) == (name == "3.jpg" and orientation == 1)
            assert torch.equal(ours, torchcodec.decode_image(path))


@pytest.mark.skipif(torchcodec is None, reason="torchcodec is not installed")
@pytest.mark.parametrize("asked", [{"mode": "GRAY"}, {"output_dtype": torch.uint16}, {"mode": "RGB_ALPHA"}])
def test_other_requests_are_torchcodecs(folder: Path, asked: dict[str, Any]) -> None:
    for name in ("3.jpg", "9.png"):
        with opening_encoded():
            ours = torchcodec.decode_image(folder / name, **asked)
        assert torch.equal(ours, torchcodec.decode_image(folder / name, **asked))


@pytest.mark.skipif(torchcodec is None, reason="torchcodec is not installed")
def test_torchcodecs_pixels_are_pillows(folder: Path) -> None:
    for path in [*photographs("imagenet-sample"), *folder.glob("*.jpg")]:
        with Image.open(path) as image:
            if image.mode == "RGB" and image.format == "JPEG" and image.getexif().get(0x0112, 1) == 1:
                assert torch.equal(torchcodec.decode_image(path), F.pil_to_tensor(image))


def test_its_pixels_are_pillows(folder: Path) -> None:
    """The proof that one pending tensor may stand for both."""
    for path in [*photographs("imagenet-sample"), *folder.glob("*.jpg")]:
        with Image.open(path) as image:
            if image.mode == "RGB" and image.format == "JPEG":
                assert torch.equal(decode_image(str(path)), F.pil_to_tensor(image))


def test_nothing_is_replaced_outside(folder: Path) -> None:
    before = vars(torch.ops.image)["decode_image"]
    with opening_encoded():
        assert vars(torch.ops.image)["decode_image"] is not before
    assert vars(torch.ops.image)["decode_image"] is before


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", [name for name in HOW if "torchcodec" in name or name == "decode_image"])
def test_the_library_decides_about_a_size_that_a_header_claims(tmp_path: Path, how: str, workers: int) -> None:
    """No memory is taken for it here, and the error is the library's."""
    mode = "L" if "torchcodec" in how else "RGB"
    data = bytearray(images.saved(64, 48, kind="JPEG", mode=mode))
    frame = next(at for at in range(len(data)) if data[at : at + 2] == b"\xff\xc0")
    side = 65_535 if "torchcodec" in how else 11_000
    data[frame + 5 : frame + 9] = side.to_bytes(2, "big") * 2
    (tmp_path / "claims.jpg").write_bytes(data)

    class Claims(Dataset[Any]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return HOW[how](tmp_path / "claims.jpg").float().max()

    found = []
    for cls in (torch.utils.data.DataLoader, DataLoader):
        try:
            found.append([batch.tolist() for batch in cls(Claims(), 1, num_workers=workers)])
        except RuntimeError as error:
            found.append([type(error), str(error).splitlines()[-1]])
    assert found[0] == found[1]
