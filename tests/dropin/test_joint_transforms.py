"""torchvision's transforms of image and target, and its functions, on images that are still encoded: torch's result."""

from __future__ import annotations

import gc
import io
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import images
import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from taken_over import decodes_natively
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import functional as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812 - as everybody calls it

from fastdata import DataLoader
from fastdata.lazy.opening import opening_encoded
from fastdata.lazy.pending_tensor import is_pending

DATA = images.jpeg(61, 47, seed=5)
CUBIC = v2.InterpolationMode.BICUBIC


def opened() -> Image.Image:
    return Image.open(io.BytesIO(DATA)).convert("RGB")


def assert_same(ours: Any, theirs: Any) -> None:
    """The same class, dtype, shape, strides and values."""
    decoded = ours.undecoded.decoded() if is_pending(ours) else ours
    assert type(decoded) is type(theirs)
    assert (decoded.dtype, decoded.shape, decoded.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
    assert torch.equal(decoded, theirs)


# Steps that leave an image encoded, whatever has come before, as long as each is torchvision's on uint8.
STEPS: dict[str, Callable[[Any], Any]] = {
    "flipped": F.horizontal_flip,
    "upside down": F.vertical_flip,
    "cropped": lambda image: F.crop(image, 3, 2, F.get_size(image)[0] - 5, F.get_size(image)[1] - 4),
    "rows": lambda image: F.crop(image, 2, 0, F.get_size(image)[0] - 3, F.get_size(image)[1]),
    "center": lambda image: F.center_crop(image, [20, 24]),
    "sliced": lambda image: image[..., 1:-1, 2:],
}
AT_MOST_ONCE: dict[str, Callable[[Any], Any]] = {
    "resized": lambda image: F.resize(image, [33, 41]),
    "shorter side": lambda image: F.resize(image, 30, max_size=48),
    "cubic": lambda image: F.resize(image, [60, 50], interpolation=CUBIC),
    "resized crop": lambda image: F.resized_crop(image, 1, 2, 30, 30, [28, 31]),
    "padded": lambda image: F.pad(image, [3, 1, 4, 2]),
    "coloured": lambda image: F.pad(image, [2], fill=[1.0, 2.0, 3.0]),
    "outside": lambda image: F.crop(image, -3, -2, 40, 40),
}
AT_THE_END: dict[str, Callable[[Any], Any]] = {
    "bytes": lambda image: image,
    "scaled": lambda image: F.to_dtype(image, torch.float32, scale=True),
    "half": lambda image: F.to_dtype(image, torch.float16, scale=True),
    "normalised": lambda image: F.normalize(F.to_dtype(image, torch.float32, scale=True), [0.5, 0.4, 0.3], [0.2] * 3),
    "in place": lambda image: F.normalize(F.to_dtype(image, torch.float32, scale=True), [0.5], [0.2], inplace=True),
    "pure": lambda image: image.as_subclass(torch.Tensor),
    "arithmetic": lambda image: image / 255,
}


@pytest.mark.parametrize("starts", ["Image", "tensor"])
@pytest.mark.parametrize("first", [None, *STEPS])
@pytest.mark.parametrize("then", AT_MOST_ONCE)
def test_chains_of_functions_give_torchvisions_tensors(starts: str, first: str | None, then: str) -> None:
    if starts == "Image":
        begin: Any = F.to_image
    else:
        begin = lambda image: F.pil_to_tensor(image)  # noqa: E731 - the function that is there when it is called
    reveals = (first, then) in [("cropped", "outside"), ("sliced", "outside"), ("center", "resized crop")]
    for last in (*STEPS, *AT_THE_END):

        def chain(image: Any, last: str = last) -> Any:
            value = begin(image)
            value = value if first is None else STEPS[first](value)
            value = AT_MOST_ONCE[then](value)
            return {**STEPS, **AT_THE_END}[last](value)

        with opening_encoded():
            ours = chain(opened())
            assert is_pending(ours) or last == "in place" or reveals
        assert_same(ours, chain(opened()))


@pytest.mark.parametrize("seed", range(40))
def test_long_chains_give_torchvisions_tensors(seed: int) -> None:
    draw = random.Random(seed)
    every = {**STEPS, **AT_MOST_ONCE}
    names = [*(draw.choice(list(every)) for _ in range(draw.randint(2, 6))), draw.choice(list(AT_THE_END))]

    def chain(image: Any) -> Any:
        value = F.to_image(image)
        for name in names:
            if name in AT_THE_END or min(F.get_size(value)) > 12:
                value = {**every, **AT_THE_END}[name](value)
        return value

    with opening_encoded():
        ours = chain(opened())
    assert_same(ours, chain(opened()))


ELSEWHERE: dict[str, Callable[[Any], Any]] = {
    "blurred": lambda image: F.gaussian_blur(image, [3, 3]),
    "brighter": lambda image: F.adjust_brightness(image, 1.3),
    "rotated": lambda image: F.rotate(image, 20),
    "reflected": lambda image: F.pad(image, [3], padding_mode="reflect"),
    "nearest": lambda image: F.resize(image, [20, 20], interpolation=v2.InterpolationMode.NEAREST),
    "no antialias": lambda image: F.resize(image, [20, 20], antialias=False),
    "grey": lambda image: F.rgb_to_grayscale(image, 3),
    "floats resized": lambda image: F.resize(F.to_dtype(image, torch.float32, scale=True), [20, 20]),
    "floats padded": lambda image: F.pad(F.to_dtype(image, torch.float32, scale=True), [2], fill=0.5),
    "resized twice": lambda image: F.resize(F.resize(image, [30, 30]), [40, 20]),
    "padded, then resized": lambda image: F.resize(F.pad(image, [5]), [20, 20]),
    "v1's resize": lambda image: v1.resize(image, [20, 21], antialias=True),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_functions_get_what_torchvision_would_give_them(name: str) -> None:
    with opening_encoded():
        ours = ELSEWHERE[name](F.to_image(opened()))
    assert_same(ours, ELSEWHERE[name](F.to_image(opened())))


def test_five_crops_are_five_images() -> None:
    with opening_encoded():
        ours = F.five_crop(F.to_image(opened()), [20, 20])
    theirs = F.five_crop(F.to_image(opened()), [20, 20])
    for one, other in zip(ours, theirs, strict=True):
        assert_same(one, other)


def test_the_class_of_a_pending_image_is_found_where_torchvisions_is() -> None:
    with opening_encoded():
        image = F.to_image(opened())
    assert isinstance(image, tv_tensors.Image)
    assert type(image) == tv_tensors.Image  # noqa: E721
    assert {tv_tensors.Image: "images"}.get(type(image)) == "images"
    assert type(image) in {tv_tensors.Image}
    assert type(image) != tv_tensors.Mask  # noqa: E721
    assert type(pickle.loads(pickle.dumps(image))) is tv_tensors.Image


class TestMemoryThatIsShared:
    """A slice, or the tensor under an Image, is a view of its memory: what is written to one is seen in the other."""

    @pytest.mark.parametrize("write", ["whole", "part"])
    @pytest.mark.parametrize("decoded_first", ["whole", "part", "neither"])
    def test_a_slice(self, write: str, decoded_first: str) -> None:
        def written(image: Any) -> tuple[Any, Any]:
            part = image[..., 5:20, 10:30]
            if decoded_first != "neither":
                (image if decoded_first == "whole" else part).sum()
            (image if write == "whole" else part)[:, 6:8] = 7
            return image, part

        with opening_encoded():
            ours = written(F.to_image(opened()))
        theirs = written(F.to_image(opened()))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one + 0, other + 0)

    def test_arithmetic_in_place_on_the_tensor_under_an_image(self) -> None:
        def written(image: Any) -> tuple[Any, Any]:
            under = image.as_subclass(torch.Tensor)
            under.sub_(0.25)
            return image, under

        with opening_encoded():
            ours = written(F.to_dtype(F.to_image(opened()), torch.float32, scale=True))
        theirs = written(F.to_dtype(F.to_image(opened()), torch.float32, scale=True))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one + 0, other + 0)

    def test_a_slice_alone_does_not_need_the_rest(self) -> None:
        with opening_encoded():
            part = F.to_image(opened())[..., 5:20, 10:30]
            gc.collect()
            whole = part.undecoded.part_of.whole
            part.add_(1)
        assert whole.known() is None
        assert torch.equal(part + 0, F.to_image(opened())[..., 5:20, 10:30] + 1)


