"""Images that datasets of one's own open with Pillow stay encoded until their pixels are used, and are Pillow's."""

from __future__ import annotations

import copy
import io
import pickle
import tarfile
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import PIL.Image
import pytest
import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from PIL import Image, ImageOps
from torchvision.transforms import functional as F  # noqa: N812 - as everybody calls it

from fastdata import DataLoader
from fastdata.lazy import encoded_image
from fastdata.lazy.encoded_file import EncodedFile
from fastdata.lazy.encoded_image import EncodedImage
from fastdata.lazy.opening import opening_encoded

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


class Unseen:
    """Calls a transform that nobody can find: objects without `__dict__` are not searched."""

    __slots__ = ("transform",)

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        self.transform = transform

    def __call__(self, image: Image.Image) -> Any:
        return self.transform(image)


class Own(torch.utils.data.Dataset[Any]):
    """With a transform that is not found, so that it draws by itself."""

    def __init__(self, folder: Path, transform: Callable[[Any], Any], opened: str = "path") -> None:
        self.paths, self.opened = sorted(folder.rglob("*.*")), opened
        self.transform = Unseen(transform)

    def __len__(self) -> int:
        return len(self.paths)

    def open(self, path: Path) -> Image.Image:
        if self.opened == "path":
            with Image.open(path) as image:
                return image.convert("RGB")
        if self.opened == "bytes":
            return Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
        with path.open("rb") as file:  # as torchvision's loader does
            return Image.open(file).convert("RGB")

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.open(self.paths[index])), index


def by_hand(image: Image.Image) -> torch.Tensor:
    top, left, height, width = v1.RandomResizedCrop.get_params(image, [0.2, 1], [0.75, 1.33])
    return F.to_tensor(F.resized_crop(image, top, left, height, width, [20, 24], F.InterpolationMode.BICUBIC))


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "training": v1.Compose(
        [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
    ),
    "validation": v1.Compose([v1.Resize(30), v1.CenterCrop(24), v1.ToTensor()]),
    "v2": v2.Compose(
        [v2.RandomResizedCrop(24), v2.RandomVerticalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, True)]
    ),
    "tensor first": v2.Compose([v2.ToImage(), v2.Resize((24, 24), antialias=True)]),
    "padded crop": v1.Compose([v1.RandomCrop(50, padding=4, pad_if_needed=True), v1.ToTensor()]),
    "crop of a flip": v1.Compose([v1.RandomHorizontalFlip(), v1.RandomCrop(40), v1.Resize((20, 20)), v1.ToTensor()]),
    "larger than the image": v1.Compose([v1.CenterCrop(300), v1.ToTensor()]),
    "twice": v1.Compose([v1.Resize((60, 60)), v1.Resize((24, 24)), v1.ToTensor()]),
    "nearest": v1.Compose([v1.Resize((24, 24), F.InterpolationMode.NEAREST), v1.PILToTensor()]),
    "RandAugment": v1.Compose([v1.Resize((24, 24)), v1.RandAugment(), v1.ToTensor()]),
    "AutoAugment": v1.Compose([v1.RandomResizedCrop(24), v1.AutoAugment(), v1.ToTensor()]),
    "colour": v1.Compose(
        [v1.RandomResizedCrop(24), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(), v1.ToTensor()]
    ),
    "rotation": v1.Compose([v1.RandomRotation(30), v1.Resize((24, 24)), v1.ToTensor()]),
    "by hand": by_hand,
    "closure": lambda image: F.to_tensor(image.resize((24, 24))),
    "thumbnail": lambda image: F.to_tensor(ImageOps.fit(image, (24, 24))),
    "array": lambda image: torch.from_numpy(np.array(image)[:20, :20].copy()),
}


def batches(loader: Any) -> list[Any]:
    torch.manual_seed(3)
    return [batch[0] for batch in loader]