BORDERS: dict[str, Callable[[Any], Any]] = {
    "one width": lambda image: ImageOps.expand(image, 3),
    "two widths": lambda image: ImageOps.expand(image, (3, 1)),
    "a colour": lambda image: ImageOps.expand(image, (1, 2, 3, 4), (10, 20, 30)),
    "a name": lambda image: ImageOps.expand(image, 2, "red"),
    "a number": lambda image: ImageOps.expand(image, 2, 0x102030),
    "negative": lambda image: ImageOps.expand(image, -2),
    "twice": lambda image: ImageOps.expand(ImageOps.expand(image, 2), 3, (1, 1, 1)),
    "of a crop": lambda image: ImageOps.expand(image.resize((40, 40)).crop((5, 6, 30, 31)), 2),
    "cropped again": lambda image: v1.crop(v1.pad(v1.resize(image, 30), [0, 0, 9, 9], fill=0), 5, 5, 32, 32),
    "crops that reach out": lambda image: image.resize((50, 50)).crop((10, 10, 30, 30)).crop((-5, -5, 25, 25)),
    "cut off and padded": lambda image: v1.pad(v1.crop(v1.hflip(image), 2, 3, 20, 20), [4, 0, 0, 0], fill=9),
}


@pytest.mark.parametrize("name", BORDERS)
def test_borders_are_pillows(name: str) -> None:
    with opening_encoded():
        ours = BORDERS[name](opened())
    theirs = BORDERS[name](opened())
    assert (ours.size, ours.mode, ours.info, ours.format) == (theirs.size, theirs.mode, theirs.info, theirs.format)
    assert ours.tobytes() == theirs.tobytes()