@pytest.mark.parametrize(
    ("name", "workers"),
    [(name, 0) for name in TRANSFORMS] + [("training", 2)],
)
def test_batches_of_ones_own_dataset_equal_torchs(folder: Path, name: str, workers: int) -> None:
    dataset = Own(folder, TRANSFORMS[name])
    ours = batches(DataLoader(dataset, 4, num_workers=workers, shuffle=True))
    torchs = batches(torch.utils.data.DataLoader(dataset, 4, num_workers=workers, shuffle=True))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_of_archives_are_pillows(folder: Path, tmp_path: Path, kind: str) -> None:
    paths = sorted(folder.rglob("*.*"))
    archive = tmp_path / f"images.{kind}"
    if kind == "tar":
        with tarfile.open(archive, "w") as tar:
            for number, path in enumerate(paths):
                tar.add(path, str(number))
    else:
        with zipfile.ZipFile(archive, "w") as zipped:
            for number, path in enumerate(paths):
                zipped.write(path, str(number))

    def member(number: int) -> torch.Tensor:
        if kind == "tar":
            with tarfile.open(archive) as tar, Image.open(tar.extractfile(str(number))) as image:
                return by_hand(image.convert("RGB"))
        with zipfile.ZipFile(archive) as zipped, zipped.open(str(number)) as file, Image.open(file) as image:
            return by_hand(image.convert("RGB"))

    class Members(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> torch.Tensor:
            return member(index)

    def made(loader: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(loader)

    ours, torchs = made(DataLoader(Members(), 4)), made(torch.utils.data.DataLoader(Members(), 4))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("opened", ["path", "bytes", "file"])
def test_every_kind_of_file_is_pillows_however_it_is_opened(odd_folder: Path, opened: str) -> None:
    def prepared(image: Image.Image) -> torch.Tensor:
        return F.pil_to_tensor(image.resize((20, 20)))

    dataset = Own(odd_folder, prepared, opened)
    ours, torchs = DataLoader(dataset, 4), torch.utils.data.DataLoader(dataset, 4)
    assert all(torch.equal(*pair) for pair in zip(batches(ours), batches(torchs), strict=True))


class Watching(Own):
    """Notes what it opened."""

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.paths[index]) as image:
            return isinstance(image, EncodedImage), image.size


def test_images_are_encoded_only_while_a_dataset_of_ours_makes_samples(folder: Path) -> None:
    original = PIL.Image.open
    dataset = Watching(folder, by_hand)
    for workers in (0, 1):
        kinds = [kind for kinds, *_ in DataLoader(dataset, 4, num_workers=workers) for kind in kinds]
        assert set(map(bool, kinds)) == {True}
        assert PIL.Image.open is original
    assert dataset[0][0] is False
    found = []
    with opening_encoded():
        thread = threading.Thread(target=lambda: found.append(dataset[0][0]))
        thread.start()
        thread.join()
        assert isinstance(Image.open(dataset.paths[0]), EncodedImage)
    assert found == [False]


class Forgiving(Own):
    """Takes another image in place of a damaged one, as many do."""

    def __getitem__(self, index: int) -> Any:
        try:
            image = self.open(self.paths[index])
        except OSError:
            return self[index + 1]
        return self.transform(image), index


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(folder / "apple", tmp_path / "own")
    whole = (tmp_path / "own" / "03.jpg").read_bytes()
    (tmp_path / "own" / "03.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "own" / "05.jpg").write_bytes(b"\xff\xd8\xff no image")
    return tmp_path / "own"


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_come_where_a_dataset_expects_them(damaged: Path, workers: int) -> None:
    dataset = Forgiving(damaged, TRANSFORMS["validation"])
    ours = batches(DataLoader(dataset, 4, num_workers=workers))
    torchs = batches(torch.utils.data.DataLoader(dataset, 4, num_workers=workers))
    assert all(torch.equal(*pair) for pair in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("index", [3, 5])
def test_errors_are_those_of_pillow(damaged: Path, index: int) -> None:
    dataset = Own(damaged, TRANSFORMS["validation"])
    with pytest.raises(OSError, match="image") as torchs:
        list(torch.utils.data.DataLoader(dataset, sampler=[index]))
    with pytest.raises(type(torchs.value)) as ours:
        list(DataLoader(dataset, sampler=[index]))
    assert str(ours.value) == str(torchs.value)


USES: dict[str, Callable[[Image.Image], Any]] = {
    "converted": lambda image: image.convert("RGB"),
    "in grey": lambda image: image.convert("L"),
    "cropped": lambda image: image.crop((1, 2, 9, 9)),
    "resized": lambda image: image.resize((9, 8)),
    "flipped": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "copied": lambda image: image.copy(),
    "loaded": lambda image: image.load(),
    "an array": np.asarray,
    "a tensor": F.to_tensor,
    "with a border": lambda image: ImageOps.expand(image, 3),
    "a pixel": lambda image: image.getpixel((0, 0)),
}


@pytest.mark.parametrize("use", USES)
def test_a_file_that_is_closed_too_early_is_missed_as_by_pillow(folder: Path, use: str) -> None:
    path = next(folder.rglob("*.jpg"))

    def outcome(in_time: bool) -> Any:
        with path.open("rb") as file:
            image = Image.open(file)
            if in_time:
                USES[use](image)
        try:
            USES[use](image)
        except ValueError as error:
            return str(error)
        return None

    with opening_encoded():
        with path.open("rb") as file:
            assert isinstance(Image.open(file), EncodedImage)
        ours = [outcome(in_time) for in_time in (False, True)]
    assert ours == [outcome(in_time) for in_time in (False, True)] == ["seek of closed file", None]


def test_files_are_closed_and_may_vanish(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.jpg").write_bytes(images.jpeg(60, 40))

    class Vanishing(Own):
        def __getitem__(self, index: int) -> Any:
            image = Image.open(self.paths[index])
            self.paths[index].unlink()
            before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
            pixels = F.pil_to_tensor(image.convert("RGB"))
            after = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
            assert before == after
            return pixels

    (batch,) = DataLoader(Vanishing(tmp_path / "own", by_hand))
    assert batch.shape == (1, 3, 40, 60)


# ---- the image by itself


@pytest.fixture
def pair(folder: Path) -> tuple[Image.Image, Image.Image]:
    """An image that stays encoded, and Pillow's of the same file."""
    data = images.saved(90, 70, exif=Image.Exif().tobytes(), quality=90, dpi=(72, 72), comment=b"words")
    with opening_encoded():
        ours = Image.open(io.BytesIO(data))
    assert isinstance(ours, EncodedImage)
    return ours, Image.open(io.BytesIO(data))


def same(ours: Image.Image, pillows: Image.Image) -> bool:
    assert (ours.size, ours.mode, ours.info) == (pillows.size, pillows.mode, pillows.info)
    return np.array_equal(np.asarray(ours), np.asarray(pillows)) and ours.tobytes() == pillows.tobytes()


OPERATIONS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "nothing": lambda image: image,
    "convert": lambda image: image.convert("RGB"),
    "convert to grey": lambda image: image.convert("L"),
    "palette": lambda image: image.convert("P", palette=Image.Palette.ADAPTIVE),
    "crop": lambda image: image.crop((10, 5, 60, 50)),
    "crop of fractions": lambda image: image.crop((10.4, 5.5, 60.6, 50.5)),
    "crop outside": lambda image: image.crop((-10, -5, 120, 50)),
    "crop beside": lambda image: image.crop((200, 200, 220, 210)),
    "empty crop": lambda image: image.crop((10, 10, 10, 20)),
    "crops": lambda image: image.crop((10, 5, 60, 50)).crop((3, 3, 30, 20)),
    "resize": lambda image: image.resize((30, 20)),
    "resize by box": lambda image: image.resize((30, 20), Image.Resampling.BILINEAR, (3.5, 2, 60, 50)),
    "resize with gap": lambda image: image.resize((30, 20), Image.Resampling.BILINEAR, reducing_gap=2.0),
    "resize to the same": lambda image: image.resize(image.size),
    "everything": lambda image: (
        image.crop((5, 5, 80, 60)).resize((30, 20), 2).crop((2, 2, 28, 18)).transpose(0).transpose(1).crop((1, 1, 9, 9))
    ),
    "flip, then resize": lambda image: image.transpose(0).resize((30, 20), 2),
    "resize, pad, resize": lambda image: image.resize((30, 20)).crop((-2, -2, 32, 22)).resize((10, 10)),
    "rotated": lambda image: image.rotate(30, expand=True),
    "transposed": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "bands": lambda image: Image.merge("RGB", image.split()[::-1]),
    "filtered": lambda image: ImageOps.autocontrast(image),
    "pasted": lambda image: (copied := image.copy(), copied.paste((1, 2, 3), (0, 0, 9, 9)))[0],
    "pixel": lambda image: (copied := image.copy(), copied.putpixel((0, 0), (1, 2, 3)))[0],
    "thumbnail": lambda image: (copied := image.copy(), copied.thumbnail((40, 40)))[0],
    "drafted": lambda image: (image.draft("RGB", (30, 30)), image)[1],
    "drafted, then converted": lambda image: (image.draft("RGB", (30, 30)), image.convert("RGB"))[1],
    "drafted, then cropped": lambda image: (image.draft("RGB", (30, 30)), image.crop((2, 2, 20, 20)))[1],
    "drafted, then resized": lambda image: (image.draft("RGB", (30, 30)), image.resize((20, 20), 2))[1],
    "drafted to grey": lambda image: (image.draft("L", (30, 30)), image.convert("RGB"))[1],
    "drafted in vain": lambda image: (image.draft("RGB", (500, 500)), image.resize((20, 20), 2))[1],
    "drafted thumbnail": lambda image: (image.thumbnail((20, 20)), image)[1],
    "pickled": lambda image: pickle.loads(pickle.dumps(image)),
    "deep copy": lambda image: copy.deepcopy(image.crop((1, 1, 40, 40))),
    "loaded": lambda image: (image.load(), image.resize((20, 20)))[1],
    "exif": lambda image: ImageOps.exif_transpose(image),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_is_done_to_it_is_what_pillow_does(pair: tuple[Image.Image, Image.Image], name: str) -> None:
    ours, pillows = pair
    assert same(OPERATIONS[name](ours), OPERATIONS[name](pillows))


def test_what_is_asked_of_it_is_what_pillow_says(pair: tuple[Image.Image, Image.Image]) -> None:
    ours, pillows = pair
    for name in ("size", "width", "height", "mode", "format", "info", "quantization", "layers", "bits"):
        assert getattr(ours, name) == getattr(pillows, name), name
    assert dict(ours.getexif()) == dict(pillows.getexif())
    assert ours.getbbox() == pillows.getbbox()
    assert ours.getpixel((3, 4)) == pillows.getpixel((3, 4))
    assert ours.histogram() == pillows.histogram()
    ours.verify()
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ours.nonsense
    with pytest.raises(ValueError, match=r"right.* is less than .*left"):
        ours.crop((9, 0, 3, 4))
    with ours:
        pass
    ours.close()
    with pytest.raises(ValueError, match="closed image"):
        ours.load()


def test_pictures_that_are_no_ordinary_jpegs_are_opened_by_pillow(odd_folder: Path) -> None:
    with opening_encoded():
        for path in sorted(odd_folder.rglob("*.*")):
            with Image.open(path) as image:
                assert isinstance(image, EncodedImage) <= (image.format in ("JPEG", "PNG"))
        for name in ("r", "formats"):
            options: dict[str, Any] = {"formats": ["JPEG"]} if name == "formats" else {"mode": "r"}
            assert isinstance(Image.open(io.BytesIO(images.jpeg(20, 20)), **options), EncodedImage) is (name == "r")


def test_the_verdict_says_so_before_the_first_batch(folder: Path) -> None:
    said = DataLoader(Own(folder, by_hand), 4).verdict()
    assert said.kind == "not known before the first batches"
    assert said.reason.startswith("JPEGs and PNGs opened with PIL.Image.open are decoded natively")


def png(mode: str = "RGB", **options: Any) -> bytes:
    return images.saved(50, 40, mode=mode, kind="PNG", **options)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "P", "1", "I;16"])
def test_pngs_are_pillows_in_every_mode(mode: str) -> None:
    data = png(mode) if mode != "I;16" else images.odd_files()["sixteen-bit.png"]
    theirs = Image.open(io.BytesIO(data))
    with opening_encoded():
        ours = Image.open(io.BytesIO(data))
        assert isinstance(ours, EncodedImage) == (mode in ("L", "RGB", "RGBA"))
        assert (ours.mode, ours.size, ours.format) == (theirs.mode, theirs.size, theirs.format)
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))
        again = Image.open(io.BytesIO(data)).convert("RGB").resize((20, 24)).crop((2, 3, 15, 16))
        assert np.array_equal(
            np.asarray(again), np.asarray(theirs.convert("RGB").resize((20, 24)).crop((2, 3, 15, 16)))
        )