# ---- whole datasets, by both loaders


class Resized:
    """A joint transform of one's own, over torchvision's functions, that draws from Python's generator."""

    def __call__(self, image: Any, mask: Any) -> tuple[Any, Any]:
        size = random.randint(30, 60)
        image, mask = v1.resize(image, size, antialias=True), v1.resize(mask, size, v1.InterpolationMode.NEAREST)
        if random.random() < 0.5:
            image, mask = v1.hflip(image), v1.hflip(mask)
        width, height = image.size
        sides = [0, 0, max(40 - width, 0), max(40 - height, 0)]
        image, mask = v1.pad(image, sides), v1.pad(mask, sides, fill=255)
        box = v2.RandomCrop.get_params(image, (40, 40))
        image, mask = v1.crop(image, *box), v1.crop(mask, *box)
        image = v1.normalize(v1.convert_image_dtype(v1.pil_to_tensor(image)), [0.5] * 3, [0.2] * 3)
        return image, torch.as_tensor(np.array(mask), dtype=torch.int64)


def joint(*, on_tensors: bool) -> Callable[..., Any]:
    to_image: list[Any] = [v2.ToImage()]
    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    fills = {tv_tensors.Image: (9, 8, 7), tv_tensors.Mask: 255, "others": 0}
    return v2.Compose(
        [
            *(to_image if on_tensors else []),
            v2.RandomZoomOut(fill=fills, side_range=(1.0, 1.5)),
            v2.RandomShortestSize([32, 38], max_size=60, antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.RandomIoUCrop(),
            *([] if on_tensors else to_image),
            v2.ToDtype(dtypes, scale=True),
            v2.Normalize([0.5] * 3, [0.2] * 3),
            v2.SanitizeBoundingBoxes(),
            v2.ToPureTensor(),
        ]
    )


class Segmented(Dataset[Any]):
    """Images with a mask, or with a mask, boxes and labels."""

    def __init__(self, folder: Path, transform: Callable[..., Any], *, boxes: bool) -> None:
        self.paths, self.transform, self.boxes = sorted(folder.rglob("*.jpg")), transform, boxes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        width, height = image.size
        mask = Image.fromarray(np.random.default_rng(index).integers(0, 21, (height, width), dtype=np.uint8))
        if not self.boxes:
            return self.transform(image, mask)
        boxes = torch.tensor([[4.0, 5.0, 30.0, 28.0], [10.0, 8.0, 40.0, 40.0]])
        target = {
            "boxes": tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(height, width)),  # type: ignore[call-arg]
            "labels": torch.tensor([index, 2]),
            "mask": tv_tensors.Mask(mask),
        }
        return self.transform(image, target)