@pytest.mark.parametrize("damage", ["cut short", "a transparent colour", "a flipped bit", "interlaced"])
def test_pngs_with_something_special_are_pillows(damage: str) -> None:
    data = png(transparency=(10, 20, 30)) if damage == "a transparent colour" else png()
    if damage == "cut short":
        data = data[: len(data) // 2]
    if damage == "a flipped bit":
        at = len(data) // 2
        data = data[:at] + bytes([data[at] ^ 64]) + data[at + 1 :]

    def outcome() -> Any:
        try:
            return np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((20, 20))).tolist()
        except Exception as error:  # noqa: BLE001 - whatever Pillow raises
            return type(error).__name__

    theirs = outcome()
    with opening_encoded():
        assert outcome() == theirs


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_files_that_only_the_decoder_finds_damaged_give_pillows_error_or_pixels(kind: str) -> None:
    data = images.saved(kind=kind)
    for at in range(len(data) // 3, len(data) - 20, len(data) // 40):
        damaged = data[:at] + bytes(8) + data[at + 8 :]

        def outcome(damaged: bytes = damaged) -> Any:
            try:
                return np.asarray(Image.open(io.BytesIO(damaged)).convert("RGB")).tolist()
            except Exception as error:  # noqa: BLE001 - whatever Pillow raises
                return type(error).__name__

        theirs = outcome()
        with opening_encoded():
            assert outcome() == theirs


def test_load_waits_until_a_pixel_is_asked_for() -> None:
    data = images.jpeg(40, 30)
    theirs = Image.open(io.BytesIO(data))
    with opening_encoded():
        ours = Image.open(io.BytesIO(data))
    access = ours.load()
    assert ours.pending_view is not None
    assert access[3, 4] == theirs.load()[3, 4]
    assert ours.pending_view is None
    access[3, 4] = (1, 2, 3)
    assert ours.getpixel((3, 4)) == (1, 2, 3)
    assert ours.load()[3, 4] == (1, 2, 3)


def test_arrays_outlive_the_image_that_they_lie_on() -> None:
    data = images.jpeg(40, 30)
    expected = np.asarray(Image.open(io.BytesIO(data)).resize((20, 24)))
    drops: list[Callable[[Image.Image], Any]] = [
        lambda image: image.close(),
        lambda image: image.getpixel((0, 0)),
        lambda image: image.putpixel((0, 0), (0, 0, 0)),
    ]
    for drop in drops:
        with opening_encoded():
            image = Image.open(io.BytesIO(data)).resize((20, 24))
        array = np.asarray(image)
        drop(image)
        del image
        _ = [np.full((24, 20, 3), 7, np.uint8) for _ in range(20)]
        assert np.array_equal(array, expected)


def test_each_array_of_an_image_has_memory_of_its_own() -> None:
    data = images.jpeg(40, 30, seed=1)
    with opening_encoded():
        image = Image.open(io.BytesIO(data)).convert("RGB")
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    first = np.asarray(image)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(first).zero_()  # for which torch warns
    for _ in range(3):
        assert (np.asarray(image) == expected).all()
        assert not np.asarray(image).flags.writeable
    assert (np.asarray(image.convert("RGB")) == expected).all()
    assert not first.any()


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_modes_are_pillows_after_every_step(mode: str, kind: str) -> None:
    data = images.saved(mode=mode, kind=kind)
    steps: list[Callable[[Image.Image], Image.Image]] = [
        lambda image: image.copy(),
        lambda image: image.convert(),
        lambda image: image.convert("L"),
        lambda image: image.convert("RGB"),
        lambda image: image.crop((1, 2, 30, 40)),
        lambda image: image.resize(image.size),
        lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        copy.deepcopy,
    ]
    for step in steps:
        theirs = step(Image.open(io.BytesIO(data)))
        with opening_encoded():
            ours = step(Image.open(io.BytesIO(data)))
        assert ours.mode == theirs.mode
        assert np.array_equal(np.asarray(ours), np.asarray(theirs))


def test_hidden_methods_that_everybody_calls() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = images.saved(exif=exif)
    with opening_encoded():
        assert Image.open(io.BytesIO(data))._getexif()[0x0112] == 6  # type: ignore[attr-defined]


def metadata(kind: str) -> bytes:
    """A JPEG with metadata of a kind."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a dog"
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    options: dict[str, Any] = {"exif": {"exif": exif}, "xmp": {"xmp": xmp}, "comment": {"comment": b"a dog"}}
    return images.saved(**options.get(kind, {}))


@pytest.mark.parametrize("kind", ["none", "comment", "exif", "xmp"])
def test_exif_is_pillows(kind: str) -> None:
    data = metadata(kind)
    theirs = Image.open(io.BytesIO(data))
    with opening_encoded():
        ours = Image.open(io.BytesIO(data))
        cropped = ours.crop((2, 2, 30, 30)), theirs.crop((2, 2, 30, 30))
        for one, other in ((ours, theirs), cropped, (ours.convert("RGB"), theirs.convert("RGB"))):
            assert dict(one.getexif()) == dict(other.getexif())
            one.getexif()[0x0112] = other.getexif()[0x0112] = 8
            assert one.getexif().tobytes() == other.getexif().tobytes()
            assert ImageOps.exif_transpose(one).size == ImageOps.exif_transpose(other).size


def test_pillow_is_not_asked_for_metadata_that_a_jpeg_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's datasets ask each image for its orientation."""
    with opening_encoded():
        image = Image.open(io.BytesIO(metadata("none")))
    monkeypatch.setattr(PIL.Image, "open", lambda *_: pytest.fail("opened by Pillow"))
    assert 0x0112 not in image.getexif()


def test_equality_is_pillows() -> None:
    data = images.jpeg(20, 20)
    plain = Image.open(io.BytesIO(data)).convert("RGB")
    with opening_encoded():
        ours = Image.open(io.BytesIO(data)).convert("RGB")
        assert ours == plain
        assert ours == Image.open(io.BytesIO(data)).convert("RGB")
        assert ours != plain.rotate(90)


def test_a_library_that_wraps_open_while_it_is_replaced_ends_in_no_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    with opening_encoded():
        inner = Image.open
        monkeypatch.setattr(PIL.Image, "open", lambda *args, **options: inner(*args, **options))
    for _ in range(2):
        with opening_encoded():
            assert Image.open(io.BytesIO(images.jpeg(9, 9))).size == (9, 9)
    assert Image.open(io.BytesIO(images.jpeg(9, 9))).size == (9, 9)


BEFORE: dict[str, Callable[[Image.Image], Any]] = {
    "nothing": lambda image: None,
    "size": lambda image: (image.size, image.info, image.tell()),
    "seek": lambda image: image.seek(0),
    "load": lambda image: image.load(),
    "asarray": np.asarray,
    "to_tensor": F.to_tensor,
    "convert": lambda image: image.convert("RGB"),
    "convert to L": lambda image: image.convert("L"),
    "copy": lambda image: image.copy(),
    "crop": lambda image: image.crop((0, 0, 9, 9)),
    "resize": lambda image: image.resize((20, 20)),
    "transpose": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "rotate": lambda image: image.rotate(5),
    "getpixel": lambda image: image.getpixel((1, 1)),
    "a fit": lambda image: ImageOps.fit(image, (20, 20)),
    "draft": lambda image: image.draft("RGB", (60, 50)),
    "thumbnail": lambda image: image.thumbnail((60, 50)),
    "verify": lambda image: image.verify(),
    "verify of another": lambda image: image.convert("RGB").verify(),
    "load, verify": lambda image: (image.load(), image.verify()),
}
BEHIND: dict[str, Callable[[Image.Image], Any]] = {
    "nothing": lambda image: None,
    "thumbnail": lambda image: image.thumbnail((30, 25)),
    "draft": lambda image: image.draft("RGB", (30, 25)),
    "draft of L": lambda image: image.draft("L", (30, 25)),
    "copy": lambda image: image.copy(),
    "verify": lambda image: image.verify(),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "grey JPEG"])