def as_lists(samples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*samples, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs")
    for number in range(10):
        (folder / f"{number}.jpg").write_bytes(images.jpeg(52 + 3 * number, 70 - 2 * number, seed=number))
    return folder


DATASETS: dict[str, Callable[[Path], Dataset[Any]]] = {
    "own code": lambda folder: Segmented(folder, Resized(), boxes=False),
    "v2 on PIL images": lambda folder: Segmented(folder, joint(on_tensors=False), boxes=True),
    "v2 on tensors": lambda folder: Segmented(folder, joint(on_tensors=True), boxes=True),
}


def epoch(cls: Any, dataset: Any, **more: Any) -> list[Any]:
    torch.manual_seed(11)
    random.seed(11)
    collate = None if "own code" in more.pop("name") else as_lists
    loader = cls(dataset, 4, shuffle=True, collate_fn=collate, **more)
    batches = list(loader)
    if cls is DataLoader:
        assert loader.stats()["samples"] == len(dataset)
        assert decodes_natively(loader)
    return batches


def assert_alike(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, torch.Tensor):
        assert_same(ours, theirs)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        assert_alike(list(ours.values()), list(theirs.values()))
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_with_targets_are_torchs(folder: Path, name: str, workers: int) -> None:
    dataset = DATASETS[name](folder)
    ours = epoch(DataLoader, dataset, num_workers=workers, name=name)
    assert_alike(ours, epoch(torch.utils.data.DataLoader, dataset, num_workers=workers, name=name))


@pytest.mark.parametrize("name", DATASETS)
def test_damage_reaches_the_datasets_own_code(folder: Path, tmp_path: Path, name: str) -> None:
    """A file whose end is missing, though it has the marker, in the middle of an epoch."""
    for path in folder.glob("*.jpg"):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[: len(data) // 2] + data[-2:] if path.name == "5.jpg" else data)

    class Careful(Segmented):
        def __getitem__(self, index: int) -> Any:
            try:
                return super().__getitem__(index)
            except OSError:
                return super().__getitem__(0)

    made: Any = DATASETS[name](tmp_path)
    dataset = Careful(tmp_path, made.transform, boxes=made.boxes)
    ours = epoch(DataLoader, dataset, num_workers=2, name=name)
    assert_alike(ours, epoch(torch.utils.data.DataLoader, dataset, num_workers=2, name=name))


# ---- what a review found


class Own(v2.Transform):
    """Makes its result of the class of its input, in the ways that people do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        turned = inpt.as_subclass(torch.Tensor).roll(3, -1)
        kind: Any = type(inpt)
        ways = {
            "as_subclass": lambda: turned.as_subclass(kind),
            "constructor": lambda: kind(turned),
            "__class__": lambda: inpt.__class__(turned),
            "wrap": lambda: tv_tensors.wrap(turned, like=inpt) if isinstance(inpt, tv_tensors.Image) else turned,
        }
        return ways[self.how]()


class OneByOne(Segmented):
    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("how", ["as_subclass", "constructor", "__class__", "wrap"])
@pytest.mark.parametrize("first", [v2.ToImage, v2.PILToTensor])
def test_the_type_of_an_image_makes_images(folder: Path, how: str, first: Any, workers: int) -> None:
    for rest in ([], [v2.Resize((20, 20)), v2.ToDtype(torch.float32, scale=True)]):
        dataset = OneByOne(folder, v2.Compose([first(), Own(how), *rest]), boxes=False)
        ours, theirs = (
            list(cls(dataset, 2, collate_fn=as_lists, num_workers=workers))
            for cls in (DataLoader, torch.utils.data.DataLoader)
        )
        assert_alike(ours, theirs)


def looked_at(samples: list[Any]) -> Any:
    stacked = torch.stack([image for image, _ in samples])
    stacked.mean()
    return stacked, [number for _, number in samples]


class Holder:
    def __init__(self, samples: list[Any]) -> None:
        self.images = {"all": [image for image, _ in samples]}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_in_the_loop_are_plain(folder: Path, workers: int) -> None:
    to_tensor = v2.Compose(
        [v2.Resize((24, 24)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.ToPureTensor()]
    )
    for collate in (looked_at, Holder):
        for batch in DataLoader(OneByOne(folder, to_tensor, boxes=False), 2, collate_fn=collate, num_workers=workers):
            tensors = [batch[0]] if isinstance(batch, list | tuple) else batch.images["all"]
            assert {type(tensor) for tensor in tensors} == {torch.Tensor}


@pytest.mark.parametrize("name", ["slices", "aliases", "crops"])
def test_parts_see_what_is_written_to_each_other(name: str) -> None:
    """Although the whole is gone that they are parts of."""

    def written(image: Any) -> tuple[Any, Any]:
        if name == "slices":
            one, other = image[..., 0:20, 0:20], image[..., 10:30, 10:30]
        elif name == "aliases":
            one, other = image.as_subclass(torch.Tensor), image.detach()
        else:
            one, other = F.crop(image, 0, 0, 25, 25), F.crop(image, 5, 5, 25, 25)
        del image
        gc.collect()
        one.as_subclass(torch.Tensor)[:, 12:15] = 0
        return one, other

    with opening_encoded():
        ours = written(F.to_image(opened()))
    theirs = written(F.to_image(opened()))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one + 0, other + 0)


def test_torchvisions_return_type_counts() -> None:
    def results(image: Any) -> list[Any]:
        with tv_tensors.set_return_type("TVTensor"):
            return [image / 255, image.flip(-1), image[..., 2:9, 3:8], image.float()]

    with opening_encoded():
        ours = results(F.to_image(opened()))
    for one, other in zip(ours, results(F.to_image(opened())), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("fill", [(5,), 0.0, float("nan"), [1, 2, 3], True, (1.0, 2, 3), None])
def test_odd_colours_of_borders_are_pillows_affair(fill: Any) -> None:
    def bordered() -> Any:
        try:
            return ImageOps.expand(opened(), 2, fill).tobytes()
        except Exception as error:  # noqa: BLE001 - whatever Pillow says
            return type(error), str(error)

    with opening_encoded():
        ours = bordered()
    assert ours == bordered()