def test_what_depends_on_whether_an_image_was_loaded_is_pillows(kind: str, behind: str) -> None:
    """A loaded JPEG is not drafted any more, which thumbnail() asks for, and a verified file cannot be read."""
    data = io.BytesIO()
    image = Image.open(io.BytesIO(images.jpeg(240, 200, seed=1)))
    (image.convert("L") if kind == "grey JPEG" else image).save(data, kind.split()[-1])

    def used(before: str) -> Any:
        image = Image.open(io.BytesIO(data.getvalue()))
        try:
            BEFORE[before](image)
            BEHIND[behind](image)
            return image.size, image.mode, np.asarray(image.convert("RGB")).tobytes()
        except (AssertionError, RuntimeError, ValueError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"

    for before in BEFORE:
        if (before, behind) == ("draft", "verify"):
            continue  # a drafted image is a plain one, which can be used
        expected = used(before)
        with opening_encoded():
            assert used(before) == expected, before


def test_images_that_pillow_converts_are_left_to_it_in_later_epochs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening them twice costs more than it gains; one sample in up to sixteen batches shows if that is still so."""
    left: list[Any] = []
    real = EncodedFile.opened.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        EncodedFile, "opened", classmethod(lambda cls, source: left.append(source) or real(cls, source))
    )
    dataset = Own(folder, lambda image: F.to_tensor(image.resize((24, 24))))
    monkeypatch.setattr(dataset, "open", lambda path: Image.open(path).convert("L"))
    loader, theirs = DataLoader(dataset, 3), torch.utils.data.DataLoader(dataset, 3)
    for most in (13, 1, 1):
        left.clear()
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(loader, theirs, strict=True))
        assert len(left) <= most
    monkeypatch.setattr(dataset, "open", lambda path: Image.open(path).convert("RGB"))
    left.clear()
    list(loader)
    list(loader)
    assert len(left) > len(dataset)


@pytest.mark.parametrize("use", ["values", "pickled", "changed", "merged", "pasted"])
def test_bands_are_pillows(tmp_path: Path, use: str) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(images.saved(131, 97, comment=b"a dog"))

    def used(image: Image.Image) -> list[Any]:
        seen = image.crop((10, 5, 100, 90))
        bands = seen.split()
        if use == "changed":
            seen.paste((1, 2, 3), (0, 0, 50, 50))
        elif use == "merged":
            return [np.asarray(Image.merge("RGB", bands[::-1]))]
        elif use == "pasted":
            seen.paste(bands[2], (3, 4), bands[0])
            return [np.asarray(seen)]
        elif use == "pickled":
            bands = pickle.loads(pickle.dumps(bands))
        return [(band.mode, band.size, band.info, band.__class__, np.asarray(band).tolist()) for band in bands]

    theirs = used(Image.open(path))
    with opening_encoded():
        ours = used(Image.open(path))
    assert str(ours) == str(theirs)


def test_counting_channels_decodes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(images.saved(131, 97))
    with opening_encoded():
        image = Image.open(path)
        monkeypatch.setattr(encoded_image, "decode_source", None)
        assert [band.size for band in image.split()] == [(131, 97)] * 3
        assert image.pending_view is not None  # type: ignore[attr-defined]
